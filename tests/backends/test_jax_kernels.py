"""JAX: an operation as one program, and the rules of its own that some have."""

import ast
import gc
import weakref
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import safeops as so
from assertions import assert_close
from exponents import EXHAUSTIVE
from frameworks import asarray, to_numpy
from safeops._backends import load
from specials import special_numbers

pytestmark = pytest.mark.only("jax")

X = np.array([[4.0, 0.0, -1.0], [np.nan, 0.25, np.inf], [0.0, 0.0, -0.0]])
OPTIONS = {
    "safe_div": ({"fill_value": -2.0}, 2),
    "safe_exp": ({}, 1),
    "safe_log": ({"fill_value": 7}, 1),
    "safe_pow": ({}, 2),
    "xlogy": ({}, 2),
    "safe_norm": ({"axis": (0, 1), "keepdims": True}, 1),
    "safe_softmax": ({"axis": 0}, 1),
    "nanmax": ({"axis": -1, "fill_value": 0.5}, 1),
    "safe_cross_entropy": ({}, 2),
}
NAMES = pytest.mark.parametrize("name", OPTIONS)


def generic(f, *args, **options):
    """Return what the operation makes of the arguments, step by step."""
    with patch.object(load("jax"), "kernel", lambda *_: None):
        return f(*args, **options)


@pytest.fixture
def kernels():
    """Return kernels without a program."""
    fresh = type(load("jax").programs)()
    with patch.object(load("jax"), "programs", fresh):
        yield fresh


