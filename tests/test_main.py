"""`python -m streaming`: the list of commands, what they print and how they end."""

import io
import sys
from pathlib import Path

import pytest

from streaming import models, passwords
from streaming.__main__ import main


def test_without_a_command_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m streaming COMMAND")


@pytest.mark.parametrize("flag", ["-h", "--help", "help"])
def test_help_goes_to_the_output(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m streaming COMMAND")


@pytest.mark.parametrize("arguments", [["chta"], ["password"], ["password", "a", "b"]])
def test_an_unknown_command_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"There is no command '{' '.join(arguments)}'.\nusage:")


@pytest.mark.parametrize("command", ["chat", "serve", "models"])
def test_a_wrong_flag_is_an_error_of_the_command_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--modle", "x"]) == 2
    assert capsys.readouterr().err == "There is no flag --modle. Did you mean --model? `--help` lists them.\n"


def test_models_lists_what_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = [
        models.CachedModel("starter", tmp_path / "starter", 538_000_000),
        models.CachedModel("org/[name]", tmp_path / "org", 3_100_000_000),
    ]
    monkeypatch.setattr(models, "cached_models", lambda cache_dir: found if cache_dir == tmp_path else [])
    assert main(["models", "--cache-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"starter       538 MB  {tmp_path}/starter",
        f"org/[name]    3.1 GB  {tmp_path}/org",
    ]
    assert main(["models"]) == 0
    assert "No model is on this disk yet" in capsys.readouterr().out


def test_password_prints_a_line_that_the_file_can_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("s3cret\n"))
    assert main(["password", "ada"]) == 0
    line = capsys.readouterr().out
    assert "s3cret" not in line
    path = tmp_path / "logins.txt"
    path.write_text(line)
    assert passwords.PasswordFile.read(path).matches("ada", "s3cret")


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_typed_password_is_asked_for_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["s3cret", "s3cert"])
    monkeypatch.setattr(sys, "stdin", Keyboard())
    monkeypatch.setattr("streaming.__main__.getpass", lambda prompt, stream: next(typed))
    assert main(["password", "ada"]) == 2
    assert capsys.readouterr() == ("", "The two passwords differ.\n")


def test_ctrl_c_ends_as_a_shell_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "cached_models", interrupted)
    assert main(["models"]) == 130
