"""What the page Stability promises: deprecations, one version, and checks that a forge can run."""

import re
import warnings
from pathlib import Path

import pytest

import safeops
from safeops._core.deprecation import deprecated

ROOT = Path(__file__).parents[2]


@deprecated("0.2", "safe_rsqrt(x)")
def old(x, /, *, fill_value=0):
    """Return a pair of what is given."""
    return x, fill_value


def test_a_deprecated_function_warns_at_the_line_of_the_caller():
    """The warning names the release in which the name goes, the way out, and the user's file."""
    said = "old is deprecated since safeops 0.2 and goes in 0.4; use safe_rsqrt(x)"

    with pytest.warns(DeprecationWarning, match=re.escape(said)) as caught:
        old(1)

    assert [warning.filename for warning in caught] == [__file__]


def test_a_deprecated_function_works_as_before():
    """Name, docstring, arguments and result stay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert old(1, fill_value=2) == (1, 2)

    assert (old.__name__, old.__doc__) == ("old", "Return a pair of what is given.")


def test_the_version_stands_in_one_place():
    """No other file at the top repeats it: what cites or builds the package asks for it."""
    files = ("CITATION.cff", "pyproject.toml", "README.md", "SECURITY.md", "docs/conf.py")
    version = re.compile(rf"(?<!=)\b{re.escape(safeops.__version__)}\b")

    assert not [name for name in files if version.search((ROOT / name).read_text())]


def test_the_workflow_calls_nox_and_nothing_else():
    """Each command of the workflow is one of nox, and each session in it is one of the noxfile."""
    text = (ROOT / ".github/workflows/checks.yml").read_text()
    noxfile, project = ((ROOT / name).read_text() for name in ("noxfile.py", "pyproject.toml"))
    commands = re.findall(r"^ *(?:- )?run: (.*)$", text, re.MULTILINE)
    sessions = re.findall(r"^ *- ([a-z-]+)$", text, re.MULTILINE)
    frameworks = {
        f"tests-{name}" for name in re.findall(r"^backend-([\w-]+) =", project, re.MULTILINE)
    }

    assert all(re.fullmatch(r"python -m (nox .*|pip install nox)", line) for line in commands)
    assert frameworks <= {*sessions}
    others = {*sessions} - frameworks
    assert all(re.search(rf"^def {name}\(session", noxfile, re.MULTILINE) for name in others)
