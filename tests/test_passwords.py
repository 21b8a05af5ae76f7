"""Logins: what a file may hold, who gets in, and that hashing keeps off the event loop."""

import asyncio
import threading
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.passwords import Hash, entry, load, login, verify

QUICK = str(Hash(b"salt", bytes(32), n=2**10, r=1, p=1))


def written(folder: Path, *lines: str) -> Path:
    path = folder / "users.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_who_has_an_entry_gets_in(tmp_path: Path) -> None:
    users = load(written(tmp_path, "# the team", "", entry("ada", "pass:word"), entry("Grace Hopper", "x")))
    assert set(users) == {"ada", "Grace Hopper"}
    assert verify(users, "ada", "pass:word")
    assert verify(users, "Grace Hopper", "x")
    assert not verify(users, "ada", "x")
    assert not verify(users, "ada", "")
    assert not verify(users, "Ada", "pass:word")
    assert not verify(users, "nobody", "x")


def test_the_decoy_of_unknown_users_has_no_password() -> None:
    assert not any(verify({}, "nobody", guess) for guess in ("", "decoy", "nobody"))


def test_an_unknown_user_costs_a_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that answers faster for names that do not exist tells which names do."""
    hashed: list[int] = []
    real = Hash.matches
    monkeypatch.setattr(Hash, "matches", lambda self, password: hashed.append(self.n) or real(self, password))
    users = {"ada": Hash.of("x")}
    verify(users, "ada", "wrong")
    verify(users, "nobody", "wrong")
    assert len(hashed) == 2
    assert hashed[0] == hashed[1]


def test_two_entries_of_one_password_differ() -> None:
    assert entry("ada", "x") != entry("ada", "x")


def test_a_letter_typed_as_two_code_points_is_the_same_letter() -> None:
    assert Hash.of("u\N{COMBINING DIAERESIS}ber").matches("über")


def test_a_hash_is_read_as_it_was_written() -> None:
    made = Hash.of("x")
    assert Hash.parse(str(made)) == made


@pytest.mark.parametrize("line", ["ada:secret", "ada:", "secret", ":secret", "ada:$2b$12$abc"])
def test_a_plain_password_is_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="Line 2 of .*`python -m streaming password USER`") as refused:
        load(written(tmp_path, f"bob:{QUICK}", line))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "scrypt$",
        "scrypt$x$8$1$c2FsdA==$" + "A" * 44,
        "scrypt$16384$8$1$not base64$" + "A" * 44,
        "scrypt$16384$8$1$c2FsdA==$AAAA",
        "scrypt$16384$8$1$$" + "A" * 44,
        "scrypt$16383$8$1$c2FsdA==$" + "A" * 44,
        "scrypt$2$8$1$c2FsdA==$" + "A" * 44,
        "scrypt$1073741824$8$1$c2FsdA==$" + "A" * 44,
        "scrypt$16384$0$1$c2FsdA==$" + "A" * 44,
        "scrypt$16384$8$-1$c2FsdA==$" + "A" * 44,
    ],
)
def test_a_damaged_line_is_found_at_the_start_not_at_a_login(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"Line 1 of .* is damaged"):
        load(written(tmp_path, f"ada:{text}"))


def test_every_hash_that_is_read_can_be_computed() -> None:
    heaviest = Hash.parse("scrypt$131072$8$1$c2FsdA==$" + "A" * 43 + "=")
    assert not heaviest.matches("x")


def test_a_user_has_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ada' for the second time"):
        load(written(tmp_path, f"ada:{QUICK}", f"ada:{QUICK}"))


def test_a_file_without_logins_lets_nobody_in_by_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no login"):
        load(written(tmp_path, "# nobody yet"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        load(tmp_path / "none.txt")
    assert isinstance(refused.value.__cause__, FileNotFoundError)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)


@pytest.mark.parametrize("user", ["", " ada", "a:b", "a\nb", "#ada"])
def test_a_name_that_no_login_could_match_is_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="user name"):
        entry(user, "x")


def test_an_empty_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        entry("ada", "")


def test_login_hashes_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio awaits `auth` on its event loop: a hash of a tenth of a second there would stall every open answer."""
    threads: list[int] = []
    monkeypatch.setattr(Hash, "matches", lambda self, password: threads.append(threading.get_ident()) or True)
    assert asyncio.run(login({"ada": Hash(b"", b"")})("ada", "x"))
    assert threads != [threading.get_ident()]


def test_login_is_what_gradio_awaits() -> None:
    assert asyncio.iscoroutinefunction(login({}))
