"""`python -m streaming`: chat in the terminal, serve the page, list the models at hand, make a login.

Imports only what a command needs. Threading: none of its own.
"""

import os
import sys
from collections.abc import Sequence
from getpass import getpass

from streaming.config import Config
from streaming.disk import size_text
from streaming.errors import ConfigError, StreamingError

USAGE = """\
usage: python -m streaming COMMAND

  chat [flags]     talk to a model in the terminal
  serve [flags]    open the chat page, as `python app.py` does
  models [flags]   list the models that are on this disk
  password USER    ask for a password and print USER's line for --auth-file

`python -m streaming chat --help` lists the flags."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. An error is said in words: 1, or 2 where the command line is wrong."""
    try:
        return _run(arguments)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except StreamingError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at its exit
        return 1
    except KeyboardInterrupt:
        return 130  # what a shell expects of a program that Ctrl-C ended


def _run(arguments: Sequence[str]) -> int:
    match arguments:
        case ["chat", *flags]:
            from streaming.terminal import chat

            return chat(Config.load(flags, program="python -m streaming chat"))
        case ["serve", *flags]:
            from streaming.ui.launch import serve

            serve(Config.load(flags, program="python -m streaming serve"))
        case ["models", *flags]:
            _list_models(Config.load(flags, program="python -m streaming models"))
        case ["password", user]:
            _print_login(user)
        case ["-h" | "--help" | "help"]:
            print(USAGE)
        case []:
            raise ConfigError(USAGE)
        case _:
            raise ConfigError(f"There is no command {' '.join(arguments)!r}.\n{USAGE}")
    return 0


def _list_models(config: Config) -> None:
    from streaming.models import cached_models

    rows = [(model.name, size_text(model.size_bytes), model.path) for model in cached_models(config.cache_dir)]
    if not rows:
        print("No model is on this disk yet: `python -m streaming chat` fetches the starter model.")
        return
    width = max(len(name) for name, _, _ in rows)
    for name, size, path in rows:
        print(f"{name:<{width}}  {size:>8}  {path}")


def _print_login(user: str) -> None:
    from streaming.passwords import entry

    if not sys.stdin.isatty():
        print(entry(user, sys.stdin.readline().rstrip("\n")))
        return
    password = getpass(f"Password for {user}: ", sys.stderr)
    if getpass("The same again: ", sys.stderr) != password:
        raise ConfigError("The two passwords differ.")
    print(entry(user, password))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
