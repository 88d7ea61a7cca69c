"""Rows and ways: what plain nox runs of the tests, and what each share of CI."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import rows

HERE = Path(__file__)
MODES = [("torch", "eager"), ("torch", "compile"), ("jax", "jit"), ("tensorflow", "xla")]


class Item(SimpleNamespace):
    """What is read of an item of pytest."""

    __hash__ = object.__hash__


def items_of(name, path=HERE, **marks):
    """Return the items of a test of 40 rows in four ways."""
    return [
        Item(
            name=f"{name}[{row}-{way}]",
            nodeid=f"{path}::{name}[{row}-{way}]",
            path=path,
            callspec=SimpleNamespace(params={"row": row, "way": way}),
            get_closest_marker=marks.get,
        )
        for row in map(str, range(40))
        for way in MODES
    ]


def pairs_of(share, items):
    """Return rows and ways that a share has."""
    return {
        (i.callspec.params["row"], i.callspec.params["way"]) for i, _ in rows.taken_by(share, items)
    }


def test_plain_nox_runs_each_row_in_one_way():
    """No row is left out, none runs twice, and each way has some."""
    found = pairs_of("none", items_of("test_it"))

    assert sorted(row for row, _ in found) == sorted(map(str, range(40)))
    assert {way for _, way in found} >= set(MODES[:2])


def test_seven_shares_are_all():
    """Each share has what plain nox has, and each other way is in one share."""
    items = items_of("test_it")
    plain = pairs_of("none", items)
    shares = [pairs_of(f"{k}/7", items) for k in range(1, 8)]
    others = Counter(pair for share in shares for pair in share - plain)

    assert all(share > plain for share in shares)
    assert set(others.values()) == {1}
    assert plain | others.keys() == pairs_of("all", items)
    assert len(pairs_of("all", items)) == 160


@pytest.mark.parametrize(
    ("path", "marks", "count"),
    [(HERE, {"whole": True}, 160), (rows.SLOW / "test_it.py", {}, 0)],
    ids=["whole", "slow"],
)
def test_what_is_not_drawn(path, marks, count):
    """What is marked `whole` runs in all its ways, and what is slow in none."""
    assert len(pairs_of("none", items_of("test_it", path, **marks))) == count


def test_what_one_process_runs_is_in_one_share():
    """Tests of a group, which read what one process made once, are not cut apart."""
    items = items_of("test_it", xdist_group=SimpleNamespace(args=("sweep",)))

    assert len({rows.share_of(way) for way in rows.taken_by("all", items)}) == 1


def test_what_concerns_no_framework_runs_beside_numpy():
    """A test without a framework, and without the mark `only`, runs in one process."""
    item = Item(get_closest_marker=lambda _: None)

    assert rows.beside(item) == ("numpy",)
