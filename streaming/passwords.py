"""Logins from a file: one line a user, `name:scrypt$n$r$p$salt$hash`. A password itself is never written down.

Knows nothing of pages: `PasswordFile.verify` is a callable as Gradio's `auth` takes it.
Threading: hashing takes a tenth of a second on purpose, so it happens on a worker thread, never on the event loop.
"""

import asyncio
import hashlib
import hmac
import secrets
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from streaming.errors import ConfigError

SCHEME = "scrypt"
N, R, P = (
    2**14,
    8,
    5,
)  # 16 MiB for each login; among the settings that OWASP's cheat sheet on password storage recommends


@dataclass(frozen=True, slots=True)
class Hash:
    """A salted scrypt hash (RFC 7914), with the cost numbers that it was made with."""

    salt: bytes
    digest: bytes
    n: int = N
    r: int = R
    p: int = P

    @classmethod
    def of(cls, password: str) -> Self:
        salt = secrets.token_bytes(16)
        return cls(salt, _scrypt(password, salt, N, R, P, length=32))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str()` wrote. Raises ValueError for anything else."""
        scheme, n, r, p, salt, digest = text.split("$")
        found = cls(b64decode(salt, validate=True), b64decode(digest, validate=True), int(n), int(r), int(p))
        sane = 2**10 <= found.n <= 2**17 and found.n.bit_count() == 1 and 1 <= found.r <= 16 and 1 <= found.p <= 16
        if scheme != SCHEME or not found.salt or len(found.digest) < 16 or not sane:
            raise ValueError(text)
        return found

    def matches(self, password: str) -> bool:
        attempt = _scrypt(password, self.salt, self.n, self.r, self.p, length=len(self.digest))
        return hmac.compare_digest(attempt, self.digest)

    def __str__(self) -> str:
        salt, digest = b64encode(self.salt).decode(), b64encode(self.digest).decode()
        return "$".join([SCHEME, str(self.n), str(self.r), str(self.p), salt, digest])


def entry(user: str, password: str) -> str:
    """The line for the file. Raises ConfigError for a name or a password that a login could never match."""
    if user != user.strip() or not user or ":" in user or not user.isprintable() or user.startswith("#"):
        raise ConfigError("A user name is one word or more, without ':', and does not begin with '#' or a space.")
    if not password:
        raise ConfigError("The password is empty.")
    return f"{user}:{Hash.of(password)}"


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """Users and their hashes."""

    users: Mapping[str, Hash]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError that names the line which cannot be used; it never quotes it."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The file of logins, {path}, cannot be read: {error}") from error
        users: dict[str, Hash] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            user, _, text = line.strip().partition(":")
            where = f"Line {number} of {path}"
            if not user or not text.startswith(f"{SCHEME}$"):
                raise ConfigError(
                    f"{where} is not a hashed login. A password is not kept as plain text: "
                    f"have the line made by `python -m streaming password USER`."
                )
            if user in users:
                raise ConfigError(f"{where} names the user {user!r} for the second time.")
            try:
                users[user] = Hash.parse(text)
            except ValueError as error:
                raise ConfigError(
                    f"{where} is damaged. Have it made again by `python -m streaming password USER`."
                ) from error
        if not users:
            raise ConfigError(f"{path} holds no login. `python -m streaming password USER` makes one.")
        return cls(users)

    async def verify(self, user: str, password: str) -> bool:
        """Whether this is the user's password: what Gradio's `auth` awaits. Hashes on a worker thread."""
        return await asyncio.to_thread(self.matches, user, password)

    def matches(self, user: str, password: str) -> bool:
        """As `verify`, in this thread. It takes as long for a user who does not exist."""
        known = self.users.get(user)
        decoy = Hash(b"decoy", bytes(32))
        return (known or decoy).matches(password) and known is not None


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int, *, length: int) -> bytes:
    # The same letters can be typed as different code points: an ü on a Mac, and on Linux.
    secret = unicodedata.normalize("NFC", password).encode(errors="surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=2**29, dklen=length)
