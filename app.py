"""The app: settings, then engine, page and launch. `demo` is the page, for a Space and for tools that look for it.

Importing this file reads the environment only and loads neither torch nor a model: the engine starts with the launch.
"""

import sys

from streaming.config import Config
from streaming.errors import StreamingError
from streaming.ui.launch import App, build_app


def main() -> App:
    """Read the command line; say in one line what is wrong with it, if anything is."""
    try:
        return build_app(Config.load(sys.argv[1:]))
    except StreamingError as error:
        sys.exit(f"app.py: {error}")


app = main() if __name__ == "__main__" else build_app(Config.load())
demo = app.page

if __name__ == "__main__":
    app.launch()
