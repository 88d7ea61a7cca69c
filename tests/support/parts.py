"""What takes long in parts, of which plain nox runs one."""

import pytest

PARTS = 3
IN_PARTS = pytest.mark.parametrize("part", range(PARTS))


def seeds_of(part, count):
    """Return the seeds of a part of so many random programs."""
    return range(part * count // PARTS, (part + 1) * count // PARTS)
