"""The wheel and the source distribution: `nox -s package` builds them and runs these tests."""

import tarfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import safeops
from safeops import _recipes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(pytestconfig):
    """Return the folder with both files."""
    if not pytestconfig.getoption("package"):
        pytest.skip("needs what is built: nox -s package")
    return Path(pytestconfig.getoption("package"))


def wanted():
    """Return the files of the package, from its root."""
    files = (file for file in (ROOT / "safeops").rglob("*") if file.is_file())
    return {str(file.relative_to(ROOT)) for file in files if "__pycache__" not in file.parts}


def test_the_wheel_has_the_package_and_nothing_else(folder):
    """Each file of the package is in the wheel, recipes and `py.typed` too, and no test is."""
    (file,) = folder.glob("safeops-*.whl")
    with ZipFile(file) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        said = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(wheel.read(said))

    assert {"safeops/py.typed", "safeops/_recipes/safe_log.md"} <= names
    assert names == wanted()
    assert metadata["Version"] == safeops.__version__
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_source_distribution_builds_the_package(folder):
    """The source distribution has the package and what builds it, and no test."""
    (file,) = folder.glob("safeops-*.tar.gz")
    with tarfile.open(file) as source:
        names = {name.partition("/")[2] for name in source.getnames()}

    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert wanted() <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks", ".ci"))]


def test_what_is_installed_works():
    """Recipes and rules are found where pip put them."""
    assert "safe_log" in _recipes.names()
