"""HTTP beside the page, on the same server: an OpenAI-compatible /v1, /metrics for Prometheus, /health."""

from streaming.api.access import Access
from streaming.api.headers import CrossOrigin, SafeHeaders
from streaming.api.metrics import MeteredEngine, Metrics
from streaming.api.routes import routes

__all__ = ["Access", "CrossOrigin", "MeteredEngine", "Metrics", "SafeHeaders", "routes"]
