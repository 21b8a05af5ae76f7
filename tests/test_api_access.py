"""Who may use the API: the key, this machine, and web pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from streaming.api import Access, CrossOrigin, SafeHeaders, routes
from streaming.config import Config
from streaming.engines.script import Say
from streaming.engines.scripted import ScriptedEngine
from tests.asgi import CHAT, client_of

KEY = "s3cret ключ"
GUARDED = ["/v1/models", "/v1/openapi.json", "/v1/nothing", "/metrics"]
OPEN_TO_OTHERS = [
    Config(share=True, public=True),
    Config(host="0.0.0.0", public=True),
    Config.load([], {"SPACE_ID": "owner/name"}),
    Config(auth_file=Path("users.txt")),
    Config(public=True),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(lambda _: [Say("So.")])
    engine.wait_ready()
    yield engine
    engine.close()


def app_of(engine: ScriptedEngine, config: Config) -> FastAPI:
    return FastAPI(routes=routes(engine, access=Access.of(config)))


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": f"Bearer {key}".encode()}


@pytest.mark.parametrize("path", GUARDED)
def test_with_a_key_nothing_comes_without_it(engine: ScriptedEngine, path: str) -> None:
    with client_of(app_of(engine, Config(api_key=KEY))) as client:
        for headers in ({}, bearer("another"), bearer(KEY + "x"), bearer(""), {"Authorization": KEY.encode()}):
            refused = client.get(path, **headers)
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in refused.text
        assert client.get(path, **bearer(KEY)).status_code == (404 if path == "/v1/nothing" else 200)


def test_nothing_of_a_strangers_request_is_read(engine: ScriptedEngine) -> None:
    """401 comes before what is wrong with the body: a stranger learns nothing by trying."""
    with client_of(app_of(engine, Config(api_key=KEY))) as client:
        assert client.send("POST", CHAT, b"{").status_code == 401
        assert client.send("POST", CHAT, b"{", bearer(KEY)).status_code == 400


@pytest.mark.parametrize("config", OPEN_TO_OTHERS, ids=["share", "host", "space", "login", "public"])
@pytest.mark.parametrize("path", GUARDED)
def test_where_the_app_is_for_others_too_there_is_no_api_without_a_key(
    engine: ScriptedEngine, config: Config, path: str
) -> None:
    """Gradio's login does not cover what is mounted beside it: a page with a password had an open API.

    A proxy on the same machine asks for 127.0.0.1, whoever asks the proxy: the address alone does not tell.
    """
    with client_of(app_of(engine, config)) as client:
        refused = client.get(path)
        assert refused.status_code == 404
        assert "--api-key" in refused.json()["error"]["message"]
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:7860", "127.0.0.1:7860", "[::1]:7860"])
def test_without_a_key_this_machine_is_let_in(engine: ScriptedEngine, host: str) -> None:
    with client_of(app_of(engine, Config())) as client:
        assert client.get("/v1/models", Host=host).status_code == 200


@pytest.mark.parametrize("host", ["example.org", "192.168.0.7:7860", "localhost.example.org", "[", ""])
def test_without_a_key_no_other_name_is(engine: ScriptedEngine, host: str) -> None:
    """DNS rebinding: a page gives its own name this machine's address, and the browser takes it for one origin."""
    with client_of(app_of(engine, Config())) as client:
        refused = client.get("/v1/models", Host=host)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "not_local"
    with client_of(app_of(engine, Config(api_key=KEY))) as client:
        assert client.get("/v1/models", Host=host, **bearer(KEY)).status_code == 200


def test_the_schema_tells_of_the_key_where_there_is_one(engine: ScriptedEngine) -> None:
    with client_of(app_of(engine, Config())) as client:
        assert "securitySchemes" not in client.get("/v1/openapi.json").json()["components"]
    with client_of(app_of(engine, Config(api_key=KEY))) as client:
        schema = client.get("/v1/openapi.json", **bearer(KEY)).json()
        assert schema["components"]["securitySchemes"]["HTTPBearer"] == {"type": "http", "scheme": "bearer"}


# -- web pages

PAGE = "https://example.org"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}


class Generous:
    """Allows every origin that it is told of, as Gradio does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        async def send_on(message) -> None:  # type: ignore[no-untyped-def]
            if message["type"] == "http.response.start":
                origins = [value for name, value in scope["headers"] if name == b"origin"]
                message["headers"] += [(b"access-control-allow-origin", origin) for origin in origins]
            await send(message)

        await self._app(scope, receive, send_on)


def across(engine: ScriptedEngine, *origins: str) -> ASGIApp:
    return CrossOrigin(Generous(SafeHeaders(app_of(engine, Config()))), origins)


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health"])
def test_no_web_page_may_use_the_api_unless_that_is_asked_for(engine: ScriptedEngine, path: str) -> None:
    with client_of(across(engine)) as client:
        assert "Access-Control-Allow-Origin" not in client.get(path, Origin=PAGE).headers
        asked = client.send("OPTIONS", path, headers={"Origin": PAGE} | PREFLIGHT)
        assert "Access-Control-Allow-Origin" not in asked.headers


@pytest.mark.parametrize(("origins", "told"), [([PAGE], PAGE), (["https://other.org", PAGE], PAGE), (["*"], "*")])
def test_the_pages_that_were_named_may(engine: ScriptedEngine, origins: list[str], told: str) -> None:
    with client_of(across(engine, *origins)) as client:
        answer = client.get("/v1/models", Origin=PAGE)
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, told)
        asked = client.send("OPTIONS", CHAT, headers={"Origin": PAGE} | PREFLIGHT)
        assert (asked.status_code, asked.headers["Access-Control-Allow-Origin"]) == (200, told)
        if told != "*":
            refused = client.get("/v1/models", Origin="https://stranger.org")
            assert "Access-Control-Allow-Origin" not in refused.headers


def test_the_page_itself_is_left_to_gradio(engine: ScriptedEngine) -> None:
    with client_of(across(engine)) as client:
        assert client.get("/", Origin=PAGE).headers["Access-Control-Allow-Origin"] == PAGE


def test_every_response_keeps_model_text_harmless(engine: ScriptedEngine) -> None:
    """An image in an answer would be fetched from wherever the model says, with the chat in its address."""
    with client_of(SafeHeaders(app_of(engine, Config()))) as client:
        for path in ("/health", "/nothing"):
            headers = client.get(path).headers
            policy = headers["Content-Security-Policy"].split("; ")
            for kind in ("img-src", "media-src", "font-src"):
                assert any(rule.startswith(f"{kind} 'self'") for rule in policy), kind
            assert {"connect-src 'self'", "frame-src 'none'", "frame-ancestors 'self'"} < set(policy)
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Accel-Buffering"] == "no"


def test_a_space_may_be_shown_on_other_sites(engine: ScriptedEngine) -> None:
    with client_of(SafeHeaders(app_of(engine, Config()), framed=True)) as client:
        assert "frame-ancestors" not in client.get("/health").headers["Content-Security-Policy"]
