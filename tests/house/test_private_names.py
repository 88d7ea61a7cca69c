"""The private names of a framework: in one file, each once, with its versions and purpose."""

from collections import Counter

import pytest

from private_names import (
    FILES,
    HOUSE,
    PrivateName,
    described,
    inner_names,
    is_private,
    page,
    private_names,
    taken_elsewhere,
)

OTHERS = {
    name: [file for file in HOUSE.rglob("*.py") if name in file.parts and file != own]
    for name, own in FILES.items()
}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("torch._C._f()", ["_f", "_C"]),
        ("from torch._decomp import x", ["_decomp"]),
        ("from torch.utils import _pytree", ["_pytree"]),
        ("import torch._dynamo.x", ["_dynamo"]),
        ("getattr(node, '_saved_x')", ["_saved_x"]),
        ("getattr(node, f'_saved_{x}')", ["_saved_"]),
        ("self._x = __file__; sys._getframe(); x.__name__; from torch.a import b", []),
    ],
)
def test_private_names_are_found(source, found):
    """A private name is found however it is taken."""
    assert list(private_names(source)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("eqn.params['jaxpr']", ["jaxpr"]),
        ("params.get('name', '')", ["name"]),
        ("'fill_value' in eqn.params", ["fill_value"]),
        ("eqn.source_info.traceback", ["traceback"]),
        ("def process_primitive(self): pass", ["process_primitive"]),
        ("params[key]; key in params; x.axes; x.shape", []),
    ],
)
def test_names_inside_of_jax_are_found(source, found):
    """A parameter, an attribute or a method is found however it is taken."""
    assert list(inner_names(source)) == found


@pytest.mark.parametrize("file", OTHERS["torch"], ids=lambda file: str(file.relative_to(HOUSE)))
def test_private_names_stand_in_one_file(file):
    """No other module for PyTorch takes a private name of it, or what stands in that file."""
    assert list(private_names(file.read_text())) == []
    assert list(taken_elsewhere(file.read_text(), "torch")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("BackwardCFunction.apply_boxed", ["apply_boxed"]),
        ("from torch.multiprocessing.reductions import StorageWeakRef", ["StorageWeakRef"]),
        ("getattr(x, 'apply_boxed')", ["apply_boxed"]),
        ("private.StorageWeakRef(x); x.apply(y); from safeops.a import StorageWeakRef", []),
    ],
)
def test_names_without_underscore_are_found(source, found):
    """A name that stands in the file is found, also if it looks like a public one."""
    assert list(taken_elsewhere(source, "torch")) == found


@pytest.mark.parametrize(
    "file", OTHERS["tensorflow"], ids=lambda file: str(file.relative_to(HOUSE))
)
def test_names_inside_of_tensorflow_stand_in_one_file(file):
    """No other module for TensorFlow takes a private name, or a scope of TensorFlow's formulas."""
    source = file.read_text()

    assert list(private_names(source, "tensorflow")) == []
    assert list(taken_elsewhere(source, "tensorflow")) == []
    assert "tensorflow.python" not in source
    assert "__internal__" not in source


# The program of a closed one is public, and has the name of a parameter.
OTHERS["jax"].remove(HOUSE / "_backends/jax/bodies.py")


@pytest.mark.parametrize("file", OTHERS["jax"], ids=lambda file: str(file.relative_to(HOUSE)))
def test_names_inside_of_jax_stand_in_one_file(file):
    """No other module for JAX takes a private name, or a name inside of programs and traces."""
    source = file.read_text()
    # Keras has no other door to its own state.
    taken = [name for name in private_names(source, "jax") if name != "_jax_state"]

    assert taken == []
    assert list(inner_names(source)) == []


@pytest.mark.parametrize("of", FILES)
def test_each_private_name_is_described_once(of):
    """Each name of the file has a comment with versions and a purpose, and each comment a name."""
    source = FILES[of].read_text()
    rows = list(described(source))
    parts = {part for row in rows for part in row.name.split(".") if is_private(part)}

    assert rows
    assert set(Counter(row.name for row in rows).values()) == {1}
    assert set(private_names(source, of)) - parts == set()
    last = (row.name.split(".")[-1] for row in rows)
    assert [name for name in last if source.count(name) < 2] == []


@pytest.mark.parametrize("of", FILES)
def test_the_page_has_each_private_name(of):
    """The page for readers has each name that the files have."""
    assert all(row.name in page() for row in described(FILES[of].read_text()))


@pytest.mark.parametrize(
    ("version", "installed", "holds"),
    [
        ("0.12", "0.13.1", True),
        ("from 0.11", "0.10.2", False),
        ("from 0.11", "0.11.0", True),
        ("before 0.11", "0.10.2", True),
        ("before 0.11", "0.11.0", False),
    ],
)
def test_versions_are_read(version, installed, holds):
    """What is said of versions is compared by their numbers."""
    assert PrivateName("x.y", version, "z").is_in(installed) is holds
