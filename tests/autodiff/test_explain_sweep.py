"""What `explain` says of a selection and a singular operation, in either order and in each mode."""

from itertools import product

import pytest

import sweep_explain as sweep
from exponents import EXHAUSTIVE

pytestmark = pytest.mark.whole

EVERY = [
    (*order, selection, mode)
    for *order, mode in product(sweep.SINGULAR, sweep.PLACES, sweep.MODES)
    for selection in (sweep.BEFORE if order[1] == "before" else sweep.BEHIND)
]
SOME = [
    ("sqrt", "before", "relu", "eager"),
    ("pow", "before", "relu6", "loop"),
    ("sqrt", "before", "maximum", "compiled"),
    ("norm", "before", "clip", "eager"),
    ("acos", "before", "minimum", "loop"),
    ("log", "before", "cummax", "eager"),
    ("sqrt", "before", "max", "eager"),
    ("sqrt", "behind", "max", "compiled"),
    ("acosh", "behind", "take", "loop"),
]


@pytest.mark.parametrize("row", EVERY if EXHAUSTIVE else SOME, ids=", ".join)
def test_a_selection_and_a_singular_operation(autodiff_framework, row):
    """No gradient with NaN is clean; a finding has its kind, operation, line and selection."""
    program = sweep.program_of(autodiff_framework, *row)

    assert sweep.faults_of(autodiff_framework, program) == set()
