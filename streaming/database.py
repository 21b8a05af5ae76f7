"""The file that conversations are kept in: one process at a time has it, and nobody but its user can read it.

Knows what a file can suffer, not what is in it. `open` is for the one thread that writes; any thread may `read`.
"""

import json
import logging
import os
import queue
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from streaming import schema
from streaming.errors import ConfigError, StreamingError

PRAGMAS: tuple[str, ...] = ("foreign_keys = ON", "synchronous = FULL", "journal_size_limit = 67108864")
CHECK_EVERY_S = 7 * 24 * 3600.0  # all of a file, if it was closed well each time
LOCKED_S = 2.0  # how long to wait for somebody else's lock on the file
LOG = logging.getLogger(__name__)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class InUse(ConfigError):
    """Another process has the conversations open."""


class Unreadable(StreamingError):
    """The file does not let itself be read right now."""


class Database:
    """`notice` says what had to be done to the file, in words for everybody: only the log knows folders."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chats.db"
        self.notice = ""
        self._holder = folder / "chats.holder"
        self._as_left = folder / "chats.closed"  # how the file was when it was last closed
        self._checked_at = 0.0
        self._lock = FileLock(folder / "chats.lock", timeout=0, mode=0o600, thread_local=False)
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._ready = False

    def open(self) -> sqlite3.Connection:
        """The connection that writes, in autocommit mode. The first time the file is locked, checked and brought to
        today's form. Raises InUse, schema.TooNew, OSError or sqlite3.Error."""
        if self._ready:
            return self.connect()
        self._take()
        try:
            connection = self._checked()
            try:
                schema.migrate(connection)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            self._lock.release()
            raise
        self._ready = True
        return connection

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection | None]:
        """A connection to read with, or none as long as there is no file. Raises Unreadable."""
        if not self._ready:
            yield None
            return
        connection = None
        try:
            try:
                connection = self._readers.get_nowait()
            except queue.Empty:
                connection = self.connect()
                connection.execute("PRAGMA query_only = ON")
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise Unreadable(f"Your conversations cannot be read right now: {error}.") from error
            raise
        self._readers.put(connection)

    def close(self) -> None:
        """Let others have the file. Whoever has `open`ed it closes that connection first."""
        while not self._readers.empty():
            self._readers.get_nowait().close()
        try:
            if self._ready:
                self._as_left.write_text(json.dumps([*self._look(), self._checked_at]), encoding="utf-8")
        except OSError as error:
            LOG.warning("All of the file will be looked at when it is opened next: %s", error)
        self._ready = False
        self._lock.release()

    def _take(self) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout as error:
            who = self._holder.read_text(encoding="utf-8").strip() if self._holder.is_file() else "unknown"
            raise InUse(
                f"The conversations in {folder} are in use by a running app (process {who}). End that one, or choose "
                "another --data-dir, or keep nothing with --no-history."
            ) from error
        try:
            self._holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise

    def _checked(self) -> sqlite3.Connection:
        try:
            return self._whole()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                raise
        aside = self.path.with_name(f"chats-damaged-{time.strftime('%Y%m%d-%H%M%S')}.db")
        for suffix in ("-wal", "-shm", ""):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        LOG.warning("The file with the conversations was damaged. It is kept as %s, and a new one begun.", aside)
        self.notice = (
            "The file with the conversations was damaged, and a new one has been begun: earlier ones are not here. "
            "Nothing is thrown away; whoever runs this app finds the damaged file beside the new one."
        )
        return self._whole()

    def _whole(self) -> sqlite3.Connection:
        connection = self.connect()
        try:
            found = self._look_through(connection)
            if found != "ok" or not schema.is_ours(connection):
                damaged = sqlite3.DatabaseError(found)
                damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damaged
            connection.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _look_through(self, connection: sqlite3.Connection) -> str:
        """All of it if anything may have happened to it: it was not closed, or looks different since, or it is long
        ago. It takes seconds with a gigabyte; else the list of conversations stands for the rest."""
        size, changed, checked_at = self._left()
        self._as_left.unlink(missing_ok=True)
        if [size, changed] == self._look() and time.time() - checked_at < CHECK_EVERY_S:
            self._checked_at = checked_at
            (found,) = connection.execute("PRAGMA quick_check('conversations')").fetchone()
        else:
            self._checked_at = time.time()
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return str(found)

    def _left(self) -> tuple[int, int, float]:
        """The file's size and time when it was last closed, and when all of it was last looked at."""
        try:
            size, changed, checked_at = json.loads(self._as_left.read_text(encoding="utf-8"))
            return int(size), int(changed), float(checked_at)
        except (FileNotFoundError, ValueError, TypeError):  # it was not closed, or nobody knows how
            return 0, 0, 0.0

    def _look(self) -> list[int]:
        found = self.path.stat()
        return [found.st_size, found.st_mtime_ns]

    def connect(self) -> sqlite3.Connection:
        """One more connection to the file, in autocommit mode."""
        with closing(os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))):  # with these rights, if it is new
            pass
        connection = sqlite3.connect(self.path, timeout=LOCKED_S, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            for pragma in PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection


def is_trouble_with_the_file(error: Exception) -> bool:
    """Whether nothing could be saved just now, whatever it is."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, OSError | sqlite3.OperationalError | StreamingError) or code in _DAMAGED


def in_words(error: Exception) -> str:
    """Why nothing is being saved."""
    if isinstance(error, StreamingError):
        return f"Nothing is being saved: {error}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    reasons = {
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_READONLY: "the file may not be written",
        sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
        sqlite3.SQLITE_BUSY: "another program holds the file",
        sqlite3.SQLITE_LOCKED: "another program holds the file",
        sqlite3.SQLITE_CORRUPT: "the file is damaged (start the app again: it keeps the file and begins a new one)",
        sqlite3.SQLITE_NOTADB: "the file is damaged (start the app again: it keeps the file and begins a new one)",
    }
    reason = reasons.get(code) or getattr(error, "strerror", None) or str(error)
    return f"Nothing is being saved: {reason}. The chat goes on, and all of it is saved as soon as that is possible."
