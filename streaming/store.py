"""Conversations on the disk: one thread writes what it is given, whoever asks reads.

`put` returns at once and never fails: what cannot be saved stays in memory, `unsaved` says why, and it is tried again
until it is saved. The text of an answer under way is fetched from whoever `follow`s it, twice a second. Knows nothing
of engines, runs and pages.
"""

import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from streaming import reading, saving
from streaming.conversation import Conversation
from streaming.database import Database, InUse, in_words, is_trouble_with_the_file
from streaming.listing import Entry
from streaming.messages import is_unicode
from streaming.saving import Change
from streaming.schema import TooNew

FLUSH_EVERY_S = 0.5  # what a crash can take of an answer
RETRY_EVERY_S = 1.0
TIDY_EVERY_S = 3_600.0
LOG = logging.getLogger(__name__)


class Store:
    """Raises InUse or TooNew when it is made; any other trouble with the disk is told by `unsaved`."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder)
        self._news = threading.Condition()
        self._pending: dict[str, Change] = {}  # by conversation
        self._under_way: dict[str, Change] = {}  # what is being written
        self._followed: dict[str, Callable[[], None]] = {}
        self._unsaved = ""
        self._closing = False
        self._secrets: dict[str, str] = {}
        self._secrets_lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None  # the writing thread's own, once that has begun
        self._begun = False  # whether the answers of an earlier process have been looked after
        self._drawn = self._tidied = -TIDY_EVERY_S
        try:
            self._open()
        except (InUse, TooNew):
            raise
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    @property
    def unsaved(self) -> str:
        """Why nothing is being saved, in words for a person; empty, if it is."""
        return self._unsaved

    @property
    def notice(self) -> str:
        """What had to be done to the file; empty, if nothing had."""
        return self._database.notice

    # -- writing

    def put(self, change: Change) -> None:
        """Have this saved, after all that was put before."""
        with self._news:
            self._pending[change.conversation.id] = change.after(self._pending.get(change.conversation.id))
            self._news.notify_all()

    def is_saved(self, conversation_id: str) -> bool:
        """Whether all that was put of a conversation is on the disk."""
        with self._news:
            return conversation_id not in self._pending and conversation_id not in self._under_way

    def follow(self, conversation_id: str, draw: Callable[[], None]) -> None:
        """Call `draw` twice a second, until `unfollow`: it puts what there is of an answer under way."""
        with self._news:
            self._followed[conversation_id] = draw
            self._news.notify_all()

    def unfollow(self, conversation_id: str) -> None:
        with self._news:
            self._followed.pop(conversation_id, None)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was put is on the disk. Never on an event loop."""
        with self._news:
            return self._news.wait_for(lambda: not self._pending and not self._under_way, timeout)

    def close(self) -> None:
        """Save what there is, once, and let others have the file. Idempotent."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join()

    # -- reading; the names are those of reading.py

    def load(self, owner: str, conversation_id: str) -> Conversation | None:
        if not is_unicode(owner + conversation_id):
            return None
        with self._database.read() as connection:
            return reading.load(connection, owner, conversation_id) if connection is not None else None

    def ids(self, owner: str) -> list[str]:
        with self._database.read() as connection:
            return reading.ids(connection, owner) if connection is not None and is_unicode(owner) else []

    def entries(self, owner: str, query: str, limit: int) -> list[Entry]:
        """The first lines of the owner's list, or of what a query finds."""
        with self._database.read() as connection:
            if connection is None or not is_unicode(owner):
                return []
            if query.strip():
                return reading.search(connection, owner, query, limit)
            return reading.entries(connection, owner, limit)

    def secret(self, name: str) -> str:
        """32 random bytes as text, the same whenever this file is opened. Never on an event loop."""
        with self._secrets_lock:
            if name not in self._secrets:
                self._secrets[name] = self._kept_secret(name, secrets.token_hex(32))
            return self._secrets[name]

    def _kept_secret(self, name: str, fresh: str) -> str:
        try:
            with closing(self._database.connect()) as connection:
                connection.execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", (name, fresh))
                row = connection.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
                return str(row["value"])
        except (sqlite3.Error, OSError) as error:
            LOG.warning("A secret could not be kept: browsers are strangers after the next start. %s", error)
            return fresh

    # -- the thread that writes

    def _work(self) -> None:
        while True:
            closing = self._wait()
            self._draw(closing)
            self._write()
            if closing:
                if self._pending:
                    LOG.error("What was said last is lost. %s", self._unsaved)
                self._disconnect()
                self._database.close()
                return

    def _wait(self) -> bool:
        """Until there may be something to do. Says whether it is the last time."""
        with self._news:
            if self._unsaved:
                self._news.wait_for(lambda: self._closing, RETRY_EVERY_S)
            elif not self._pending and not self._closing:
                self._news.wait(FLUSH_EVERY_S if self._followed else TIDY_EVERY_S)
            return self._closing

    def _draw(self, closing: bool) -> None:
        now = time.monotonic()
        if not closing and now - self._drawn < FLUSH_EVERY_S:
            return
        self._drawn = now
        with self._news:
            followed = list(self._followed.values())
        for draw in followed:
            draw()

    def _write(self) -> None:
        with self._news:
            self._under_way, self._pending = self._pending, {}
        failed = self._save(list(self._under_way.values()))
        with self._news:
            earlier = {change.conversation.id: change for change in failed}
            later = {name: change.after(earlier.get(name)) for name, change in self._pending.items()}
            self._pending = earlier | later
            self._under_way = {}
            self._news.notify_all()

    def _save(self, changes: list[Change]) -> list[Change]:
        """Returns what could not be saved."""
        try:
            connection = self._open()
            if changes:
                saving.save(connection, changes)
            self._tidy(connection)
        except Exception as error:  # this thread has to outlive whatever happens
            self._disconnect()
            if len(changes) > 1 and not is_trouble_with_the_file(error):
                return self._save_apart(changes, error)
            self._give_up(error)
            return changes
        self._unsaved = ""
        return []

    def _save_apart(self, changes: list[Change], error: Exception) -> list[Change]:
        """Something is wrong with one of these: it must not keep the others from being saved."""
        failed = [change for change in changes if self._save([change])]
        if failed:
            self._give_up(error)
        return failed

    def _give_up(self, error: Exception) -> None:
        words = in_words(error)
        if words != self._unsaved:
            LOG.warning("%s", words, exc_info=error)
        self._unsaved = words

    def _tidy(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() - self._tidied >= TIDY_EVERY_S:
            self._tidied = time.monotonic()
            saving.empty_bin(connection, time.time())

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = self._database.open()
            try:
                if not self._begun:
                    saving.interrupt(connection)
            except BaseException:
                connection.close()
                raise
            self._begun, self._connection = True, connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
