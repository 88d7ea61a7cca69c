"""
Which tests a run takes: each has a row and ways, and a way is what repeats the fact of a row.

A parameter of `WAYS` gives a way; all others make the row. ``--share=none``, plain nox, runs each
row in one way; ``--share=3/7``, CI, these and the third seventh of all ways; ``--share=all`` all.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path

from frameworks import FRAMEWORKS

# A part is one of several of a long test. A name may have a word before: autodiff_framework.
WAYS = ("framework", "way", "mode", "dtype", "layout", "part")
# These compile, which takes ten times as long: a way that draws 0.8 has 0.8**10 = 0.1 instead.
COMPILERS = ("jax", "tensorflow", "compile")
SELDOM = 10
SLOW = Path(__file__).parents[1] / "slow"  # not in plain nox
COUNT = 7
SHARES = ("none", *(f"{k}/{COUNT}" for k in range(1, COUNT + 1)), "all")


def taken_by(share, items):
    """Return pairs of a test and the framework beside which it runs in a share."""
    rows = {}
    for item in items:
        if concerns(item, FRAMEWORKS):
            rows.setdefault(row_of(item), []).extend((item, name) for name in beside(item))
    ways = {way for ways in rows.values() for way in ways if share in {"all", share_of(way)}}
    return ways.union(*map(drawn, rows.values()))


def concerns(item, selected):
    """Whether a test has something to say about one of the selected frameworks."""
    names = frameworks_of(item)
    return names is None or not set(names).isdisjoint(selected)


def beside(item):
    """Return the frameworks beside which a test runs: NumPy, if it concerns none."""
    names = frameworks_of(item)
    return ("numpy",) if names is None else names


@cache
def frameworks_of(item):
    """Return the framework of a test's way, or those it is marked with; None if it has neither."""
    given = [value for name, value in parameters(item).items() if is_way(name)]
    # A way is a framework, or begins with one.
    first = [value[0] if isinstance(value, tuple) else value for value in given]
    name, only = next((x for x in first if x in FRAMEWORKS), None), item.get_closest_marker("only")
    if only is None:
        return name and (name,)
    return tuple(x for x in only.args if name in {None, x})


def row_of(item):
    """Return what tells rows apart: the test, and what it is given that is no way."""
    given = parameters(item)
    return item.nodeid.partition("[")[0], *(id(given[x]) for x in sorted(given) if not is_way(x))


def parameters(item):
    """Return what a test is given, by names."""
    return item.callspec.params if hasattr(item, "callspec") else {}


@cache
def is_way(name):
    """Whether a parameter gives a way."""
    return name.rpartition("_")[2] in WAYS


def drawn(ways):
    """Return the ways in which plain nox runs a row: one, drawn from those of all frameworks."""
    item, _ = ways[0]
    if item.get_closest_marker("whole"):
        return ways
    if SLOW in item.path.parents:
        return []
    return [max(ways, key=luck)]


def luck(way):
    """Return the number by which a way is drawn, from 0 to 1."""
    item, framework = way
    words = (framework, *(str(x) for name, x in parameters(item).items() if is_way(name)))
    compiles = any(compiler in word for compiler in COMPILERS for word in words)
    return number(*names_of(way)) ** (SELDOM if compiles else 1)


def share_of(way):
    """Return the share of a way; what one process is to run is in one."""
    group = way[0].get_closest_marker("xdist_group")
    return SHARES[1 + int(COUNT * number(*(group.args if group else names_of(way))))]


def names_of(way):
    """Return what a way has on each machine, whatever its folder is called."""
    item, name = way
    return item.path.name, item.name, name


def number(*names):
    """Return a number from 0 to 1, drawn by names."""
    return int(sha256(" ".join(names).encode()).hexdigest(), 16) / 2**256
