"""The private names of PyTorch: in one file, each once, with its version and purpose."""

import re
from collections import Counter
from pathlib import Path

import pytest

import safeops
from private_names import FILE, described, is_private, page, private_names

HOUSE = Path(safeops.__file__).parent
OTHERS = [file for file in HOUSE.rglob("*.py") if "torch" in file.parts and file != FILE]
PAGE = Path(__file__).parents[2] / "docs/explain/masked-autodiff.md"


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


def test_the_page_names_private_names_that_are_used():
    """The list for readers names no more than the file has, and the page has all of these."""
    source = FILE.read_text()
    listed = PAGE.read_text().partition("**Private names of PyTorch**")[2].partition("\n## ")[0]
    named = {part for name in re.findall(r"`([\w.]+)`", listed) for part in name.split(".")}
    parts = {part for row in described(source) for part in row.name.split(".")}

    assert {name for name in named if is_private(name)} - parts == set()
    assert all(row.name in page() for row in described(source))
