"""Settings of the app, from command line flags and STREAMING_* environment variables. An unknown one is an error.

Knows neither torch nor gradio. A flag wins over its environment variable; a Space has the environment alone.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn

from streaming.errors import ConfigError

PREFIX = "STREAMING_"


def _flag(help: str, default: Any, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting, with its default. The field's name is the flag's and the environment variable's name."""

    model: str = _flag("'starter', a Hub id, a folder, or a .gguf file in either", "starter")
    engine: str = _flag("what answers", "local", ("local", "scripted"))
    dtype: str = _flag("precision of the weights", "auto", ("auto", "float32", "bfloat16", "float16"))
    host: str = _flag("address to listen on", "127.0.0.1")
    port: int = _flag("port to listen on", 7860)
    share: bool = _flag("ask Gradio for a public link", False)
    public: bool = _flag("allow a public link or address without a login", False)
    auth_file: Path | None = _flag("file with one user:password a line; visitors must log in", None)
    max_new_tokens: int = _flag("longest answer in tokens, where a request does not say", 1024)
    cache_dir: Path | None = _flag("where the starter model is kept", None)

    def __post_init__(self) -> None:
        for item in fields(self):
            choices = item.metadata["choices"]
            if choices and getattr(self, item.name) not in choices:
                raise ConfigError(f"{_option(item.name)} is {getattr(self, item.name)!r}: choose {', '.join(choices)}.")
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}: it must be from 1 to 65535.")
        if self.max_new_tokens < 1:
            raise ConfigError(f"--max-new-tokens is {self.max_new_tokens}: it must be at least 1.")
        if (self.share or not _is_loopback(self.host)) and not (self.public or self.auth_file):
            wish = "--share" if self.share else f"--host {self.host}"
            raise ConfigError(
                f"{wish} opens the app to others. Add --auth-file FILE to ask for a login, "
                "or --public to let everybody in."
            )

    @classmethod
    def load(cls, arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> "Config":
        """Read flags, then the environment. Raises ConfigError; only `--help` ends the program."""
        given = _from_environment(environ) | {
            name: value for name, value in vars(_parser().parse_args(list(arguments))).items() if value is not MISSING
        }
        if "SPACE_ID" in environ:  # a Space is public by nature, and its container decides where to listen
            given = {"public": True, "host": environ.get("GRADIO_SERVER_NAME", "0.0.0.0")} | given
        return cls(**given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]}. `--help` lists the flags.")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parser() -> _Parser:
    parser = _Parser(description="A chat page that streams a local language model.", allow_abbrev=False)
    for item in fields(Config):
        help = f"{item.metadata['help']} (default: {item.default}, environment: {PREFIX}{item.name.upper()})"
        if isinstance(item.default, bool):
            parser.add_argument(_option(item.name), action=argparse.BooleanOptionalAction, default=MISSING, help=help)
        else:
            parser.add_argument(
                _option(item.name), type=_reader(item.name), default=MISSING, help=help, metavar=item.name.upper()
            )
    return parser


def _reader(name: str) -> Any:
    return {"port": int, "max_new_tokens": int, "auth_file": Path, "cache_dir": Path}.get(name, str)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {PREFIX + item.name.upper(): item for item in fields(Config)}
    given: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        if variable not in known:
            raise ConfigError(f"There is no setting {variable}. `--help` lists the flags and their variables.")
        item = known[variable]
        try:
            given[item.name] = _boolean(text) if isinstance(item.default, bool) else _reader(item.name)(text)
        except ValueError as error:
            raise ConfigError(f"{variable} is {text!r}, which cannot be read as its kind of value.") from error
    return given


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
