"""What a user's program may do, and in lines that say so, what it may not; never run."""

from typing import assert_type

import numpy as np

import safeops
from safeops import linalg, rotations, segments, testing
from safeops.autodiff import explain
from safeops.integrations import guard


class Tensor:
    """A framework's array, as `torch.Tensor` and `jax.Array` look to a type checker."""

    shape: tuple[int, ...]
    dtype: object

    def sum(self) -> "Tensor":
        """Return the sum."""
        raise NotImplementedError


def log(x: Tensor) -> Tensor:
    """Return the logarithm."""
    raise NotImplementedError


def several(x: Tensor, y: Tensor) -> Tensor:
    """Return a function of two."""
    raise NotImplementedError


def operations(t: Tensor, a: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """What goes in comes out."""
    assert_type(safeops.safe_log(t), Tensor)
    assert_type(safeops.safe_log(t, fill_value=-1.0), Tensor)
    assert_type(safeops.safe_div(t, t), Tensor)
    assert_type(safeops.safe_div(1.0, t), Tensor)
    assert_type(safeops.safe_div(t, 2, fill_value=t), Tensor)
    assert_type(safeops.safe_pow(t, 2), Tensor)
    assert_type(safeops.xlogy(t, t), Tensor)
    assert_type(safeops.safe_hypot(t, 1.0), Tensor)
    assert_type(safeops.safe_norm(t, axis=(0, 1), keepdims=True, where=t), Tensor)
    assert_type(safeops.safe_softmax(t, axis=-1, where=True), Tensor)
    assert_type(safeops.nanmean(t, axis=0), Tensor)
    assert_type(safeops.safe_cross_entropy(t, t, label_smoothing=0.1), Tensor)
    assert_type(safeops.nanquantile(t, 0.5, axis=0, method="linear"), Tensor)
    assert_type(safeops.stop_gradient(t), Tensor)
    assert_type(linalg.sqrtm_psd(t), Tensor)
    assert_type(linalg.safe_eigh(t), tuple[Tensor, Tensor])
    assert_type(rotations.rotvec_to_matrix(t), Tensor)
    assert_type(segments.segment_sum(t, t, 3), Tensor)
    float(safeops.nanmean(a))
    round(safeops.safe_sum(a), 2)
    safeops.safe_log(a).astype(np.float32)


def combinators(t: Tensor) -> None:
    """Branches give the type of the result, and a function that is made safe keeps its own."""
    assert_type(safeops.safe_where(t, t, log, fill_value=0.0), Tensor)
    assert_type(safeops.safe_where(t, (t, 1.0), several, log), Tensor)
    assert_type(safeops.vectorized_cond(t, log, log, t), Tensor)
    safe = safeops.make_safe(log, log, placeholder=1.0, fill_value=0.0)
    assert_type(safe(t), Tensor)
    safe("a")  # wrong


@guard(object(), on_nan="skip")
def step(batch: Tensor, *, rate: float = 0.1) -> float:
    """Return a loss."""
    raise NotImplementedError


def tools(t: Tensor) -> None:
    """A guarded step keeps its signature; reports have types."""
    assert_type(step(t, rate=0.2), float)
    step("a")  # wrong
    assert_type(explain(log, t).ok, bool)
    assert_type(testing.check_gradients(log, t).ok, bool)
    assert_type(safeops.testing.check_gradients(log, t).ok, bool)
    assert_type(safeops.autodiff.explain(log, t).ok, bool)
    several(*map(safeops.safe_sqrt, (t, t)))


def mistakes(t: Tensor) -> None:
    """Each line has one."""
    safeops.safe_log(0.0)  # wrong
    safeops.safe_log([1.0])  # wrong
    safeops.safe_log(x=t)  # wrong
    safeops.safe_log(t, eps=1e-6)  # wrong
    safeops.safe_div("1", t)  # wrong
    safeops.safe_norm(t, axis="time")  # wrong
    safeops.safe_norm(t, where=[True])  # wrong
    safeops.safe_norm(t, keepdims="yes")  # wrong
    safeops.nanmean(t, axis=1.5)  # wrong
    safeops.nanquantile(t, 0.5, method="liner")  # wrong
    safeops.safe_where(t, log(t), 0.0)  # wrong
    safeops.safe_where(t, t, log(t), fill_value=0.0)  # wrong
    guard(object(), on_nan="stop")  # wrong
    segments.segment_sum(t, t, 2.5)  # wrong
    safeops.safe_lgo(t)  # wrong
