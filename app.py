"""The app: settings, then engine, store, page and launch. `demo` is the page, for tools that import this file.

Importing it reads the environment only and loads neither torch nor a model: the engine starts when somebody looks.
Nor does it touch the disk: the `demo` keeps conversations in memory, so that it can be looked at beside a running app.
"""

import sys
from dataclasses import replace

from streaming.config import Config
from streaming.errors import StreamingError
from streaming.ui.launch import build_app


def main() -> None:
    """Serve until Ctrl-C; say in one line what is in the way of that, if anything is."""
    try:
        build_app(Config.load(sys.argv[1:])).launch()
    except StreamingError as error:
        sys.exit(f"app.py: {error}")


if __name__ == "__main__":
    main()
else:
    demo = build_app(replace(Config.load(), no_history=True)).page
