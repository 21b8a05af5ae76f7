"""An OpenID provider as the Hub is one for its Spaces: whoever comes is signed in as `user`, without being asked."""

import secrets
import time
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

CLIENT = {"OAUTH_CLIENT_ID": "space", "OAUTH_CLIENT_SECRET": "a secret of the Space", "OAUTH_SCOPES": "openid profile"}


class OpenId:
    """Serve `app()`; the address it has then goes into `url`."""

    def __init__(self) -> None:
        self.url = ""
        self.user = "ann"
        self._key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self._asked: dict[str, tuple[str, str]] = {}  # by code: who, and the nonce

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._configuration),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )

    def environment(self) -> dict[str, str]:
        """What a Space with `hf_oauth: true` has."""
        return CLIENT | {"OPENID_PROVIDER_URL": self.url, "SYSTEM": "spaces", "SPACE_ID": "owner/streaming"}

    async def _configuration(self, _: Request) -> JSONResponse:
        return JSONResponse(
            {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
            }
        )

    async def _authorize(self, request: Request) -> RedirectResponse:
        asked, code = request.query_params, secrets.token_urlsafe(8)
        self._asked[code] = self.user, asked["nonce"]
        back = urlencode({"code": code, "state": asked["state"]})
        joint = "&" if "?" in asked["redirect_uri"] else "?"
        return RedirectResponse(f"{asked['redirect_uri']}{joint}{back}")

    async def _token(self, request: Request) -> JSONResponse:
        form = await request.form()
        user, nonce = self._asked.pop(str(form["code"]))
        now = int(time.time())
        claims = {"iss": self.url, "aud": "space", "sub": f"id-of-{user}", "preferred_username": user, "nonce": nonce}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims | {"iat": now, "exp": now + 3600}, self._key)
        return JSONResponse(
            {"access_token": "any", "token_type": "bearer", "expires_in": 3600, "scope": "openid", "id_token": token}
        )

    async def _keys(self, _: Request) -> JSONResponse:
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})
