"""What `explain` keeps and runs: neither grows faster than the program, counted, not timed."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROWS, WIDTH = 16, 64


def layers(xp, count):
    """Return a function with layers, a weight and a batch whose first row is NaN and unused."""
    numbers = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    numbers[0] = np.nan
    weight = np.eye(WIDTH, dtype=np.float32)

    def loss(weight, x):
        x = xp.where(xp.isnan(x), xp.nan, x)
        for name in ("tanh", "sin", "cos", "arctan")[:count]:  # an operation is one by its name
            x = getattr(xp, name)(x @ weight) * 2.0
        return x[1:].sum()

    return loss, weight, numbers


def largest_of(masks):
    """Return the bytes of the largest memory that masks have."""
    return max(
        (m if m.base is None else m.base).nbytes
        if isinstance(m, np.ndarray)
        else m.untyped_storage().nbytes()
        for m in masks
    )


@pytest.fixture
def torch_passes(monkeypatch):
    """Watch calls of autograd, and what is kept of the passes; one argument: layers."""
    torch = import_module("torch")
    report = import_module("safeops.autodiff.torch._explain.comparison")
    explain = import_module("safeops.autodiff.torch").explain

    def run(count):
        calls, passes = [], []
        findings, grad = report.PassPair.findings, torch.autograd.grad
        with monkeypatch.context() as patch:
            patch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or grad(*a, **k))
            patch.setattr(
                report.PassPair, "findings", lambda p, *a: passes.append(p) or findings(p, *a)
            )
            loss, weight, x = layers(torch, count)
            found = explain(lambda w: loss(w, torch.tensor(x)), torch.tensor(weight))
        assert [f.kind for f in found.findings] == ["BLOCKED"]
        return len(calls), passes[0]

    return run


@pytest.mark.only("torch")
def test_torch_runs_two_backward_passes_however_long_a_program_is(torch_passes):
    """One ordinary, one masked; the selection is known from what these have recorded."""
    assert [torch_passes(count)[0] for count in (2, 4)] == [2, 2]


@pytest.mark.only("torch")
def test_torch_keeps_of_rows_one_entry_each(torch_passes):
    """The masks of what is absent, and of what is not finite, have no length along a row."""
    pair = torch_passes(4)[1]
    records = [r for p in (pair.ordinary, pair.masked) for r in p.seen.values()]
    cotangents = [x for r in records for x in (*r.into, *r.out) if x is not None]
    masks = [m for x in cotangents for m in (x.bad, x.active) if m is not None and m is not True]
    assert largest_of(masks) == ROWS


@pytest.fixture
def jax_marks(monkeypatch):
    """Return the marks of causes, and all masks, of each cotangent; one argument: layers."""
    jnp = pytest.importorskip("jax.numpy")
    backward = import_module("safeops.autodiff.jax._explain.backward")
    explain = import_module("safeops.autodiff.jax").explain

    def run(count):
        outs, marked = [], backward.Backward.marked
        with monkeypatch.context() as patch:
            patch.setattr(
                backward.Backward, "marked", lambda b, *a: outs.append(marked(b, *a)) or outs[-1]
            )
            loss, weight, x = layers(jnp, count)
            found = explain(lambda w: loss(w, jnp.asarray(x)), jnp.asarray(weight))
        assert [f.kind for f in found.findings] == ["BLOCKED"]
        cotangents = [x for row in outs for x in row]
        masks = [
            m for x in cotangents for m in (x.active, *x.dropped.values(), *x.tainted.values())
        ]
        return [x.tainted for x in cotangents], [m for m in masks if isinstance(m, np.ndarray)]

    return run


@pytest.mark.only("jax")
def test_jax_follows_no_more_causes_where_more_operations_meet_a_nan(jax_marks):
    """Those that a NaN has come through follow from the first, and have no marks of their own."""
    few, more = (max(map(len, jax_marks(count)[0])) for count in (2, 4))
    assert few == more


@pytest.mark.only("jax")
def test_jax_explains_three_operations_in_few_calls():
    """A call of a function of the package counts; the program is traced once for the findings."""
    jnp = pytest.importorskip("jax.numpy")
    explain = import_module("safeops.autodiff.jax").explain
    folder = str(Path(import_module("safeops").__file__).parent)
    runs, calls = [], []

    def f(x):
        runs.append(1)
        return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            calls.append(1)

    x = jnp.asarray([0.0, 1.0])
    explain(f, x)
    runs.clear()
    sys.setprofile(note)
    try:
        report = explain(f, x)
    finally:
        sys.setprofile(None)

    assert [x.operation for x in report.findings] == ["sqrt"]
    assert len(runs) == 2  # once more with the edit
    assert len(calls) < 2000  # 1,841 with JAX 0.10


@pytest.mark.only("jax")
def test_jax_keeps_of_rows_one_entry_each(jax_marks):
    """The marks of what is absent, and of what would be NaN, have no length along a row."""
    assert largest_of(jax_marks(3)[1]) == ROWS
