"""The private names of PyTorch: in one file, each once, with its version and purpose."""

from collections import Counter
from pathlib import Path

import pytest

import safeops
from private_names import FILE, described, is_private, page, private_names

HOUSE = Path(safeops.__file__).parent
OTHERS = [file for file in HOUSE.rglob("*.py") if "torch" in file.parts and file != FILE]


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


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: str(file.relative_to(HOUSE)))
def test_private_names_stand_in_one_file(file):
    """No other module for PyTorch takes a private name of it."""
    assert list(private_names(file.read_text())) == []


def test_each_private_name_is_described_once():
    """Each name of the file has a comment with a version and a purpose, and each comment a name."""
    source = FILE.read_text()
    names = [row.name for row in described(source)]
    parts = {part for name in names for part in name.split(".") if is_private(part)}
    last = Counter(name.split(".")[-1] for name in names)

    assert names
    assert set(last.values()) == {1}
    assert {name for name in private_names(source) if name not in parts} == set()
    assert [name for name in last if source.count(name) < 2] == []


def test_the_page_has_each_private_name():
    """The page for readers has each name that the file has."""
    assert all(row.name in page() for row in described(FILE.read_text()))
