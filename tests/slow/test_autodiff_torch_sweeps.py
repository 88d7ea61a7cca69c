"""Masked autodiff for PyTorch on its own operations, in other dtypes, layouts and in place."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import safeops

# One process runs the sweep once, for all of these tests.
pytestmark = [
    pytest.mark.only("torch"),
    pytest.mark.xdist_group("sweep-layouts"),
]

HERE = Path(__file__).parents[1] / "autodiff/support"
ROOT = Path(safeops.__file__).parents[1]
# All dtypes, layouts and samples, and not one or two of each.
EVERY = ["--all"] if os.environ.get("SAFEOPS_EXHAUSTIVE") else []

# What is not as it should be, and why: sweep, outcome, reason, operations.
KNOWN = (
    ("planted", "not finite", "a factorisation is dense within a matrix",
     """
     lu qr linalg.qr linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.cholesky_ex
     cholesky_inverse cholesky_solve linalg.solve_triangular triangular_solve ormqr
     """),
    ("planted", "not finite", "the largest distance ignores NaN, and its slope does not", "cdist"),
    ("planted", "different", "entries of bfloat16 tie, and a NaN changes which of them is read",
     "sort msort"),
    ("used", "hidden", "entries of bfloat16 tie, and another number changes which of them is read",
     "sort msort"),
)  # fmt: skip
LISTED = {(sweep, word, op) for sweep, word, _, ops in KNOWN for op in ops.split()}
GOOD = {
    "whole": {"equal", "rounding"},
    "half": {"equal", "rounding", "mended", "PyTorch differs"},
    "planted": {"right", "all is read", "NaN refused", "read by slopes"},
    "used": {"stays", "freed", "refused"},
}


@pytest.fixture(scope="module")
def records():
    """Run the sweep, in a process of its own, and return what came out of each case."""
    return swept("sweep_torch_layouts.py", "--json", *EVERY)


@pytest.fixture(scope="module")
def modules():
    """Run the sweep over modules, and return what came out of each case."""
    return swept("sweep_torch_modules.py")


def swept(name, *options):
    """Return what a sweep prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, HERE / name, *options],
        env=os.environ | {"PYTHONPATH": str(ROOT)},  # so that it tests what this process tests
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def unexpected(records, sweep):
    """Return what is neither good nor listed."""
    return [
        (record["op"], record.get("dtype"), record["layout"], record["sample"], record[sweep])
        for record in records
        if record.get(sweep, next(iter(GOOD[sweep]))) not in GOOD[sweep]
        and (sweep, record[sweep], record["op"]) not in LISTED
    ]


@pytest.mark.parametrize("sweep", GOOD)
def test_masked_gradients_are_right_in_other_dtypes_and_layouts(records, sweep):
    """
    Each case has the gradient that it should have, and nothing that is used loses its NaN.

    The cases: complex128, bfloat16 and float64; inputs turned, expanded, with gaps; results
    permuted, flattened and narrowed before the loss; and in place on a view.
    """
    assert unexpected(records, sweep) == []


def test_exceptions_are_of_bfloat16_or_not_finite(records):
    """What is listed as different is so in bfloat16 only."""
    words = ("different", "hidden")
    found = [r for r in records if r.get("planted") in words or r.get("used") in words]

    assert {record["dtype"] for record in found} <= {"bfloat16"}


def test_with_nothing_masked_the_gradient_is_that_of_pytorch(records):
    """Rounding differs only where the layout leaves something out, or PyTorch writes in place."""
    found = {(r["op"], r["layout"]) for r in records if r.get("whole") == "rounding"}
    plain = {op for op, layout in found if "narrowed" not in layout and "view" not in layout}

    assert plain <= {"prod", "masked.prod"}  # whose formula does not divide under a dispatch mode


def test_the_sweep_can_fail_and_is_large(records):
    """PyTorch itself fails where a NaN is planted, and there are cases of each kind."""
    kinds = Counter((r["dtype"], r["layout"].partition(",")[0]) for r in records if "half" in r)

    assert Counter(r.get("PyTorch") for r in records)["not finite"] >= 300
    assert Counter(r.get("used") for r in records)["stays"] >= 700
    assert sum(kinds.values()) >= 2000
    assert len(kinds) == 15
    assert min(kinds.values()) >= 40


@pytest.mark.parametrize("sweep", GOOD)
def test_modules_have_the_right_gradient(modules, sweep):
    """Modules in train and eval are right in all sweeps, without an exception."""
    assert unexpected(modules, sweep) == []


def test_the_sweep_over_modules_can_fail_and_is_large(modules):
    """PyTorch itself fails where a NaN is planted, in train and in eval."""
    found = [record for record in modules if "half" in record]

    assert len(found) >= 100
    assert {record["training"] for record in found} == {True, False}
    assert Counter(record.get("PyTorch") for record in found)["not finite"] >= 25
