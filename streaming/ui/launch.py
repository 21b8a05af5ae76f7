"""From settings to a running server: engine, store, chats, page. `python app.py` and `python -m streaming serve`."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import gradio as gr
from starlette.applications import Starlette
from starlette.middleware import Middleware

from streaming.allowance import Allowance
from streaming.api import Access, CrossOrigin, MeteredEngine, Metrics, SafeHeaders, routes
from streaming.chats import Chats
from streaming.config import Config, offers_hub_login, on_space, on_zero_gpu
from streaming.engines import Engine, open_engine
from streaming.errors import ConfigError
from streaming.passwords import PasswordFile
from streaming.picker import Picker
from streaming.store import Store
from streaming.ui import assets
from streaming.ui.page import build_page
from streaming.ui.race import add_race
from streaming.ui.theme import theme

FAVICON = assets.FOLDER / "favicon.png"
HEAD = '<meta name="color-scheme" content="light dark">'


@dataclass(frozen=True, slots=True)
class App:
    """The parts of one app, wired and not yet served."""

    config: Config
    engine: Engine
    page: gr.Blocks
    metrics: Metrics = field(default_factory=Metrics)
    store: Store | None = None
    picker: Picker | None = None

    def launch(self, *, block: bool = True) -> None:
        """Start the engine and serve the page and the API; with `block`, until Ctrl-C. Raises ConfigError if the
        address cannot be had."""
        self.engine.start()
        if on_zero_gpu():
            self.engine.wait_ready()  # what is to go onto a GPU is looked for when the page starts, and never again
        try:
            self._serve()
        except OSError as error:
            self.close()
            raise ConfigError(
                f"Port {self.config.port} of {self.config.host} cannot be had: is the app running already? "
                "Choose another with --port."
            ) from error
        if self.store is not None and (told := self.store.notice or self.store.unsaved):
            print(told, flush=True)
        print(f"Open {self.page.local_url}", flush=True)
        if self.config.share:
            print(_share_line(self.page.share_url), flush=True)
        if block:
            try:
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
            finally:
                self.close()

    def close(self) -> None:
        """End what is being fetched and the answers under way, then the serving, which waits for them; save what there
        is."""
        if self.picker is not None:
            self.picker.close()
        self.engine.close()
        self.page.close(verbose=False)
        if self.store is not None:
            self.store.close()

    def _serve(self) -> None:
        passwords = PasswordFile.read(self.config.auth_file) if self.config.auth_file else None
        self.page.queue(max_size=256).launch(
            server_name=self.config.host,
            server_port=self.config.port,
            share=self.config.share,
            auth=passwords.verify if passwords else None,
            app_kwargs={
                "routes": routes(self.engine, access=Access.of(self.config), metrics=self.metrics),
                "middleware": [Middleware(SafeHeaders, framed=self.config.public, of_space=on_space())],
                "lifespan": self._around_gradio,
            },
            favicon_path=FAVICON,
            allowed_paths=[str(FAVICON)],  # with none named, Gradio opens what GRADIO_ALLOWED_PATHS names to everybody
            theme=theme(),
            css_paths=assets.FOLDER / "page.css",
            head=HEAD + "".join(map(assets.style, ("side", "models", "race"))),
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            state_session_capacity=200,
            max_threads=40,
            quiet=True,
            prevent_thread_lock=True,
        )

    @asynccontextmanager
    async def _around_gradio(self, app: Starlette) -> AsyncIterator[None]:
        """Before the first request: go around the middleware that Gradio puts around everything given to it."""
        assert app.middleware_stack is not None  # made for this very call
        app.middleware_stack = CrossOrigin(app.middleware_stack, self.config.cors_origins)
        yield


def _share_line(url: str | None) -> str:
    if url:
        return f"Public link: {url}"
    return "There is no public link: Gradio's share service could not be reached. The local page works all the same."


def build_app(config: Config) -> App:
    """All parts, wired. Opens the conversations; raises ConfigError if another process has them."""
    metrics = Metrics()
    engine = MeteredEngine(open_engine(config), metrics)
    store = Store(config.history_dir) if config.history_dir is not None else None
    allowance = Allowance(*config.limits)
    chats = Chats(engine, store, most_runs=config.max_runs_per_user, allowance=allowance)
    picker = Picker(engine, config)
    secret = store.secret("browser") if store is not None else None
    page = build_page(chats, engine, picker, secret=secret, hub_login=offers_hub_login())
    add_race(page, engine, allowance, secret=secret)
    return App(config, engine, page, metrics, store, picker)


def serve(config: Config) -> None:
    build_app(config).launch()
