"""Who may use the API: whoever has its key, as a bearer token, or, in a private app, the programs of this machine.

Pure ASGI, around everything that is guarded, so that nothing of a stranger's request is read. Without state.
"""

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from streaming.api.errors import ApiError, as_response
from streaming.config import Config, is_loopback


class Access:
    """The rule. `private`: nobody but this machine's user is meant to come, so that programs need no key."""

    def __init__(self, api_key: str | None = None, *, private: bool = True) -> None:
        self._key = api_key.encode() if api_key else None
        self._private = private

    @classmethod
    def of(cls, config: Config) -> "Access":
        # A login or --public on a loopback address means a proxy before it: then everybody comes from this machine.
        return cls(config.api_key, private=not (config.reachable or config.public or config.auth_file))

    @property
    def needs_key(self) -> bool:
        return self._key is not None

    def check(self, headers: Headers) -> None:
        """Raises ApiError unless a request with these headers may pass."""
        if self._key is not None:
            scheme, _, credentials = headers.get("authorization", "").partition(" ")
            given = credentials.strip().encode("latin-1")  # as it came: headers are bytes
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._key):
                raise ApiError(
                    401,
                    "This needs the server's API key, as `Authorization: Bearer KEY`."
                    if not credentials
                    else "This is not the server's API key.",
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        elif not self._private:
            raise ApiError(
                404,
                "The API is off: this app is not for its own machine alone, and has no key. Set one with --api-key.",
                code="api_off",
            )
        elif not is_loopback(host := _host(headers)):
            # A web page can give its own name this machine's address, and would then be of the same origin.
            raise ApiError(
                403,
                f"Without an API key the API answers this machine alone, and this request was for {host!r}. "
                "Use the address 127.0.0.1, or set a key with --api-key.",
                code="not_local",
            )


def _host(headers: Headers) -> str:
    """The name that the client used for this machine, without its port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


class Guard:
    """Lets requests through to `app` as `access` says."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._access.check(Headers(scope=scope))
        except ApiError as error:
            await as_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
