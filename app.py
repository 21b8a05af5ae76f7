"""The app: settings, then engine, page and launch. `demo` is the page, for tools that import this file.

Importing it reads the environment only and loads neither torch nor a model: the engine starts when somebody looks.
"""

import sys

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
    demo = build_app(Config.load()).page
