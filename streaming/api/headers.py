"""What every response says to browsers: how to treat model text, and whose pages may call the API.

Pure ASGI, without state. SafeHeaders goes within Gradio's app; CrossOrigin around it, as Gradio answers preflights.
"""

from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_PATHS = ("/v1", "/metrics", "/health")

# Model text may hold an image, film or form: its address could carry the chat away, so the browser must not ask for it.
POLICY = (
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "frame-src 'none'; form-action 'self'; base-uri 'self'; object-src 'none'"
)


HUB = "https://huggingface.co"


class SafeHeaders:
    """Adds to every response what keeps model text harmless and event streams unbuffered by proxies.

    `framed`: whether other sites may show the page within theirs, as the Hub does a Space. A page that is somebody's
    own must not lie unseen under a stranger's buttons. `of_space`: Gradio's page asks the Hub how its Space is.
    """

    def __init__(self, app: ASGIApp, *, framed: bool = False, of_space: bool = False) -> None:
        self._app = app
        policy = POLICY.replace("connect-src 'self'", f"connect-src 'self' {HUB}") if of_space else POLICY
        self._policy = policy if framed else f"{policy}; frame-ancestors 'self'"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self._policy
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                headers["X-Accel-Buffering"] = "no"
            await send(message)

        await self._app(scope, receive, send_safely)


class CrossOrigin:
    """Lets the pages of `origins` (`*`: all) call the API from a browser, and no others.

    Gradio allows every origin wherever it is not reached as localhost. That is left to the page; the API goes by
    `origins` alone, and Gradio is not shown where its requests come from.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str] = ()) -> None:
        self._page = app
        self._api = CORSMiddleware(
            _WithoutOrigin(app),
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] == "http" and scope["path"].startswith(API_PATHS)
        await (self._api if is_api else self._page)(scope, receive, send)


class _WithoutOrigin:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"origin"]
        await self._app({**scope, "headers": headers}, receive, send)
