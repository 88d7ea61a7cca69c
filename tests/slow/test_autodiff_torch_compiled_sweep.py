"""Masked autodiff that a compiler traces, on PyTorch's own test database of operations."""

import ast
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
    pytest.mark.xdist_group("sweep-compiled"),
]

HERE = Path(__file__).parents[1] / "autodiff/support"
ROOT = Path(safeops.__file__).parents[1]
EXHAUSTIVE = bool(os.environ.get("SAFEOPS_EXHAUSTIVE"))
# A plain run takes one operation of each class of rules.
SOME = [
    *("where", "amax", "clamp", "index_select", "matmul", "softmax", "cumsum", "sort"),
    *("nn.functional.conv2d", "nn.functional.layer_norm", "logcumsumexp"),
]
NAMES = () if EXHAUSTIVE else SOME

# What is not as it should be, and why: outcome of the planted sweep, reason, operations.
KNOWN = (
    ("not finite", "a factorisation is dense within a matrix",
     """
     lu qr linalg.qr linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.cholesky_ex
     cholesky_inverse cholesky_solve linalg.solve_triangular triangular_solve ormqr
     """),
    ("not finite", "the largest distance ignores NaN, and its slope does not", "cdist"),
)  # fmt: skip
LISTED = {(word, op) for word, _, ops in KNOWN for op in ops.split()}
UNKNOWN = {"as_strided_scatter"}
GOOD = {"equal", "rounding", "mended", "no gradient", "PyTorch differs"}


@pytest.fixture(scope="module")
def records():
    """Run the sweep, in a process of its own, and return what came out of each case."""
    options = ["--json", "--samples", "12" if EXHAUSTIVE else "1", *NAMES]
    done = subprocess.run(
        [sys.executable, HERE / "sweep_torch_compiled.py", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    return [json.loads(line) for line in lines[:-1]], ast.literal_eval(lines[-1])


@pytest.mark.parametrize("sweep", ["whole", "half", "planted"])
def test_traced_gradients_are_those_of_eager_mode(records, sweep):
    """Each case is equal, or listed as one that is not finite; none is finite and wrong."""
    found, _ = records
    words = [(r[sweep], r["op"]) for r in found if sweep in r]

    assert [pair for pair in words if pair[0] not in GOOD and pair not in LISTED] == []


def test_operations_without_a_rule_are_listed(records):
    """No other operation is told of."""
    found, _ = records

    assert {name for r in found for name in r.get("unknown", ())} <= UNKNOWN


def test_the_sweep_is_large(records):
    """There are cases in each sweep, and the counts are those of the cases."""
    found, counts = records
    words = Counter(f"{s} {r[s]}" for r in found for s in ("whole", "half", "planted") if s in r)

    assert dict(words) == counts
    assert len(found) >= (2000 if EXHAUSTIVE else len(SOME))
    assert words["planted equal"] >= (1000 if EXHAUSTIVE else 4)