@NAMES
def test_values_and_gradients_are_those_of_the_steps(name):
    """Value and gradient of the program are those of the operations one by one."""
    import jax

    options, n = OPTIONS[name]
    f, args = getattr(so, name), [asarray("jax", X), asarray("jax", X[::-1].copy())][:n]

    def total(*args):
        out = f(*args, **options)
        weights = 1.0 + jax.numpy.arange(out.size, dtype=out.dtype).reshape(out.shape)
        return jax.numpy.where(jax.numpy.isfinite(out), out * weights, 0.0).sum()

    every = tuple(range(n))
    got = f(*args, **options), *jax.grad(total, every)(*args)
    wanted = generic(f, *args, **options), *generic(jax.grad(total, every), *args)

    for a, b in zip(got, wanted, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        assert_close(to_numpy(a), to_numpy(b), 1e-14, name, 1e-15)  # a softmax cancels to 0


def test_a_constant_is_told_by_type_and_sign(kernels):
    """0.0, -0.0, 1 and 1.0 are constants of their own."""
    x = asarray("jax", [0.0])

    found = [so.safe_div(x, x, fill_value=fill)[0] for fill in (0.0, -0.0, 1, 1.0)]

    assert [np.signbit(fill) for fill in found] == [False, True, False, False]
    assert len(kernels["safe_div"].programs) == 4


def test_ever_new_numbers_are_not_compiled(kernels):
    """A function called with a new number each time makes a bounded number of programs."""
    x = asarray("jax", [0.0])
    with patch("safeops._backends.jax.programs._MOST", 3):
        found = [float(so.safe_div(x, x, fill_value=float(i))[0]) for i in range(5)]

    assert found == [0, 1, 2, 3, 4]
    assert len(kernels["safe_div"].programs) == 3


@pytest.mark.usefixtures("kernels")
def test_no_argument_is_held():
    """An array that was an argument is freed."""
    x = asarray("jax", [1.0, 2.0])
    gone = weakref.ref(x)
    so.safe_sqrt(x)

    del x
    gc.collect()

    assert gone() is None


def test_an_outer_program_has_nothing_of_it():
    """In a program of the user's an operation is its steps, as if there were no inner one."""
    import jax

    text = str(jax.make_jaxpr(so.safe_sqrt)(asarray("jax", [1.0])))

    assert "sqrt" in text
    assert "name=safe_sqrt" not in text


def test_what_is_no_constant_is_left_to_the_steps():
    """A list gets the error that it gets everywhere."""
    x = asarray("jax", [1.0])

    with pytest.raises(TypeError, match="got list"):
        so.safe_div(x, [1.0])


def is_asking(node):
    """Whether a part of a module is a function that asks for a kernel."""
    marks = map(ast.unparse, getattr(node, "decorator_list", ()))
    return isinstance(node, ast.FunctionDef) and not {"fast_path", "propagates_nan"}.isdisjoint(
        marks
    )


def test_every_kernel_is_a_function_of_the_door():
    """What asks for a kernel has the name of a public function, or of what these share."""
    files = Path(so.__file__).parent.rglob("*.py")
    functions = (node for f in files for node in ast.parse(f.read_text()).body if is_asking(node))
    names = {node.name for node in functions if not node.name.startswith("_")}

    modules = (so, so.rotations, so.linalg, so.segments)
    assert names <= {name for module in modules for name in module.__all__}
    assert len(names) > 50


def test_an_option_may_be_an_array():
    """A floor that is an array is asked for its value, which a program has not."""
    import jax.numpy as jnp

    assert so.safe_norm(jnp.zeros(2), min_norm=jnp.asarray(0.5)) == 0.5


# Rules of their own.


def numbers(x):
    """Return x, 2 for NaN: the slope of `jnp.abs` is -1 there, and with it that of a power."""
    import jax.numpy as jnp

    return jnp.where(jnp.isnan(x), 2, x)


def triples(x):
    """Return each number beside one of the same row, and beside 1."""
    import jax.numpy as jnp

    return jnp.stack([x, x[..., ::-1], jnp.ones_like(x)], axis=-1)


RULES = {
    "logarithmic_mean": (so.logarithmic_mean, 2),
    "safe_div": (so.safe_div, 2),
    "safe_div, filled": (lambda x, y: so.safe_div(x, y, fill_value=-3.0), 2),
    "safe_div, filled by an array": (lambda x, y: so.safe_div(x, y, fill_value=x), 2),
    "safe_div, of a number": (lambda y: so.safe_div(2, y), 1),
    "safe_exp": (so.safe_exp, 1),
    "safe_logsumexp": (lambda x: so.safe_logsumexp(triples(x), axis=-1), 1),
    "safe_logsumexp, masked": (
        # Not above 0: XLA tells a subnormal number from 0 in one part of a program only.
        lambda x: so.safe_logsumexp(triples(x), axis=-1, where=numbers(triples(x)) > 1e-30),
        1,
    ),
    "safe_softmax": (so.safe_softmax, 1),
    "safe_softmax, masked": (lambda x: so.safe_softmax(x, axis=0, where=numbers(x) > 0), 1),
    "safe_sqrt": (so.safe_sqrt, 1),
    "safe_sqrt, filled": (lambda x: so.safe_sqrt(x, fill_value=7.0), 1),
    "safe_pow": (so.safe_pow, 2),
    "safe_pow, positive": (lambda x, p: so.safe_pow(abs(x), p), 2),
    "safe_pow, whole": (lambda x, p: so.safe_pow(numbers(x), p.round()), 2),
    "safe_pow, number": (lambda x: so.safe_pow(x, 3), 1),
    "safe_pow, of a number": (lambda p: so.safe_pow(2.0, p), 1),
    "xlogy": (so.xlogy, 2),
    "xlogy, at zero": (lambda x, y: so.xlogy(x * (y > 0).astype(x.dtype), y), 2),
}
WAYS = pytest.mark.parametrize("name", RULES)
SHAPES = [((6, 7), (6, 7)), ((6, 1), (6, 7))]
# A number, a fill or a sign is part of what is compiled in each dtype and shape: by default float32
# and an argument that is stretched meet each rule once.
NARROW = ("safe_div", "safe_exp", "safe_softmax", "safe_sqrt", "safe_pow", "xlogy")
STRETCHED = ("safe_div", "safe_div, filled by an array", "safe_pow", "xlogy")
CALLS = [
    (name, dtype, shapes)
    for name, (_, n) in RULES.items()
    for dtype in ("float32", "float64")
    for shapes in SHAPES[:n]  # of one argument both are the same
    if EXHAUSTIVE
    or (dtype == "float64" and (shapes == SHAPES[0] or name in STRETCHED))
    or (dtype == "float32" and shapes == SHAPES[0] and name in NARROW)
]


def points(name, dtype, shapes, seed):
    """Return arguments of these shapes."""
    chosen = enumerate(shapes[: RULES[name][1]])
    return tuple(asarray("jax", special_numbers(dtype, s, 2 * seed + i), dtype) for i, s in chosen)


def derivatives(f):
    """Return a program: value, first and second derivatives in random directions."""
    import jax

    def every(args):
        random = iter(jax.random.split(jax.random.key(0), 9))
        out = jax.eval_shape(f, *args)
        weights = jax.random.normal(next(random), out.shape, out.dtype)
        along = tuple(jax.random.normal(next(random), x.shape, x.dtype) for x in args)
        then = tuple(jax.random.normal(next(random), x.shape, x.dtype) for x in args)

        def pull(*args):
            return jax.vjp(f, *args)[1](weights)

        def push(*args):
            return jax.jvp(f, args, along)[1]

        return {
            "value": [f(*args)],
            "reverse": pull(*args),
            "forward": [push(*args)],
            "reverse over reverse": jax.vjp(pull, *args)[1](then),
            "forward over reverse": jax.jvp(pull, args, then)[1],
            "reverse over forward": jax.vjp(push, *args)[1](weights),
            "forward over forward": [jax.jvp(push, args, then)[1]],
        }

    return jax.jit(every)


@pytest.mark.parametrize("part", CALLS, ids=str)
def test_rules_are_those_of_the_double_where(part):
    """Value, first and second derivatives are what the double where has, in each composition."""
    name, dtype, shapes = part
    f, _ = RULES[name]
    rtol = {"float32": 1e-4, "float64": 1e-13}[dtype]
    ours, steps = derivatives(f), derivatives(f)
    for seed in range(12):
        args = points(name, dtype, shapes, seed)

        got, wanted = ours(args), generic(steps, args)

        for order, found in got.items():
            # Where steps have NaN, a rule has of ``0 * log(1e-30)`` the second derivative, 1e30, of
            # ``log(0)`` an infinite one, of ``(-1e-308)**0`` 0, and of an infinite power of a
            # negative base its slope, where steps multiply with the 0 of the exponent. And of
            # second order a power has parts beyond the range, whose difference is NaN in a rule.
            second, kind = " over " in order, name.partition(",")[0]
            more = kind == "safe_pow" or (second and kind in ("xlogy", "logarithmic_mean"))
            lost = np.isnan(to_numpy(sum(args))) | np.isnan(to_numpy(got["value"][0])) | (not more)
            for a, b in zip(found, wanted[order], strict=True):
                assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
                x, y = to_numpy(a), to_numpy(b)
                beyond = (second and kind == "safe_pow") & np.isinf(y) & np.isnan(x)
                assert_near(x, np.where(beyond, x, y), rtol, f"{order}, {seed}", lost)


def assert_near(got, wanted, rtol, what, lost):
    """
    Two results are equal up to rounding, relative to their largest or to terms of size 1.

    Where nothing is `lost`, what is wanted may be NaN, and the result any number.
    """
    stretched = tuple(i for i, n in enumerate(lost.shape) if n != got.shape[i])
    lost = lost.any(stretched, keepdims=True)
    wanted = np.where(np.isnan(wanted) & ~lost, got, wanted)
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    assert_close(got, wanted, rtol, what, rtol * min(largest, 1.0))


def test_every_rule_has_a_call_here():
    """The table names each kernel; that of norms has its own, `test_slice_exponents`."""
    from safeops._backends.jax.rules import KERNELS

    assert {name.partition(",")[0] for name in RULES} == set(KERNELS) - {"_length"}


def test_assert_near_can_fail():
    """It tells numbers apart, and a NaN that has gone."""
    nan, yes = np.array([np.nan]), np.array([True])
    with pytest.raises(AssertionError):
        assert_near(np.array([2.0]), np.array([0.0]), 1e-5, "", ~yes)
    with pytest.raises(AssertionError):
        assert_near(np.array([0.0]), nan, 1e-5, "", yes)
    with pytest.raises(AssertionError):
        assert_near(nan, np.array([0.0]), 1e-5, "", ~yes)


@WAYS
def test_rules_in_vmap_and_under_the_detector(name):
    """A rule is mapped over a batch, and makes no NaN on the way to a finite gradient."""
    import jax

    f, n = RULES[name]
    x = asarray("jax", [[0.0, 4.0, 1e-310], [2.0, 0.0, 0.5]])

    def total(*args):
        return f(*args).sum()

    every = tuple(range(n))
    with jax.debug_nans(True):
        slopes = jax.grad(total, every)(*[x] * n)
    mapped = jax.vmap(jax.grad(total, every))(*[x] * n)

    for a, b in zip(slopes, mapped, strict=True):
        assert np.isfinite(to_numpy(a)).all()
        assert_close(to_numpy(a), to_numpy(b), 1e-15, name)


@WAYS
def test_what_comes_to_a_fill_is_lost(name):
    """An infinite cotangent or tangent at a filled entry is 0, and not NaN."""
    import jax

    f, n = RULES[name]
    zero, one = asarray("jax", [0.0, 0.0]), asarray("jax", [-1.0, -1.0])
    of = {"safe_pow": [zero, one], "safe_exp": [zero + 1e9]}
    of |= {kind: [zero - np.inf] for kind in ("safe_logsumexp", "safe_softmax")}
    args = of.get(name.partition(",")[0], [zero] * 2)
    if name in ("safe_pow, number", "safe_pow, of a number", "safe_div, filled by an array"):
        return  # nothing is filled, or by what has a slope
    args = tuple(args[:n])
    for bad in (np.inf, -np.inf, np.nan):
        comes = asarray("jax", [bad, 1.0])

        wanted = generic(lambda comes=comes: jax.vjp(f, *args)[1](comes))
        assert [to_numpy(x).tolist() for x in jax.vjp(f, *args)[1](comes)] == [
            to_numpy(x).tolist() for x in wanted
        ]
        assert to_numpy(jax.jvp(f, args, (comes,) * n)[1]).tolist() == [0, 0]


def test_a_constant_has_no_part():
    """Along one argument, the infinite slope of the other is no factor of 0."""
    import jax

    inf, two = asarray("jax", np.inf), asarray("jax", 2.0)
    one = asarray("jax", 1.0)

    assert jax.jvp(lambda x: so.safe_div(x, two), (inf,), (one,))[1] == 0.5
    assert jax.jvp(lambda y: so.xlogy(two, y), (inf,), (one,))[1] == 0
    assert jax.jvp(lambda x: so.safe_pow(x, 1.0), (inf,), (one,))[1] == 1


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_comes_to_a_base_of_zero(bad):
    """At 0 only the powers 1 and 2 have a slope for the base, with which an infinite one is NaN."""
    import jax

    zero, p = asarray("jax", np.zeros(6)), asarray("jax", [0.0, 0.5, 3.0, -1.0, 1.0, 2.0])
    comes = asarray("jax", np.full(6, bad))

    def slopes():
        pulled = jax.vjp(so.safe_pow, zero, p)[1](comes)
        return *pulled, jax.jvp(lambda x: so.safe_pow(x, p), (zero,), (comes,))[1]

    for a, b in zip(slopes(), generic(slopes), strict=True):
        assert to_numpy(a)[:4].tolist() == [0] * 4
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


def test_the_power_of_an_unreal_base_is_not_computed():
    """No NaN is made on the way, which step by step a detector sees."""
    import jax

    x = asarray("jax", [-1.0, 0.0, 4.0])
    with jax.disable_jit(), jax.debug_nans(True):
        value, slope = jax.value_and_grad(lambda x: so.safe_pow(x, 0.5).sum())(x)

    assert value == 2
    assert slope.tolist() == [0, 0, 0.25]


@pytest.mark.parametrize("name", ["safe_div", "safe_sqrt"])
def test_no_fill_is_refused(name):
    """None is no value to fill with, and the message says what is."""
    x = asarray("jax", [1.0])

    with pytest.raises(TypeError, match="expected a number or an array as fill_value, got None"):
        getattr(so, name)(*[x] * OPTIONS.get(name, (None, 1))[1], fill_value=None)


LOST = np.full(10**6, 1e-19, np.float32)  # squares are below the smallest normal number
LOST[0] = 4e-16
NORMS = {
    "usual": [[3.0, 4.0], [1.0, 0.0]],
    "zeros": [[3.0, 4.0], [0.0, -0.0]],
    "small": [[3.0, 4.0], [3e-30, 4e-30], [0.0, 0.0]],
    "large": [[3e30, 4e30], [3.0, 4.0]],
    "infinite": [[-np.inf, 1.0], [3e30, 4e30]],
    "NaN": [[np.nan, 1.0], [3.0, 4.0]],
    "NaN and small": [[np.nan, 1.0], [3e-30, 4e-30]],
    "many lost": [LOST],
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("mode", ["jit", "vmap", "vmap of columns"])
def test_a_norm_is_one_sum_only_where_no_square_is_lost(kind, mode):
    """A branch for all slices chooses how to sum; it gives what the norm in float64 is."""
    import jax
    import jax.numpy as jnp

    x = np.asarray(NORMS[kind], np.float32)
    calls = {
        "jit": lambda x: so.safe_norm(x, axis=-1),
        "vmap": jax.vmap(so.safe_norm),
        "vmap of columns": lambda x: jax.vmap(so.safe_norm, in_axes=1)(x.T),
    }
    wanted = np.linalg.norm(x.astype(float), axis=-1)

    got = jax.jit(calls[mode])(x)

    assert_close(got, wanted, 1e-6, kind)
    if "lost" in kind or "small" in kind or "large" in kind:
        with pytest.raises(AssertionError):
            assert_close(jax.jit(lambda x: jnp.sqrt(jnp.sum(x * x, -1)))(x), wanted, 1e-6)


def test_a_batch_of_norms_has_one_branch():
    """A branch of each example would become a select, for which both ways are computed."""
    import jax

    def slope(f):
        return jax.jit(jax.vmap(jax.grad(f))).lower(np.ones((3, 2), np.float32)).as_text()

    def branch(x):
        return jax.lax.cond(x.sum() > 1, lambda x: (x * x).sum(), lambda x: x.sum(), x)

    assert "stablehlo.case" in slope(so.safe_norm)
    assert "stablehlo.case" not in slope(branch)


@pytest.mark.parametrize("apart", [1e18, 1e22, 1e25])
def test_a_determinant_of_rows_far_apart_in_size(apart):
    """The steps are taken where a multiplier of rows is flushed to 0, as it is beyond 1e19."""
    import jax.numpy as jnp

    a = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32) * np.float32([[apart], [1 / apart]])

    value = so.linalg.safe_det(jnp.asarray(a))

    np.testing.assert_allclose(value, np.linalg.det(a.T.astype(float)), rtol=1e-5)
