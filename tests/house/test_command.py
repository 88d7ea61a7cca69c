"""The command `safeops`: what a person at a terminal gets, and what a file or a machine gets."""

import io
import sys
import tomllib
from pathlib import Path
from threading import Event

import pytest

from safeops.__main__ import main
from safeops._cli import terminal

pytestmark = pytest.mark.only("numpy")
BAD = "import torch\ny = torch.where(x > 0, torch.log(x), 0.0)\n"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        """Say so."""
        return True


@pytest.fixture
def bad(tmp_path):
    """A file with one finding."""
    (tmp_path / "bad.py").write_text(BAD)
    return tmp_path / "bad.py"


def test_the_command_is_installed():
    """The package has the command `safeops`, which is `python -m safeops`."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert project["scripts"] == {"safeops": "safeops.__main__:run"}


@pytest.mark.parametrize(("argv", "name"), [("/bin/safeops", "safeops"), ("x.py", "python -m")])
def test_help_names_the_command_that_was_typed(argv, name, monkeypatch, capsys):
    """The usage begins with `safeops` for the command, and `python -m safeops` for the module."""
    monkeypatch.setattr(sys, "argv", [argv])
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])

    assert capsys.readouterr().out.startswith(f"usage: {name}")


@pytest.mark.parametrize("command", ["recipe", "explain", "lint"])
def test_each_command_has_its_own_help(command, capsys):
    """Help of a command has its arguments, and the line that the list of commands has of it."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    said = capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "--help"])

    shown = capsys.readouterr().out
    assert command in said
    assert len(shown.splitlines()) > 10


def test_quiet_prints_findings_alone(bad, capsys):
    """With `--quiet` there is no summary, and the exit code is the same."""
    assert main(["lint", str(bad)]) == 1
    loud = capsys.readouterr()
    assert main(["lint", "--quiet", str(bad)]) == 1

    quiet = capsys.readouterr()
    assert (quiet.out, quiet.err) == (loud.out, "")
    assert loud.err.startswith("1 finding")


def test_colours_are_for_terminals(bad, capsys, monkeypatch):
    """Findings have colours on a terminal, none in a file, and none with NO_COLOR."""
    main(["lint", str(bad)])
    plain = capsys.readouterr().out
    assert "\x1b" not in plain

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    main(["lint", str(bad)])
    shown = sys.stdout.getvalue()
    assert "\x1b[31m  - " in shown
    assert "\x1b[32m  + " in shown

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    main(["lint", str(bad)])
    assert sys.stdout.getvalue() == plain


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("quiet", [False, True])
def test_long_work_says_how_far_it_is(stream, quiet, monkeypatch):
    """On a terminal a command that takes a while counts what is done, and clears the line."""
    times = iter(range(100))
    monkeypatch.setattr(terminal, "monotonic", lambda: next(times))
    monkeypatch.setattr(sys, "stderr", stream())

    assert list(terminal.followed(["a", "b", "c"], "{} of {}", quiet=quiet)) == ["a", "b", "c"]

    shown = sys.stderr.getvalue()
    assert ("\r2 of 3" in shown and shown.endswith("\r\x1b[K")) is (
        stream is Terminal and not quiet
    )
    assert bool(shown) is (stream is Terminal and not quiet)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("quiet", [False, True])
def test_a_long_script_says_how_far_it_is(stream, quiet, monkeypatch):
    """On a terminal a script that takes a while is counted, in whole lines beside its own."""
    told = Event()
    monkeypatch.setattr(terminal, "LONG", 0.001)
    monkeypatch.setattr(sys, "stderr", stream())
    is_told = stream is Terminal and not quiet

    with terminal.progress_line(lambda: told.set() or 3, "{} passes", quiet=quiet):
        assert told.wait(10 if is_told else 0.01) is is_told

    assert sys.stderr.getvalue().startswith("3 passes\n") is is_told
    assert bool(sys.stderr.getvalue()) is is_told


@pytest.mark.parametrize(("name", "title"), [("PyTorch", "PyTorch"), ("tf", "TensorFlow")])
def test_a_framework_has_its_other_names(name, title, capsys):
    """`--framework pytorch` and `tf` are what people say."""
    assert main(["recipe", "safe_log", "--framework", name]) == 0

    assert capsys.readouterr().out.startswith(f"# safe_log for {title}, without safeops.")
