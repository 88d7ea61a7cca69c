"""Masked autodiff for PyTorch on every operation of PyTorch's own test database."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from math import inf, nan
from pathlib import Path

import pytest

import safeops
from frameworks import torch_from

# One process runs the sweep once, for all of these tests.
pytestmark = [
    pytest.mark.only("torch"),
    pytest.mark.xdist_group("sweep"),
]

HERE = Path(__file__).parents[1] / "autodiff/support"
ROOT = Path(safeops.__file__).parents[1]

# What is not as it should be, and why: sweep, outcome, reason, operations. An operation that is
# listed and is right at all samples is an error too.
KNOWN = (
    ("whole", "rounding", "under any dispatch mode PyTorch's formula does not divide",
     "prod masked.prod"),
    ("half", "mended", "PyTorch's own gradient is NaN: a power of a negative number, left out",
     "__rpow__"),
    ("planted", "not finite", "a factorisation is dense within a matrix",
     """
     lu qr linalg.qr linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.cholesky_ex
     cholesky_inverse
     """),
    ("planted", "not finite", "a solution of equations is dense within a matrix",
     "cholesky_solve linalg.solve_triangular triangular_solve ormqr"),
    ("planted", "not finite", "the largest distance ignores NaN, and its slope does not",
     "cdist"),
    ("planted", "read by slopes", "the derivative reads inputs that the value does not",
     "nn.functional.ctc_loss linalg.pinv.hermitian"),
    ("whole", "no gradient", "its samples, or all their outputs, are sparse, or have no gradient",
     "sparse.sampled_addmm normal.number_mean"),
    ("whole", "no gradient", "a CPU has no sum of complex32",
     "chalf"),
    ("whole", "no gradient", "a copy of the sample lacks the storage that it is a view of",
     "as_strided.partial_views"),
)  # fmt: skip
LISTED = {(sweep, word, op) for sweep, word, _, ops in KNOWN for op in ops.split()}
# PyTorch's own gradients: test_facts.py
PASSED_OVER = ["fmax", "fmin"] if torch_from(2, 14) else []
if torch_from(2, 14):
    LISTED |= {("planted", "different", op) for op in PASSED_OVER}
    LISTED -= {("planted", "not finite", "qr")}  # no longer in the database
GOOD = {
    "whole": {"equal"},
    "half": {"equal", "rounding"},
    # "read" are samples in which there is nowhere to plant a NaN.
    "planted": {"right", "all is read", "NaN refused"},
}


@pytest.fixture(scope="module")
def records():
    """Run the sweep, in a process of its own, and return what came out at each sample."""
    done = subprocess.run(
        [sys.executable, HERE / "sweep_torch.py", "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},  # so that it tests what this process tests
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # LAPACK prints, too


def count(records, sweep):
    """Return how often each outcome of a sweep came out."""
    return Counter(record[sweep] for record in records if sweep in record)


def unexpected(records, sweep):
    """Return what is neither good nor listed, by operation and sample."""
    return [
        (record["op"], record["sample"], record[sweep])
        for record in records
        if sweep in record
        and record[sweep] not in GOOD[sweep]
        and (sweep, record[sweep], record["op"]) not in LISTED
    ]


@pytest.mark.parametrize("sweep", GOOD)
def test_masked_gradients_are_right(records, sweep):
    """
    Each sample has the gradient that it should have.

    With nothing masked it is PyTorch's, exactly; with half of the output left out PyTorch's too;
    and NaN in inputs that the other half does not read changes nothing.
    """
    assert unexpected(records, sweep) == []


def test_no_gradient_is_finite_and_wrong(records):
    """What is finite is right, in all sweeps; from 2.14 on two operations are as in PyTorch."""
    wrong = [record for record in records if "different" in record.values()]

    assert {record["op"] for record in wrong} == set(PASSED_OVER)
    assert all(record["planted"] == record["PyTorch"] for record in wrong)
    assert not any(word == "different" for _, word, _, _ in KNOWN)


def test_what_is_listed_is_so(records):
    """No operation is listed that is right."""
    found = {(s, record.get(s), record["op"]) for record in records for s in GOOD}

    assert LISTED - found == set()


def test_elementwise_operations_have_no_exception(records):
    """An elementwise operation is right wherever NaN is planted."""
    found = [r for r in records if r["elementwise"] and r["op"] not in PASSED_OVER]

    assert set(count(found, "planted")) == {"right", "all is read"}
    assert len({r["op"] for r in found if r.get("planted") == "right"}) >= 130 - len(PASSED_OVER)


def test_pytorch_fails_where_nan_is_planted(records):
    """The ordinary gradient of a third of those samples is not finite: the sweep can fail."""
    assert count(records, "PyTorch")["not finite"] >= 740


def test_the_sweep_is_large(records):
    """There are as many samples as the documentation says, or a few less."""
    assert len({record["op"] for record in records}) >= 530
    assert count(records, "whole")["equal"] >= 4000
    assert count(records, "half")["equal"] >= 3900
    assert count(records, "planted")["right"] >= 2150


def test_operations_without_a_rule_are_documented(records):
    """The docstring of the module lists those that the sweep meets, and no other."""
    from safeops.autodiff import torch as masked

    (listed,) = re.findall(r"by class:\n\n(.*?)\n\n", masked.__doc__, flags=re.DOTALL)
    names = re.sub(r"^- [a-z ]+:", "", listed, flags=re.MULTILINE)

    assert sorted(re.findall(r"\w+", names)) == sorted({u for r in records for u in r["unknown"]})


@pytest.mark.parametrize(
    ("found", "wanted", "word"),
    [
        ([1.0, 2.0], [1.0, 2.0], "equal"),
        ([nan, inf], [nan, inf], "equal"),
        ([1.0, 2.0], [1.0, 2.0 + 1e-12], "rounding"),
        ([0.0, 2.0], [1.0, 2.0], "different"),
        ([0.0, nan], [1.0, 2.0], "different"),
        ([1.0, nan], [1.0, 2.0], "not finite"),
        ([1.0, 0.0], [1.0, nan], "mended"),
        ([1.0, inf], [1.0, nan], "rounding"),
        (None, [1.0, 2.0], "different"),
    ],
)
def test_gradients_are_compared(found, wanted, word):
    """A silent 0, a NaN and a NaN that is gone each have their word, the worst one first."""
    import torch

    import sweep_torch

    tensors = [x if x is None else torch.tensor(x, dtype=torch.float64) for x in (found, wanted)]

    assert sweep_torch.compare(*([x] for x in tensors)) == word
