"""A check of gradients: all ways to differentiate a function, at the points where it may break."""

from typing import Any

from safeops._check import CHOSEN, COARSE, Check, GradientFinding, GradientReport, Place
from safeops._core.types import Array, Function
from safeops._doors import show

__all__ = ["Finding", "GradientFinding", "GradientReport", "Place", "Report", "check_gradients"]

# Earlier names of the two classes. `safeops.autodiff` has other classes of these names.
Finding = GradientFinding
Report = GradientReport


def check_gradients(
    f: Function,
    points: Array | tuple[Array, ...],
    /,
    *,
    order: int = 2,
    forward: bool = True,
    neighbours: bool = True,
    expected: Any = None,
    finite_differences: bool = True,
    nan_detector: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    raises: bool = True,
) -> GradientReport:
    """
    Differentiate `f` in every way at `points`; an AssertionError says where two ways disagree.

    Same as ``assert derivative(f, points, way) == derivative(f, points, "reverse")`` for each way:
    forward mode; rev-rev, fwd-rev (forward mode of reverse mode), rev-fwd and fwd-fwd; finite
    differences; and the framework's NaN detector stays silent.

    Parameters
    ----------
    f : callable
        Function of arrays that returns an array of any shape, elementwise or not.
    points : array or tuple of arrays, shape (...), real floating
        The arguments of `f`, of one dtype. They hold all points at once: points where `f` may
        break, and some around them. float64 gives the finest differences; nothing is cast. `f` gets
        copies.
    order : {1, 2, 3}, default: 2
        1 leaves out second derivatives; 3 adds third derivatives.
    forward : bool, default: True
        False leaves out what needs forward mode, which a `jax.custom_vjp` does not have.
    neighbours : bool, default: True
        Whether to go on, if nothing was found, beside the points and with constants: see Notes.
    expected : array or tuple of arrays, optional
        Gradient of ``sum(f(*points))`` from mathematics, one array for each argument. If `f` is
        elementwise, these are the derivatives at the points.
    finite_differences : bool, default: True
        False where the stated derivative is not the derivative of the value.
    nan_detector : bool, default: True
        False where a NaN on the way is accepted (for TensorFlow an inf, too).
    rtol, atol : float, optional
        Tolerances between the ways, and of `expected`. Default: ``sqrt(eps)``, ``10 * eps``.
    raises : bool, default: True
        False returns the report although there are findings.

    Returns
    -------
    GradientReport
        Findings and all derivatives as data; ``str(report)`` is the table to read.

    Raises
    ------
    AssertionError
        If anything was found; the report is its message.
    TypeError
        If `f` is not a function, if `points` or the value of `f` are not real floating arrays of
        one framework, if `points` has two dtypes, or if the framework has no automatic
        differentiation.
    ValueError
        If there are no points or no values, `order` is not 1, 2 or 3, or `expected` does not fit.

    Notes
    -----
    **Gradient.** The gradient of ``sum(w * f)`` is compared, with fixed irregular weights w, so
    that entries do not cancel. If a point moves a single entry of the value, as in elementwise
    functions, the result is divided by the weight of that entry. Every way must give finite
    numbers, and the same numbers as reverse mode (at second order rev-rev); only the derivative
    with respect to a point that is NaN itself may be NaN. Up to 6 points the whole Hessian is
    compared; above, its product with one fixed vector, without differences. `f` runs eagerly, and
    also at points beside the given points.

    Differences from the left and from the right, with steps ``eps**0.25`` and ``eps**0.4``, tell
    the kind of a place. Smooth: both sides converge to one slope, which must be the derivative.
    Kink: the sides converge to two slopes, and the chosen derivative must lie between them.
    Singular (jump, infinite slope, edge of the domain, too much noise): any derivative may be
    chosen, unless it is ``eps**-0.25`` times steeper than the differences. Second derivatives are
    compared with differences of reverse mode, so that a fault that all four compositions share is
    found. In float16 and bfloat16 there are no differences.

    Third derivatives are summed over two of their three places, and compared in three compositions,
    without differences.

    Neighbours are the next numbers on either side of each point; for a zero also -0.0, the smallest
    normal number, its negative, and half of it. There reverse mode may be infinite, because a slope
    beside a singular point can be infinite, but it may be NaN only where the value is NaN. Forward
    mode along one vector must agree.
    Then each subset of the arguments is held constant in turn; the other arguments must keep their
    gradients.

    The NaN detector runs value and reverse mode. It is not run at points that are NaN; a detector
    that also reports inf (TensorFlow's) is not run where a point or a value is inf. PyTorch's
    detector sees backward functions only. On PyTorch the derivatives are taken by `torch.func`,
    which needs `setup_context` in a `torch.autograd.Function`.

    **Source.** `torch.autograd.gradcheck` and `jax.test_util.check_grads`; both compare with
    central differences, at smooth points.

    Examples
    --------
    >>> import torch
    >>> from safeops import safe_log
    >>> x = torch.tensor([2.0, 0.0], dtype=torch.float64)
    >>> print(check_gradients(lambda x: safe_log(x, fill_value=0), x))
    check_gradients: no findings
    compared: reverse, forward, rev-rev, fwd-rev, rev-fwd, fwd-fwd
    finite differences of order 1: 1 smooth, 0 kink, 1 singular
    finite differences of order 2: 1 smooth, 0 kink, 3 singular
    NaN detector: silent
    neighbours: next above, next below, -0.0, smallest normal, subnormal, minus smallest normal
    a derivative at a singular place, such as an edge, is chosen; give expected= to judge it
    >>> naive = lambda x: torch.where(x > 0, torch.log(x), 0)
    >>> print(check_gradients(naive, x, order=1, nan_detector=False, raises=False))
    check_gradients: 2 findings
    compared: reverse, forward
    finite differences of order 1: 1 smooth, 0 kink, 1 singular
    NaN detector: not run
    <BLANKLINE>
    at args[0][1] = 0
      reverse                             nan  not finite
      forward                               0  differs from reverse
      finite differences, left              0
      finite differences, right  -2.63216e+07
    """
    if order not in {1, 2, 3}:
        msg = f"expected order 1, 2 or 3, got {order!r}"
        raise ValueError(msg)
    check = Check(f, points if isinstance(points, tuple) else (points,))
    check.rtol = check.rtol if rtol is None else rtol
    check.atol = check.atol if atol is None else atol
    differences = finite_differences and check.eps < COARSE
    if finite_differences and not differences:
        check.report.remarks.append("finite differences: none, the dtype is too coarse")
    check.first_order(forward=forward, differences=differences)
    if expected is not None:
        check.against(expected if isinstance(expected, tuple) else (expected,))
    if order > 1:
        check.second_order(forward=forward, differences=differences)
    if order > 2:  # noqa: PLR2004  (the order)
        check.third_order(forward=forward)
    if nan_detector:
        check.report.detector = check.detector()
    if neighbours and check.report.ok:
        check.beside(forward=forward)
        check.with_constants()
    if check.report.ok and expected is None and differences and check.report.kinds[1]["singular"]:
        check.report.remarks.append(CHOSEN)
    if raises and not check.report.ok:
        raise AssertionError(str(check.report))
    return check.report


__dir__ = show("safeops.testing", __all__, globals())
