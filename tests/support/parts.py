"""What takes long in parts, of which plain nox runs the first."""

import pytest

PARTS = 3
IN_PARTS = pytest.mark.parametrize(
    "part", [0, *(pytest.param(k, marks=pytest.mark.second) for k in range(1, PARTS))]
)


def seeds_of(part, count):
    """Return the seeds of a part of so many random programs."""
    return range(part * count // PARTS, (part + 1) * count // PARTS)


def every_second(names):
    """Return names as parameters, of which plain nox leaves out every second one."""
    return [
        pytest.param(name, marks=pytest.mark.second) if i % 2 else name
        for i, name in enumerate(names)
    ]


def first_of(names, *first):
    """Return names as parameters, of which plain nox has these."""
    return [
        name if name in first else pytest.param(name, marks=pytest.mark.second) for name in names
    ]
