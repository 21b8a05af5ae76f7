"""Settings: where they come from, what is refused, and who may reach the app."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from platformdirs import user_data_path

from streaming import config as settings
from streaming.config import Config
from streaming.errors import ConfigError


def load(*arguments: str, **environ: str) -> Config:
    return Config.load(arguments, environ)


def test_defaults_need_nothing() -> None:
    assert load() == Config()
    assert Config().host == "127.0.0.1"
    assert not Config().share


def test_flags() -> None:
    config = load("--model", "org/name", "--port", "8000", "--engine=scripted", "--auth-file", "users.txt", "--share")
    assert (config.model, config.port, config.engine) == ("org/name", 8000, "scripted")
    assert (config.auth_file, config.share) == (Path("users.txt"), True)


def test_environment() -> None:
    config = load(STREAMING_MAX_NEW_TOKENS="12", STREAMING_PUBLIC="yes", STREAMING_CACHE_DIR="models", OTHER="x")
    assert (config.max_new_tokens, config.public, config.cache_dir) == (12, True, Path("models"))


def test_a_flag_wins_over_the_environment() -> None:
    assert load("--port", "8000", STREAMING_PORT="9000").port == 8000
    assert not load("--no-public", STREAMING_PUBLIC="1").public


def test_an_empty_variable_is_not_set() -> None:
    assert load(STREAMING_PORT="", STREAMING_MODEL="").port == 7860


@pytest.mark.parametrize("text", ["1", "true", "Yes", "ON"])
def test_true(text: str) -> None:
    assert load(STREAMING_PUBLIC=text).public


@pytest.mark.parametrize("text", ["0", "False", "no", "off"])
def test_false(text: str) -> None:
    assert not load(STREAMING_PUBLIC=text).public


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["--allow-model", " ,"], {}, "--allow-model is empty: name models, or `*` for any."),
        (["--modle", "x"], {}, "There is no flag --modle. Did you mean --model?"),
        (["--portt=1"], {}, "There is no flag --portt. Did you mean --port?"),
        (["--zzz"], {}, "There is no flag --zzz. `--help`"),
        (["--mod", "x"], {}, "There is no flag --mod"),
        (["starter"], {}, "'starter' belongs to no flag"),
        (["--batching", "maybe"], {}, "--batching is 'maybe'. Choose one of: auto, on, off."),
        (["--kv-cache-gb", "0"], {}, "--kv-cache-gb is 0.0: it must be more than 0."),
        ([], {"STREAMING_KV_CACHE_GB": "much"}, "STREAMING_KV_CACHE_GB is 'much': it must be a number."),
        (["--idle-unload", "0"], {}, "--idle-unload is 0.0: it must be more than 0 minutes."),
        (["--idle-unload", "nan"], {}, "--idle-unload is nan"),
        (["--idle-unload", "inf"], {}, "--idle-unload is inf"),
        (["--engine", "scripted", "--idle-unload", "5"], {}, "--idle-unload is for --engine local"),
        (["--max-waiting", "0"], {}, "--max-waiting is 0: it must be at least 1."),
        (["--max-runs-per-user", "0"], {}, "--max-runs-per-user is 0: it must be at least 1."),
        (["--port"], {}, "--port: expected one argument"),
        (["--port", "many"], {}, "--port: invalid int value: 'many'"),
        (["--port", "0"], {}, "--port is 0: it must be from 1 to 65535"),
        (["--port", "65536"], {}, "--port is 65536"),
        (["--max-new-tokens", "0"], {}, "--max-new-tokens is 0: it must be at least 1"),
        (["--engine", "scriptet"], {}, "--engine is 'scriptet'. Did you mean scripted? Choose one of: local, scripted"),
        (["--engine", "remote"], {}, "--engine remote needs --base-url"),
        (["--base-url", "http://127.0.0.1:8000/v1"], {}, "--base-url is for --engine remote"),
        (["--engine", "scripted", "--draft-model", "x"], {}, "--draft-model is for --engine local"),
        (["--api-key-env", "KEY"], {}, "--api-key-env is for --engine remote"),
        (["--engine", "remote", "--base-url", "gpu:8000"], {}, "--base-url must be like http://127.0.0.1:8000/v1"),
        (["--engine", "remote", "--base-url", "http://me:s3cret@gpu/v1"], {}, "without a query or a password"),
        (["--engine", "remote", "--base-url", "http://gpu/v1?key=1"], {}, "without a query or a password"),
        (["--dtype", "int3"], {}, "--dtype is 'int3'"),
        (["--weights", "int"], {}, "--weights is 'int'. Did you mean int8? Choose one of: full, int8, 4bit."),
        ([], {"STREAMING_WEIGHTS": "8"}, "--weights is '8'. Choose one of: full, int8, 4bit."),
        (["--engine", "scripted", "--weights", "int8"], {}, "--weights is for --engine local"),
        (["--model", " "], {}, "--model is empty"),
        (["--api-key", ""], {}, "--api-key is empty"),
        (["--cors-origin", "example.org"], {}, "--cors-origin has 'example.org': an origin is like https://"),
        (["--cors-origin", "https://a.org,https://b.org/"], {}, "--cors-origin has 'https://b.org/'"),
        ([], {"STREAMING_MODLE": "x"}, "There is no setting STREAMING_MODLE. Did you mean STREAMING_MODEL?"),
        ([], {"STREAMING_MODLE": ""}, "There is no setting STREAMING_MODLE"),
        ([], {"STREAMING_PORT": "many"}, "STREAMING_PORT is 'many': it must be a whole number"),
        ([], {"STREAMING_SHARE": "maybe"}, "STREAMING_SHARE is 'maybe': it must be 1 or 0"),
        ([], {"SPACE_ID": "a/b", "GRADIO_SERVER_PORT": "x"}, "GRADIO_SERVER_PORT is 'x': it must be a whole number"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(
    arguments: list[str], environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        Config.load(arguments, environ)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1"])
def test_a_loopback_address_asks_for_nothing(host: str) -> None:
    assert load("--host", host).host == host


@pytest.mark.parametrize(
    "wish", [["--share"], ["--host", "0.0.0.0"], ["--host", "::"], ["--host", "example.org"], ["--host", ""]]
)
def test_opening_the_app_to_others_has_to_be_said_twice(wish: list[str]) -> None:
    """Demos with `share=True` and `0.0.0.0` as their defaults have put many a private machine on the net."""
    with pytest.raises(ConfigError, match="--auth-file FILE to ask for a login, or --public"):
        load(*wish)
    assert load(*wish, "--public").public
    assert load(*wish, "--auth-file", "users.txt").auth_file


def test_a_space_is_public_and_binds_as_gradio_does_there() -> None:
    space = load(SPACE_ID="owner/name", GRADIO_SERVER_NAME="0.0.0.0", GRADIO_SERVER_PORT="7861")
    assert (space.host, space.port, space.public) == ("0.0.0.0", 7861, True)
    assert load(SPACE_ID="owner/name").host == "0.0.0.0"


def test_a_space_can_be_set_up_by_its_variables_alone() -> None:
    space = load(SPACE_ID="owner/name", STREAMING_MODEL="org/name", STREAMING_HOST="127.0.0.1")
    assert (space.model, space.host) == ("org/name", "127.0.0.1")


def test_gradio_variables_open_nothing_outside_a_space() -> None:
    assert load(GRADIO_SERVER_NAME="0.0.0.0").host == "127.0.0.1"
    assert load(SPACE_ID="", GRADIO_SERVER_NAME="0.0.0.0").host == "127.0.0.1"


def test_the_key_is_in_no_log() -> None:
    assert "s3cret" not in repr(load("--api-key", "s3cret"))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "https://example.org", "http://gpu:8000/v1/", "http://[::1]:1/v1"]
)
def test_a_server_is_named_by_its_address(url: str) -> None:
    assert load(STREAMING_ENGINE="remote", STREAMING_BASE_URL=url).base_url == url


def test_origins_are_told_apart() -> None:
    assert load().cors_origins == ()
    assert load("--cors-origin", "https://a.org, http://localhost:3000").cors_origins == (
        "https://a.org",
        "http://localhost:3000",
    )
    assert load(STREAMING_CORS_ORIGIN="*").cors_origins == ("*",)


@pytest.mark.parametrize(
    ("arguments", "reachable"),
    [([], False), (["--public"], False), (["--share", "--public"], True), (["--host", "::", "--public"], True)],
)
def test_who_can_reach_the_app(arguments: list[str], reachable: bool) -> None:
    assert load(*arguments).reachable == reachable


@pytest.mark.parametrize(
    ("arguments", "patterns"),
    [
        ([], ("*",)),
        (["--public"], ()),
        (["--share", "--public"], ()),
        (["--host", "::", "--auth-file", "x"], ()),
        (["--share", "--public", "--allow-model", "*"], ("*",)),
        (["--allow-model", "starter, owner/*,"], ("starter", "owner/*")),
    ],
)
def test_which_models_may_be_chosen(arguments: list[str], patterns: tuple[str, ...]) -> None:
    assert load(*arguments).model_patterns == patterns


def test_on_a_space_models_are_chosen_only_if_it_says_which() -> None:
    assert load(SPACE_ID="owner/name").model_patterns == ()
    assert load(SPACE_ID="owner/name", STREAMING_ALLOW_MODEL="owner/*").model_patterns == ("owner/*",)


def test_help_shows_every_flag_and_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Config.load(["--help"], {}, program="python app.py")
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert shown.startswith("usage: python app.py")
    assert all("--" + item.name.replace("_", "-") in shown for item in fields(Config))


def test_where_conversations_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("--data-dir", str(tmp_path)).history_dir == tmp_path
    assert load("--data-dir", str(tmp_path), "--no-history").history_dir is None
    assert load(STREAMING_NO_HISTORY="1").history_dir is None
    assert load().history_dir == user_data_path("streaming", appauthor=False)
    monkeypatch.setattr(settings, "SPACE_DISK", tmp_path)
    assert load(SPACE_ID="owner/name").history_dir == tmp_path / "streaming"
    assert load("--data-dir", "x", SPACE_ID="owner/name").history_dir == Path("x")
    monkeypatch.setattr(settings, "SPACE_DISK", tmp_path / "none")
    assert load(SPACE_ID="owner/name").history_dir == user_data_path("streaming", appauthor=False)


def test_idle_minutes_are_seconds_to_the_engine() -> None:
    assert load().idle_s is None
    assert load("--idle-unload", "1.5").idle_s == 90
