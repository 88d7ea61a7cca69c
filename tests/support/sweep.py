"""An operation at every exponent: its results in a mode of a framework, beside exact results."""

from functools import cache
from itertools import product

import numpy as np

from derivatives import all_derivatives, tools
from exponents import FORMATS, assert_ulps, count, flushed, wide
from frameworks import asarray, stacked
from safeops._backends import load

# Slopes and second derivatives this near to the largest number may overflow on the way.
ROOM = {"value": 1, "slope": 2, "second": 16}


@cache
def points_of(row, dtype):
    """Return the arguments, and what is exact there, and if some subnormal ones count as 0."""
    with np.errstate(all="ignore"):
        args = row.domain(dtype)
        choices = product(*((a, flushed(a, dtype)) for a in args))
        return args, [row.formula(FORMATS[dtype], *map(wide, chosen)) for chosen in choices]


def directions(args):
    """Return for each argument the tangents of the direction in which it alone moves."""
    n = len(args)
    return [[np.full_like(a, float(i == k)) for k, a in enumerate(args)] for i in range(n)]


def found(row, framework, mode, dtype, orders=None):
    """Give the direction, the order and the numbers of all derivatives, or those of `orders`."""
    args, _ = points_of(row, dtype)
    around, within, grad, jvp = tools(framework, mode)
    n = len(args)

    def compute(*flat):
        rules = all_derivatives(
            within(row.op),
            lambda out: out,
            flat[:n],
            flat[n : 2 * n],
            flat[2 * n :],
            grad=grad,
            jvp=jvp,
        )
        return {order: rules[order]() for order in orders or rules}

    program = around(compute)
    arrays = [asarray(framework, a, dtype) for a in args]
    for i, along in enumerate(directions(args)):
        v = [asarray(framework, a, dtype) for a in along]
        for order, x in program(*arrays, *v, *v).items():
            yield i, order, np.atleast_2d(stacked(x))


def wanted(exact, order, i, j):
    """Return the exact number of an order and its size: argument j, in the direction of i."""
    size, slopes, second = exact.sizes()
    if order == "value":
        return exact.value, size
    if order in ("reverse", "forward"):
        k = j if order == "reverse" else i
        return exact.gradient[k], slopes[k]
    return exact.hessian[i][i if order == "fwd-fwd" else j], second


def steps_of(exact, framework, order):
    """Return terms that a framework forms on the way, besides the terms of the result."""
    if framework == "jax":
        return ()
    tensorflow = framework == "tensorflow"
    if order == "forward":
        return exact.tangents if tensorflow else ()
    found = exact.steps if order.endswith("fwd") else ()
    if tensorflow and order.endswith("fwd"):
        found += exact.squares
    return found + (exact.transposed if tensorflow and order != "fwd-fwd" else ())


def claimed(exact, order, j, form, framework):
    """Whether all terms of the number of this order are in the range of the dtype."""
    with np.errstate(all="ignore"):

        def fits(kind, *arrays):
            every = [np.abs(a) <= form.max / ROOM[kind] for a in arrays]
            return np.all([np.full_like(exact.value, 1, bool), *every], axis=0)

        if order == "value":
            return ~np.isnan(exact.value)
        valued = fits("value", exact.value)
        if order == "reverse":
            return valued & fits("slope", exact.gradient[j])
        sloped = valued & fits("slope", *exact.gradient)
        steps = steps_of(exact, framework, order)
        least = [(np.abs(a) >= 8 * form.normal) | (a == 0) for a in steps]
        possible = sloped & np.all([sloped, *least], axis=0)
        if order == "forward":
            return possible & fits("slope", *steps)
        return possible & fits("second", *steps, *(h for line in exact.hessian for h in line))


def faults(row, framework, mode, dtype, orders=None):
    """Return in words which derivatives are wrong, and where."""
    form = FORMATS[dtype]
    args, exact = points_of(row, dtype)
    seen = []
    for i, order, lines in found(row, framework, mode, dtype, orders):
        for j, got in enumerate(lines):
            claim = np.all([claimed(one, order, j, form, framework) for one in exact], axis=0)
            (aim, size), *also = (wanted(one, order, i, j) for one in exact)
            try:
                checked = assert_ulps(
                    got,
                    np.where(claim, aim, np.nan),
                    row.ulps if order in ("value", "reverse", "forward") else 4 * row.ulps,
                    dtype,
                    size=size,
                    also=[number for number, _ in also],
                    lost=row.lost,
                    args=args,
                    message=f"{row.name} {order} {i}{j}",
                )
                count((framework, mode, dtype, order), row.name, *checked)
            except AssertionError as error:
                seen.append(str(error))
    return seen


def pulled(row, framework, mode, dtype, weights):
    """Give the gradients of the operation for each of these arrays of cotangents."""
    args, _ = points_of(row, dtype)
    around, within, grad, _ = tools(framework, mode)
    xp, f = load(framework).xp, within(row.op)

    def pull(cotangents, *args):
        return grad(lambda *args: xp.sum(cotangents * f(*args)))(*args)

    program = around(pull)
    arrays = [asarray(framework, a, dtype) for a in args]
    for w in weights:
        yield np.atleast_2d(stacked(program(asarray(framework, w, dtype), *arrays))).astype(float)


def is_filled(row, dtype):
    """Return where the operation is a constant, whether or not subnormal numbers count as 0."""
    return np.all([one.constant for one in points_of(row, dtype)[1]], axis=0)


def slopes_of(row, framework, dtype):
    """Return the exact slopes; NaN for a slope about which nothing is claimed."""
    _, exact = points_of(row, dtype)
    n = len(exact[0].gradient)
    claims = [
        np.all([claimed(one, "reverse", j, FORMATS[dtype], framework) for one in exact], axis=0)
        for j in range(n)
    ]
    return np.array([np.where(claims[j], exact[0].gradient[j], np.nan) for j in range(n)])
