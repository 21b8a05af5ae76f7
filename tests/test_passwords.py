"""Logins: what a file may hold, who gets in, and that hashing keeps off the event loop."""

import asyncio
import inspect
import threading
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.passwords import Hash, PasswordFile, entry

QUICK = str(Hash(b"salt", bytes(32), n=2**10, r=1, p=1))


def written(folder: Path, *lines: str) -> Path:
    path = folder / "users.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_who_has_an_entry_gets_in(tmp_path: Path) -> None:
    logins = PasswordFile.read(
        written(tmp_path, "# the team", "", entry("ada", "pass:word"), entry("Grace Hopper", "x"))
    )
    assert set(logins.users) == {"ada", "Grace Hopper"}
    assert logins.matches("ada", "pass:word")
    assert logins.matches("Grace Hopper", "x")
    assert not logins.matches("ada", "x")
    assert not logins.matches("ada", "")
    assert not logins.matches("Ada", "pass:word")
    assert not logins.matches("nobody", "x")


def test_the_decoy_of_unknown_users_has_no_password() -> None:
    assert not any(PasswordFile({}).matches("nobody", guess) for guess in ("", "decoy", "nobody"))


def test_an_unknown_user_costs_a_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that answers faster for names that do not exist tells which names do."""
    costs: list[tuple[int, int, int]] = []

    def matches(found: Hash, _: str) -> bool:
        costs.append((found.n, found.r, found.p))
        return False

    monkeypatch.setattr(Hash, "matches", matches)
    logins = PasswordFile({"ada": Hash.of("x")})
    assert not logins.matches("ada", "wrong")
    assert not logins.matches("nobody", "wrong")
    assert len(costs) == 2
    assert costs[0] == costs[1]


def test_two_entries_of_one_password_differ() -> None:
    assert entry("ada", "x") != entry("ada", "x")


def test_a_letter_typed_as_two_code_points_is_the_same_letter() -> None:
    assert Hash.of("u\N{COMBINING DIAERESIS}ber").matches("über")


def test_a_hash_is_read_as_it_was_written() -> None:
    made = Hash.of("x")
    assert Hash.parse(str(made)) == made


@pytest.mark.parametrize("line", ["ada:secret", "ada:", "secret", ":secret", "ada:$2b$12$abc"])
def test_a_plain_password_is_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"Line 2 of .*`python -m streaming password USER`") as refused:
        PasswordFile.read(written(tmp_path, f"bob:{QUICK}", line))
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
        PasswordFile.read(written(tmp_path, f"ada:{text}"))


def test_every_hash_that_is_read_can_be_computed() -> None:
    heaviest = Hash.parse("scrypt$131072$8$1$c2FsdA==$" + "A" * 43 + "=")
    assert not heaviest.matches("x")


def test_a_user_has_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ada' for the second time"):
        PasswordFile.read(written(tmp_path, f"ada:{QUICK}", f"ada:{QUICK}"))


def test_a_file_without_logins_lets_nobody_in_by_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no login"):
        PasswordFile.read(written(tmp_path, "# nobody yet"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        PasswordFile.read(tmp_path / "none.txt")
    assert isinstance(refused.value.__cause__, FileNotFoundError)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        PasswordFile.read(path)


@pytest.mark.parametrize("user", ["", " ada", "a:b", "a\nb", "#ada"])
def test_a_name_that_no_login_could_match_is_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="user name"):
        entry(user, "x")


def test_an_empty_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        entry("ada", "")


def test_hashing_keeps_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio awaits `auth` on its event loop: a fifth of a second of hashing there would stall every open answer."""
    threads: list[int] = []

    def matches(*_: object) -> bool:
        threads.append(threading.get_ident())
        return True

    monkeypatch.setattr(Hash, "matches", matches)
    assert asyncio.run(PasswordFile({"ada": Hash(b"", b"")}).verify("ada", "x"))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_verify_is_what_gradio_awaits() -> None:
    """Gradio asks `inspect.iscoroutinefunction`, and calls anything else without awaiting it: all would be let in."""
    assert inspect.iscoroutinefunction(PasswordFile({}).verify)
