"""Who a browser is, and what it asks for: read from values that any client can make up, so nothing in them is trusted.

A visitor is known by the secret id in the browser's storage, or by the login: a name and password, or the Hub's.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any

import gradio as gr

BROWSER_KEY = "streaming-visitor"  # of all pages: each finds the same visitor in a browser's storage
LONGEST_ID = 64
LOGINS = ("user:", "hub:")  # how the owners begin who have logged in: no browser can be one of them by its own word


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at which conversation ("": a new one) in which tab, and the last message that the tab has shown."""

    owner: str
    conversation_id: str
    tab: str
    seen: str | None = None
    browser_id: str = ""  # who this browser is without a login, for after it

    @classmethod
    def of(cls, browser: Any, request: gr.Request) -> "Visitor":
        """The sender of an event."""
        kept = browser if isinstance(browser, dict) else {}
        browser_id, conversation_id, seen = (_name(kept.get(key)) for key in ("owner", "conversation", "seen"))
        known, login = len(browser_id) >= 16 and not browser_id.startswith(LOGINS), _login(request)
        if not known:
            browser_id = "" if login else secrets.token_urlsafe(24)
        if not (known or login):
            conversation_id = ""
        return cls(login or browser_id, conversation_id, request.session_hash or "", seen or None, browser_id)

    def kept(self, conversation_id: str, seen: str | None) -> dict[str, str]:
        """What the browser is to keep from now on."""
        return {"owner": self.browser_id, "conversation": conversation_id, "seen": seen or ""}


@dataclass(frozen=True, slots=True)
class Action:
    """What the page's script asks for: an operation, what it is about, and a text or a number for it."""

    op: str = ""
    id: str = ""
    text: str = ""
    node: str = ""
    step: int = 0

    @classmethod
    def of(cls, asked: Any) -> "Action":
        given = asked if isinstance(asked, dict) else {}
        text = given.get("text")
        step = given.get("step")
        return cls(
            _name(given.get("op")),
            _name(given.get("id")),
            text if isinstance(text, str) else "",
            _name(given.get("node")),
            step if isinstance(step, int) and abs(step) == 1 else 0,
        )


def _login(request: gr.Request) -> str:
    """The owner that a login makes, or "". The Hub's is in a session that the server has signed, until it expires."""
    if request.username:
        return f"user:{request.username}"
    scope = getattr(getattr(request, "request", None), "scope", None) or {}
    session = scope.get("session") or {}
    info = session.get("oauth_info") or {}
    subject = (info.get("userinfo") or {}).get("sub")
    lasts = info.get("expires_at", 0) > time.time()
    return f"hub:{subject}" if subject and lasts else ""


def linked(request: gr.Request) -> str | None:
    """The conversation that the address bar names; None if it names none."""
    return _name(request.query_params.get("c")) or None


def _name(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST_ID else ""
