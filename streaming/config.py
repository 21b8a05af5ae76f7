"""Settings of the app, from command line flags and STREAMING_* environment variables. An unknown one is an error.

Knows neither torch nor gradio. A flag wins over its environment variable; a Space has the environment alone.
"""

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn, Self

from platformdirs import user_data_path

from streaming.errors import ConfigError

PREFIX = "STREAMING_"
SPACE_DISK = Path("/data")  # of a Space that has a disk of its own: what is elsewhere goes with the container
_SERVER = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")


def _setting(
    help: str,
    default: Any,
    *,
    read: Callable[[str], Any] = str,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    return field(default=default, repr=not secret, metadata={"help": help, "read": read, "choices": choices})


WEIGHTS = ("full", "int8", "4bit")
OPEN_REQUESTS, OPEN_TOKENS = 12, 20_000  # of one visitor, where anybody can come
LONGEST_IDLE = 60 * 24 * 365  # minutes; the clocks of threads end before numbers do


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting, with its default. A field `like_this` is the flag --like-this and STREAMING_LIKE_THIS."""

    model: str = _setting("`starter`, a Hub id, a folder, or a .gguf file in either", "starter")
    engine: str = _setting("what answers", "local", choices=("local", "scripted", "remote"))
    draft_model: str | None = _setting(
        "a smaller model of the same family that guesses for requests that ask for it", None
    )
    allow_model: str | None = _setting(
        "models that may be chosen on the page: names with commas between, as in `starter,HuggingFaceTB/*`", None
    )
    base_url: str | None = _setting(
        "the OpenAI-compatible server of the engine `remote`, as in http://host:8000/v1", None
    )
    api_key_env: str | None = _setting("environment variable that holds the key to that server", None)
    dtype: str = _setting(
        "precision of the products, and of full weights", "auto", choices=("auto", "float32", "bfloat16", "float16")
    )
    weights: str = _setting(
        "how they are kept: int8 takes a quarter of the memory, 4bit is for GPUs", "full", choices=WEIGHTS
    )
    host: str = _setting("address to listen on", "127.0.0.1")
    port: int = _setting("port to listen on", 7860, read=int)
    share: bool = _setting("ask Gradio for a public link", False)
    public: bool = _setting("let everybody in who can reach the app", False)
    auth_file: Path | None = _setting("visitors log in by this file (see `password`)", None, read=Path)
    api_key: str | None = _setting(
        "programs use /v1 by this key; without, only those of this machine", None, secret=True
    )
    cors_origin: str | None = _setting("web pages that may use /v1: origins with commas between, or *", None)
    max_new_tokens: int = _setting("longest answer in tokens, where a request does not say", 1024, read=int)
    batching: str = _setting("answer several at once", "auto", choices=("auto", "on", "off"))
    kv_cache_gb: float | None = _setting("memory for what is computed of conversations, in GB", None, read=float)
    idle_unload: float | None = _setting(
        "minutes without a request after which the model's memory is freed; the next one loads it again",
        None,
        read=float,
    )
    max_waiting: int = _setting("requests that may wait before one more is refused", 64, read=int)
    data_dir: Path | None = _setting("where conversations are kept, if not in the user's data", None, read=Path)
    no_history: bool = _setting("keep conversations in memory only", False)
    max_runs_per_user: int = _setting("answers of one visitor that run or wait at a time", 8, read=int)
    requests_per_minute: int | None = _setting(
        f"requests of one visitor; 0: no limit. Where anybody can come it is {OPEN_REQUESTS}", None, read=int
    )
    tokens_per_hour: int | None = _setting(
        f"tokens written for one visitor; 0: no limit. Where anybody can come it is {OPEN_TOKENS}", None, read=int
    )
    cache_dir: Path | None = _setting("where the starter model is kept, if not in the user's cache", None, read=Path)

    def __post_init__(self) -> None:
        for item in fields(self):
            value, choices = getattr(self, item.name), item.metadata["choices"]
            if choices and value not in choices:
                raise ConfigError(
                    f"{_flag(item.name)} is {value!r}.{_nearest(value, choices)} Choose one of: {', '.join(choices)}."
                )
        if not self.model.strip():
            raise ConfigError("--model is empty: name a model, or leave it out for the starter model.")
        if self.allow_model is not None and not self.model_patterns:
            raise ConfigError("--allow-model is empty: name models, or `*` for any.")
        if self.draft_model is not None and self.engine != "local":
            raise ConfigError("--draft-model is for --engine local: another engine has its models elsewhere.")
        if self.weights != "full" and self.engine != "local":
            raise ConfigError("--weights is for --engine local: another engine has its models elsewhere.")
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}: it must be from 1 to 65535.")
        self._check_server()
        if self.max_new_tokens < 1:
            raise ConfigError(f"--max-new-tokens is {self.max_new_tokens}: it must be at least 1.")
        if self.kv_cache_gb is not None and not 0 < self.kv_cache_gb < math.inf:
            raise ConfigError(f"--kv-cache-gb is {self.kv_cache_gb}: it must be more than 0.")
        if self.idle_unload is not None and not 0 < self.idle_unload <= LONGEST_IDLE:
            raise ConfigError(f"--idle-unload is {self.idle_unload}: it must be more than 0 minutes.")
        if self.idle_unload is not None and self.engine != "local":
            raise ConfigError("--idle-unload is for --engine local: another engine has its models elsewhere.")
        if self.max_waiting < 1:
            raise ConfigError(f"--max-waiting is {self.max_waiting}: it must be at least 1.")
        if self.max_runs_per_user < 1:
            raise ConfigError(f"--max-runs-per-user is {self.max_runs_per_user}: it must be at least 1.")
        for name in ("requests_per_minute", "tokens_per_hour"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{_flag(name)} is {getattr(self, name)}: it must be 0 (no limit) or more.")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("--api-key is empty: set a key, or leave it out.")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--cors-origin has {origin!r}: an origin is like https://example.org, without a path."
                )
        if self.reachable and not (self.public or self.auth_file):
            wish = "--share" if self.share else f"--host {self.host}"
            raise ConfigError(
                f"{wish} opens the app to others. Add --auth-file FILE to ask for a login, "
                "or --public to let everybody in."
            )

    def _check_server(self) -> None:
        if self.engine != "remote":
            for name in ("base_url", "api_key_env"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{_flag(name)} is for --engine remote: add that, or leave it out.")
        elif self.base_url is None:
            raise ConfigError("--engine remote needs --base-url: where the server is, as in http://127.0.0.1:8000/v1.")
        elif not _SERVER.fullmatch(self.base_url):
            raise ConfigError(
                "--base-url must be like http://127.0.0.1:8000/v1, without a query or a password. "
                "A key belongs into a variable that --api-key-env names."
            )

    @property
    def idle_s(self) -> float | None:
        """Seconds without a request after which the model's memory is freed; None: never."""
        return None if self.idle_unload is None else 60 * self.idle_unload

    @property
    def reachable(self) -> bool:
        """Whether others than this machine can reach the app."""
        return self.share or not is_loopback(self.host)

    @property
    def open(self) -> bool:
        """Whether others than who started the app are meant to use it."""
        return self.reachable or self.public

    @property
    def model_patterns(self) -> tuple[str, ...]:
        """What may be chosen on the page, beside the model that was named at the start; nothing: there is no choice.
        Who is alone with the app may choose anything."""
        if self.allow_model is None:
            return () if self.open else ("*",)
        return tuple(name.strip() for name in self.allow_model.split(",") if name.strip())

    @property
    def limits(self) -> tuple[int, int]:
        """A visitor's requests a minute and tokens an hour; 0 is no limit. A login makes visitors known people."""
        requests, tokens = (OPEN_REQUESTS, OPEN_TOKENS) if self.reachable and not self.auth_file else (0, 0)
        return (
            requests if self.requests_per_minute is None else self.requests_per_minute,
            tokens if self.tokens_per_hour is None else self.tokens_per_hour,
        )

    @property
    def history_dir(self) -> Path | None:
        """Where conversations are kept; none, if they are not."""
        return None if self.no_history else self.data_dir or user_data_path("streaming", appauthor=False)

    @property
    def cors_origins(self) -> tuple[str, ...]:
        return tuple(origin.strip() for origin in self.cors_origin.split(",")) if self.cors_origin else ()

    @classmethod
    def load(
        cls, arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ, *, program: str | None = None
    ) -> Self:
        """Read flags, then the environment. Raises ConfigError; only `--help` ends the program.

        `program` is how the help text calls it.
        """
        given = _from_space(environ) | _from_environment(environ) | _from_flags(arguments, program)
        return cls(**given)


def _from_flags(arguments: Sequence[str], program: str | None) -> dict[str, Any]:
    values, unknown = _parser(program).parse_known_args(list(arguments))
    for argument in unknown:
        if argument.startswith("-"):
            flag = argument.partition("=")[0]
            flags = [_flag(item.name) for item in fields(Config)]
            raise ConfigError(f"There is no flag {flag}.{_nearest(flag, flags)} `--help` lists them.")
    if unknown:
        raise ConfigError(f"{unknown[0]!r} belongs to no flag. `--help` lists them.")
    return {name: value for name, value in vars(values).items() if value is not MISSING}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    settings = {PREFIX + item.name.upper(): item for item in fields(Config)}
    given: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX):
            continue
        if variable not in settings:
            raise ConfigError(f"There is no setting {variable}.{_nearest(variable, settings)} `--help` lists them.")
        if not text:  # how a container platform says "not set"
            continue
        item = settings[variable]
        read = _boolean if isinstance(item.default, bool) else item.metadata["read"]
        given[item.name] = _read(variable, text, read)
    return given


