"""What goes in comes out, and a mistake is an error: for mypy, and for pyright if it is there."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from private_names import HOUSE

pytestmark = pytest.mark.only("numpy")
PROGRAM = Path(__file__).with_name("typed_program.py")
MISTAKES = {i for i, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong" in line}
CONFIGURATION = """
[tool.mypy]
strict = true
[[tool.mypy.overrides]]
module = ["array_api_compat.*", "dask.*", "jax.*", "keras.*", "scipy.*", "tensorflow.*", "torch.*"]
follow_imports = "skip"
ignore_missing_imports = true
[tool.pyright]
typeCheckingMode = "strict"
extraPaths = ["{}"]
"""


@pytest.fixture
def check(tmp_path):
    """Run a checker over the program; return the lines of its errors, and all that it says."""
    # An installed package is found by itself, and mypy refuses its folder in the path.
    path = {} if HOUSE.parent.name == "site-packages" else {"MYPYPATH": str(HOUSE.parent)}
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION.format(HOUSE.parent.as_posix()))
    shutil.copy(PROGRAM, tmp_path)

    def checked(*command):
        done = subprocess.run(
            [*command, PROGRAM.name],
            cwd=tmp_path,
            env=os.environ | path,
            capture_output=True,
            text=True,
            check=False,
        )
        said = re.findall(rf"{PROGRAM.name}:(\d+)[:\d]* ?-? error", done.stdout)
        return set(map(int, said)), done.stdout + done.stderr

    return checked


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is in the group `test`")
def test_mypy_sees_what_a_user_writes(check):
    """`mypy --strict` has an error in each line with a mistake, and in no other."""
    assert check(sys.executable, "-m", "mypy")[0] == MISTAKES


@pytest.mark.skipif(None in map(shutil.which, ("pyright", "node")), reason="pyright needs Node.js")
def test_pyright_sees_what_a_user_writes(check):
    """`pyright` in strict mode has an error in each line with a mistake, and in no other."""
    _, said = check("pyright", "--version")
    if "pyright 1" not in said:
        pytest.skip("pyright downloads its program at its first run, and could not")

    lines, said = check("pyright", "--pythonpath", sys.executable)

    assert lines == MISTAKES, said
