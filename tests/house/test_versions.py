"""A framework that is too old, or too new, is told of in one sentence."""

import re
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

import safeops
from safeops._cli import explain
from safeops._core.errors import gone, numbers, require


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("0.12.0.1", (0, 12, 0, 1)),
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.15.0a0+git1234", (2, 15, 0)),
        ("0.10.3.dev20260101", (0, 10, 3)),
        ("3.0.0rc1", (3, 0, 0)),
    ],
)
def test_a_version_is_its_leading_numbers(version, found):
    """What follows the release of a version does not count."""
    assert numbers(version) == found


@pytest.mark.parametrize("found", ["0.5.3", "0.7.99", "0.7.2.dev8"])
def test_a_version_below_the_floor(found):
    """The sentence names the layer, the floor, what was found, and what works."""
    with pytest.raises(ImportError) as caught:
        require("the layer", "JAX", found, "0.8", also="the rest works")

    assert (
        str(caught.value) == f"the layer needs JAX 0.8 or later and found {found}; the rest works"
    )


@pytest.mark.parametrize("found", ["0.8", "0.8.0", "0.10.2", "1.0", "0.8.0+local"])
def test_a_version_from_the_floor_on(found):
    """Versions are compared as numbers, and there is no upper bound."""
    assert require("the layer", "JAX", found, "0.8") is None


def test_a_sentence_without_an_addition():
    """It ends with the version that was found."""
    with pytest.raises(ImportError, match=r"^safeops needs JAX 0\.6 or later and found 0\.5\.3$"):
        require("safeops", "JAX", "0.5.3", "0.6")


def test_a_version_whose_inside_is_another():
    """The sentence names what was tested, what was found, and what is missing in it."""
    error = gone("the layer", "JAX", "0.99", "0.12", "'num_consts'")

    assert str(error) == (
        "the layer has been tested up to JAX 0.12 and found 0.99, whose inside has other names: "
        "'num_consts'"
    )


def test_a_script_runs_with_a_framework_that_is_too_old(monkeypatch, capsys):
    """`safeops explain` says that it does not watch it, and the import of the script succeeds."""

    def refuse(name):
        msg = f"{name} needs another version"
        raise ImportError(msg)

    monkeypatch.setattr(explain, "import_module", refuse)
    passes = []

    with ExitStack() as stack:
        explain.begin("jax", print, stack, passes)

    assert capsys.readouterr().err == "safeops.autodiff.jax needs another version\n"
    assert passes == []


def asked(folder):
    """Return the version that the modules of a folder ask for."""
    source = (Path(safeops.__file__).parent / folder / "__init__.py").read_text()
    (version,) = re.findall(r'^require\(.*__version__, "([\d.]+)"', source, flags=re.MULTILINE)
    return version


def test_the_floors_are_those_of_the_project():
    """What a layer asks for is what pip, the tests of the oldest versions and readers are told."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    groups, options = project["dependency-groups"], project["project"]["optional-dependencies"]
    programs = asked("autodiff/jax")

    assert options["jax"] == [f"jax>={asked('_backends/jax')}"]
    assert groups["oldest-jax-programs"][0] == f"jax=={programs}.0"
    assert f"need JAX {programs} or later" in (root / "docs/install.md").read_text()


def test_the_floors_of_pytorch_and_tensorflow_are_those_of_the_project():
    """What their layers ask for is what pip, the tests of floors and readers are told."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    groups, options = project["dependency-groups"], project["project"]["optional-dependencies"]
    told = (root / "docs/install.md").read_text()

    for name, title, wheel in (
        ("torch", "PyTorch", "torch"),
        ("tensorflow", "TensorFlow", "tensorflow-cpu"),
    ):
        operations = floor_in(f"_backends/{name}/private.py")
        programs = floor_in(f"autodiff/{name}/__init__.py")
        of_programs = f"oldest-{name}-programs" if programs != operations else f"oldest-{name}"

        assert options[name] == [f"{name}>={operations}"]
        assert groups[f"oldest-{name}"][0] == f"{wheel}=={operations}.0"
        assert groups[of_programs][0] == f"{wheel}=={programs}.0"
        assert f"{title} {programs} or later" in told


def floor_in(file):
    """Return the version that a module asks for."""
    source = (Path(safeops.__file__).parent / file).read_text()
    (version,) = re.findall(r'^require\(.*FOUND, "([\d.]+)"', source, flags=re.MULTILINE)
    return version