def _from_space(environ: Mapping[str, str]) -> dict[str, Any]:
    """A Space is public by nature, listens where its container tells Gradio to, and has or has not a lasting disk."""
    if not on_space(environ):
        return {}
    given: dict[str, Any] = {"public": True, "host": environ.get("GRADIO_SERVER_NAME") or "0.0.0.0"}
    if SPACE_DISK.is_dir() and os.access(SPACE_DISK, os.W_OK):
        given["data_dir"] = SPACE_DISK / "streaming"
    port = environ.get("GRADIO_SERVER_PORT")
    return given | ({"port": _read("GRADIO_SERVER_PORT", port, int)} if port else {})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ').strip()}. `--help` lists the flags.")


def _parser(program: str | None) -> _Parser:
    parser = _Parser(
        prog=program,
        description="A chat page that streams a local language model.",
        epilog=f"Every flag is also an environment variable: --max-new-tokens is {PREFIX}MAX_NEW_TOKENS.",
        allow_abbrev=False,
    )
    for item in fields(Config):
        choices, default = item.metadata["choices"], item.default
        help = f"{item.metadata['help']}{': ' + ', '.join(choices) if choices else ''}"
        if item.name.startswith("no_"):  # argparse would take it for the opposite of a flag
            parser.add_argument(_flag(item.name), action="store_true", default=MISSING, help=help)
        elif isinstance(default, bool):
            parser.add_argument(_flag(item.name), action=argparse.BooleanOptionalAction, default=MISSING, help=help)
        else:
            parser.add_argument(
                _flag(item.name),
                type=item.metadata["read"],
                default=MISSING,
                metavar=item.name.rpartition("_")[2].upper(),
                help=help if default is None else f"{help} (default: {default})",
            )
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _read(variable: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as error:
        wanted = {_boolean: "1 or 0", float: "a number"}.get(read, "a whole number")
        raise ConfigError(f"{variable} is {text!r}: it must be {wanted}.") from error


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this very machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def on_zero_gpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a Space that gets a GPU only for as long as an answer takes."""
    return environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def on_space(environ: Mapping[str, str] = os.environ) -> bool:
    return bool(environ.get("SPACE_ID"))


def offers_hub_login(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a Space whose front matter has `hf_oauth: true`."""
    return on_space(environ) and bool(environ.get("OAUTH_CLIENT_ID"))
