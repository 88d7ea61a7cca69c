"""Masked autodiff for JAX: the programs that people reported, and random ones against the tape."""

import os
from functools import partial

import numpy as np
import pytest

import tape
from assertions import assert_close
from frameworks import to_numpy

pytestmark = [pytest.mark.only("jax"), pytest.mark.usefixtures("mixed_dtypes")]
jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from safeops import autodiff  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402

NAN, INF = np.nan, np.inf
ROWS = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, 1.0]])
BAD_ROWS = np.concatenate([ROWS, np.full((2, 3), NAN)])
WEIGHTS = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 1.0], [2.0, 1.0, 1.0]])


def first_rows(f):
    """Return a loss of the first two rows of what `f` makes of weights and rows."""

    def loss(weights, rows):
        out = f(rows, weights)
        return jnp.sum(out[:2] * jnp.arange(1.0, 1.0 + out[:2].size).reshape(out[:2].shape))

    return loss


def layer_norm(x, weights):
    """Normalise rows."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights[0]


def attention(x, weights):
    """Attend to the rows that are not NaN; a NaN row attends to none, and is NaN."""
    keep = ~jnp.isnan(x).any(-1)
    scores = jnp.where(keep[None, :] & keep[:, None], x @ weights @ x.T, -jnp.inf)
    values = jnp.where(keep[:, None], x @ weights, 0.0)
    return jax.nn.softmax(scores, axis=-1) @ values


def recurrent(x, weights):
    """Run over rows as steps."""

    def step(state, row):
        state = jnp.tanh(state @ weights + row)
        return state, state

    return lax.scan(step, jnp.zeros(3), x)[1]


def convolved(x, weights):
    """Convolve each row by itself."""
    return lax.conv_general_dilated(x[:, None, :], weights[None, :1, :2], (1,), "VALID")[:, 0]


# Programs of weights and rows; those of NaN rows that nothing uses must give what they give
# without these rows.
NAN_ROWS = {
    "matmul": lambda x, w: x @ w,
    "einsum": lambda x, w: jnp.einsum("ij,kj->ik", x, w),
    "mlp": lambda x, w: jnp.maximum(jnp.maximum(x @ w, 0) @ w, 0) @ w,
    "layer norm": layer_norm,
    "softmax": lambda x, w: jax.nn.softmax(x @ w, axis=-1),
    "attention": attention,
    "scan": recurrent,
    "checkpointed scan": jax.checkpoint(recurrent),
    "convolution": convolved,
    "mapped": lambda x, w: jax.vmap(lambda row: jnp.tanh(row @ w) * w[0])(x),
    "jitted": jax.jit(lambda x, w: jnp.log(jnp.abs(x @ w))),
    "cumulative sum": lambda x, w: jnp.cumsum(x @ w, axis=0),
    "segment sum": lambda x, w: jax.ops.segment_sum(x @ w, jnp.asarray([0, 1, 2, 2])[: len(x)], 3),
    "gather with repeats": lambda x, w: (x @ w)[jnp.asarray([0, 0, 1])],
    "sort": lambda x, w: jnp.sort(x @ w, axis=0),
    "maximum of rows": lambda x, w: jnp.max((x @ w)[:, :, None] * w, axis=1),
    "padded": lambda x, w: jnp.pad(x @ w, ((0, 1), (0, 0))),
    "set to zero": lambda x, w: (x @ w).at[2:].set(0.0),
    "mean over a mask": lambda x, w: jnp.where(jnp.isnan(x).any(-1)[:, None], 0.0, x @ w),
}


@pytest.mark.parametrize("name", NAN_ROWS)
def test_rows_that_nothing_uses_change_nothing(name):
    """With NaN rows the gradient is that without them; that of jax.grad is NaN."""
    loss = first_rows(NAN_ROWS[name])
    clean = jax.grad(loss)(WEIGHTS, ROWS)
    assert np.isfinite(clean).all()

    got = masked.grad(loss, on_unknown="error")(WEIGHTS, BAD_ROWS)
    compiled = jax.jit(masked.grad(loss, on_unknown="error"))(WEIGHTS, BAD_ROWS)

    assert_close(got, clean, 1e-12, name, 1e-12)
    assert_close(compiled, clean, 1e-12, name, 1e-12)
    assert np.isnan(jax.grad(loss)(WEIGHTS, BAD_ROWS)).any()


EVEN = np.array([False, True])
# A function, a point, and the gradient that mathematics gives.
PROGRAMS = {
    "arctan2 of the origin": (
        lambda x: jnp.where(x > 0.5, jnp.arctan2(x, x), 0.0),
        0.0,
        0.0,
    ),
    "entry of a stack": (lambda x: jnp.stack([jnp.zeros_like(x), 1 / x])[0], 0.0, 0.0),
    "division, then a mask": (
        lambda x: (x / np.array([0.0, 1.0]))[EVEN].sum(),
        np.array([1.0, 1.0]),
        [0.0, 1.0],
    ),
    "nansum of a product": (
        lambda b: jnp.nansum(np.array([3.0, NAN]) * b),
        np.array([1.0, 1.0]),
        [3.0, 0.0],
    ),
    "clipped exponential": (lambda x: jnp.clip(jnp.exp(x), max=1.0), 1000.0, 0.0),
    "largest logarithm": (lambda x: jnp.log(x).max(), np.array([0.0, 4.0, 2.0]), [0, 0.25, 0]),
    "smallest inverse": (lambda x: (1 / x).min(), np.array([0.0, 4.0, 2.0]), [0, -1 / 16, 0]),
    "tie": (lambda x: jnp.log(x).max(), np.array([0.0, 4.0, 4.0]), [0, 0.125, 0.125]),
    "running maximum": (
        lambda x: lax.cummax(jnp.sqrt(x))[1],
        np.array([0.0, 4.0, 9.0]),
        [0, 0.25, 0],
    ),
    "set to zero": (
        lambda x: jnp.sqrt(x).at[np.array([0])].set(0.0).sum(),
        np.array([0.0, 4.0]),
        [0.0, 0.25],
    ),
    "branch of cond": (
        lambda x: lax.cond(x > 1, jnp.log, lambda x: 2.0 * x, x),
        0.0,
        2.0,
    ),
    "cond of a value that one branch uses": (
        lambda x: lax.cond(x[1] > 1, lambda _: x[1], lambda y: y[0], jnp.log(x)),
        np.array([0.0, 4.0]),
        [0.0, 1.0],
    ),
    "mapped cond": (
        lambda x: jax.vmap(lambda x: lax.cond(x > 0, jnp.log, lambda x: 2.0 * x, x))(x).sum(),
        np.array([0.0, 4.0]),
        [2.0, 0.25],
    ),
    "largest of a pool": (
        lambda x: lax.reduce_window(jnp.sqrt(x), -INF, lax.max, (2,), (2,), "VALID").sum(),
        np.array([0.0, 4.0, 1.0, 0.0]),
        [0.0, 0.25, 0.5, 0.0],
    ),
    "flipped and joined": (
        lambda x: jnp.concatenate([jnp.sqrt(x)[::-1], x])[:1].sum(),
        np.array([0.0, 4.0]),
        [0.0, 0.25],
    ),
    "median": (lambda x: jnp.median(jnp.sqrt(x)), np.array([0.0, 4.0, 9.0]), [0.0, 0.25, 0.0]),
    "fori loop": (
        lambda x: lax.fori_loop(0, 2, lambda i, t: t + jnp.sqrt(x)[i], 0.0),
        np.array([1.0, 4.0, 0.0]),
        [0.5, 0.25, 0.0],
    ),
    "dynamic slice": (
        lambda x: lax.dynamic_slice(jnp.sqrt(x), (1,), (2,)).sum(),
        np.array([0.0, 4.0, 1.0]),
        [0.0, 0.25, 0.5],
    ),
    "complex": (
        lambda x: jnp.where(x > 0, jnp.abs(1j / x), 0.0).sum(),
        np.array([0.0, 2.0]),
        [0.0, -0.25],
    ),
}
# One branch is run, and JAX guards the operands of those that vmap turns into a selection.
RIGHT_ANYWAY = {"branch of cond", "mapped cond"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_unmodified_programs(name):
    """A program that people wrote has its gradient; that of jax.grad is not finite."""
    f, x, wanted = PROGRAMS[name]

    assert_close(masked.grad(f, on_unknown="error")(x), wanted, 1e-14, name)
    assert_close(jax.jit(masked.grad(f, on_unknown="error"))(x), wanted, 1e-14, name)
    assert_close(masked.grad(f, lazy=True)(x), wanted, 1e-14, name)
    assert np.isfinite(jax.grad(f)(x)).all() == (name in RIGHT_ANYWAY)


UNDEFINED = {
    "square of a root": (lambda x: jnp.sqrt(x) ** 2, 0.0, NAN),
    "root at the edge": (lambda x: jnp.where(x >= 0, jnp.sqrt(x), 0.0), 0.0, INF),
    "quotient of zeros": (lambda x: x / x, 0.0, NAN),
    "zero times a logarithm": (lambda x: 0.0 * jnp.log(x), 0.0, NAN),
    "norm": (jnp.linalg.norm, np.zeros(2), [NAN, NAN]),
    "product with a mask": (
        lambda x: (jnp.sqrt(x) * np.array([0.0, 1.0])).sum(),
        np.array([0.0, 4.0]),
        [NAN, 0.25],
    ),
    "maximum with a NaN": (
        lambda x: jnp.max(jnp.stack([x, x * NAN])),
        1.0,
        NAN,
    ),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(name):
    """What no selection explains stays NaN or inf, as it is with jax.grad."""
    f, x, wanted = UNDEFINED[name]

    np.testing.assert_array_equal(masked.grad(f)(x), wanted)
    np.testing.assert_array_equal(jax.grad(f)(x), wanted)


# Random programs.


class Operations:
    """The array language of the tape, on JAX."""

    sqrt, log, exp, where = map(staticmethod, (jnp.sqrt, jnp.log, jnp.exp, jnp.where))
    matmul, maximum, total = map(staticmethod, (jnp.matmul, jnp.maximum, jnp.sum))
    transpose = staticmethod(jnp.transpose)
    reverse = staticmethod(lambda x: x[::-1])
    inverse = staticmethod(jnp.reciprocal)
    positive = staticmethod(lambda x: x > 0.5)
    set_zero = staticmethod(lambda x, index: x.at[index].set(0.0))
    take = staticmethod(lambda x, index: x[jnp.asarray(index)])
    concat = staticmethod(lambda x, y: jnp.concatenate([x, y]))
    cumsum = staticmethod(partial(jnp.cumsum, axis=0))
    largest = staticmethod(partial(jnp.max, axis=0))
    sort = staticmethod(partial(jnp.sort, axis=0))


PROGRAMS_RUN = int(os.environ.get("SAFEOPS_PROGRAMS", "500"))


def drawn(seed):
    """Return a random program, and a point with zeros, infinities and NaN."""
    numbers = np.random.default_rng(seed)
    return tape.random_program(numbers), numbers.choice(tape.POINTS, (tape.N, tape.N))


def on_jax(program):
    """Return a program as a function of a JAX array."""
    return lambda x: tape.run(program, Operations, x)


def test_random_programs_agree_with_the_tape():
    """Gradients are those of the tape, NaN where it has NaN, and masks are its masks."""
    for seed in range(PROGRAMS_RUN):
        program, x = drawn(seed)
        _, wanted, wanted_mask = tape.masked_gradient(partial(tape.run, program), x)

        gradient = masked.grad(on_jax(program), return_mask=True, exact=True, on_unknown="error")
        got, mask = map(to_numpy, gradient(jnp.asarray(x)))

        assert_same(got, wanted, f"seed {seed}: {program}")
        np.testing.assert_array_equal(mask, wanted_mask, f"seed {seed}: {program}")


def assert_same(got, wanted, message):
    """Equal where finite, and finite in the same places."""
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(got), finite, message)
    assert_close(got[finite], wanted[finite], 1e-9, message, 1e-12)


def test_another_gradient_is_found():
    """The comparison with the tape fails for a hidden NaN and for another number."""
    with pytest.raises(AssertionError):
        assert_same(np.array([0.0]), np.array([NAN]), "")
    with pytest.raises(AssertionError):
        assert_same(np.array([1.0]), np.array([2.0]), "")


def test_nothing_is_hidden():
    """Where jax.grad is finite ours is equal; the default contraction only adds NaN to `exact`."""
    for seed in range(PROGRAMS_RUN // 5):
        program, x = drawn(seed)
        f, x = on_jax(program), jnp.asarray(x)
        ordinary, exact, default = map(
            to_numpy, (jax.grad(f)(x), masked.grad(f, exact=True)(x), masked.grad(f)(x))
        )

        finite = np.isfinite(ordinary)
        assert_close(default[finite], ordinary[finite], 1e-12, f"seed {seed}")
        agreed = np.isfinite(default)
        assert_close(default[agreed], exact[agreed], 1e-12, f"seed {seed}")


def test_forward_mode_agrees_with_reverse_mode():
    """The Jacobians of both modes are equal, entry by entry."""
    for seed in range(PROGRAMS_RUN // 25):
        program, x = drawn(seed)
        f, x = on_jax(program), jnp.asarray(x)

        forward = masked.jacfwd(f, exact=True)(x)

        assert_same(to_numpy(forward), to_numpy(masked.grad(f, exact=True)(x)), f"seed {seed}")


# Transformations.


def log_where(x):
    """Return the logarithm where there is one."""
    return jnp.where(x > 0, jnp.log(x), 0.0)


def test_second_derivatives():
    """Ours of ours is right; jax.grad of ours has zeros for absent entries again."""
    f, x = (lambda x: jnp.where(x > 0, x**1.5, 0.0)), 0.0

    assert masked.grad(masked.grad(f))(x) == 0
    assert masked.hessian(f)(x) == 0
    assert np.isnan(jax.grad(masked.grad(f))(x))


def test_hessian_of_many():
    """The Hessian of ``where(x > 0, log(x), 0) * x[::-1]`` at [0, 2]."""
    got = masked.hessian(lambda x: (log_where(x) * x[::-1]).sum())(jnp.asarray([0.0, 2.0]))

    np.testing.assert_allclose(got, [[0.0, 0.5], [0.5, 0.0]])


@pytest.mark.parametrize("jacobian", [masked.jacrev, masked.jacfwd])
def test_jacobians_keep_structures(jacobian):
    """A Jacobian has the structure of the output, and in each leaf that of the input."""

    def f(tree):
        return {"root": jnp.sqrt(tree["a"]), "sum": (tree["a"].sum() + tree["b"],)}

    got = jacobian(f)({"a": jnp.asarray([0.0, 4.0]), "b": jnp.asarray(1.0)})

    np.testing.assert_array_equal(got["root"]["a"], [[INF, 0.0], [0.0, 0.25]])
    np.testing.assert_array_equal(got["root"]["b"], [0.0, 0.0])
    np.testing.assert_array_equal(got["sum"][0]["a"], [1.0, 1.0])
    np.testing.assert_array_equal(got["sum"][0]["b"], 1.0)


def test_mapped():
    """A mapped gradient is the gradient of each."""
    np.testing.assert_array_equal(
        jax.vmap(masked.grad(log_where))(jnp.asarray([0.0, 2.0])), [0, 0.5]
    )


def test_sharded():
    """Inside and around shard_map, with a sum over devices."""
    from jax.sharding import AxisType, PartitionSpec

    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    part = PartitionSpec("i")

    def local(x):
        return lax.psum(log_where(x).sum(), "i")

    f = jax.shard_map(local, mesh=mesh, in_specs=part, out_specs=PartitionSpec())
    np.testing.assert_array_equal(masked.grad(f)(jnp.asarray([0.0, 2.0])), [0.0, 0.5])


def test_inside_scan():
    """A training loop: gradients are taken in each step of a scan."""

    def step(x, _):
        return x - 0.1 * masked.grad(lambda x: log_where(x).sum())(x), None

    last, _ = lax.scan(step, jnp.asarray([0.0, 2.0]), length=2)
    second = 2.0 - 0.05 - 0.1 / 1.95
    np.testing.assert_allclose(last, [0.0, second])


def test_custom_rules_stay():
    """A custom_vjp function has its own rule, and one of custom_jvp too."""

    @jax.custom_vjp
    def reverse(x):
        return x

    reverse.defvjp(lambda x: (x, x), lambda _, g: (3.0 * g,))

    @jax.custom_jvp
    def forward(x):
        return x

    forward.defjvp(lambda x, dx: (x[0], 5.0 * dx[0]))
    f = lambda x: (reverse(jnp.sqrt(x)) * forward(x))[1]  # noqa: E731

    np.testing.assert_allclose(masked.grad(f)(jnp.asarray([0.0, 4.0])), [0.0, 0.75 * 4 + 5.0 * 2])


def test_control_flow_of_python():
    """A function may branch on the values of its arguments, as with jax.grad."""
    f = lambda x: jnp.maximum(x, 0.0) * 2.0 if x > 1 else x  # noqa: E731

    assert masked.grad(f)(3.0) == 2
    assert masked.grad(f)(0.5) == 1


# The signatures of JAX.


def test_masks_tell_zero_from_absent():
    """A gradient of 0 that is active is a slope; one that is not was never used."""
    gradient, mask = masked.grad(lambda x: (0.0 * x)[0] + x[1] ** 2, return_mask=True)(jnp.zeros(3))

    np.testing.assert_array_equal(gradient, [0, 0, 0])
    np.testing.assert_array_equal(mask, [True, True, False])


def test_arguments_and_pytrees():
    """Several arguments, keywords, pytrees with None, and auxiliary output."""

    def f(a, tree, *, scale):
        return scale * (a * tree["x"]).sum(), "aux"

    tree = {"x": jnp.asarray([1.0, 2.0]), "none": None}
    (value, aux), (first, second) = masked.value_and_grad(f, (0, -1), has_aux=True)(
        3.0, tree, scale=2.0
    )

    assert (value, aux, first) == (18, "aux", 6)
    np.testing.assert_array_equal(second["x"], [6, 6])
    assert second["none"] is None
    assert masked.grad(f, has_aux=True)(3.0, tree, scale=2.0)[1] == "aux"


def test_vjp_and_jvp():
    """The pullback takes any cotangent; forward mode any direction."""
    x = jnp.asarray([0.0, 4.0])
    value, pullback = masked.vjp(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0), x)
    out, tangent = masked.jvp(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0), (x,), (jnp.ones(2),))

    np.testing.assert_array_equal(value, [0, 2])
    np.testing.assert_array_equal(pullback(jnp.asarray([1.0, 8.0]))[0], [0, 2])
    np.testing.assert_array_equal(out, [0, 2])
    np.testing.assert_array_equal(tangent, [0, 0.25])


def test_integers():
    """Integers are refused, or have a gradient of float0."""
    f = lambda i, x: x[i]  # noqa: E731

    with pytest.raises(TypeError, match="allow_int=True"):
        masked.grad(f)(1, jnp.ones(2))
    i, x = masked.grad(f, (0, 1), allow_int=True)(1, jnp.ones(2))
    assert i.dtype == jax.dtypes.float0
    np.testing.assert_array_equal(x, [0, 1])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: masked.grad(lambda x: x)(jnp.ones(2)), TypeError, "scalar value"),
        (lambda: masked.grad(lambda x: x * 1j)(1.0), TypeError, "real value"),
        (lambda: masked.vjp(jnp.sin, 1.0, on_unknown="raise"), ValueError, "warn, error, ignore"),
        (lambda: masked.vjp(jnp.sin, 1.0, lazy=True, return_mask=True), ValueError, "one of lazy"),
        (lambda: masked.jacrev(jnp.sin, lazy=True), TypeError, "exact and on_unknown"),
    ],
)
def test_words_of_errors(call, error, words):
    """Bad input is told what was given and what is accepted."""
    with pytest.raises(error, match=words):
        call()


def test_exact_contraction():
    """A NaN coefficient beside absent and active entries: NaN by default, right with `exact`."""

    def f(x):
        return (jnp.asarray([[1.0, NAN]]) @ x[:, None])[0, 0] + x[0]

    def g(x):
        y = jnp.asarray([[1.0, 2.0], [NAN, 1.0]]) * x
        return (y @ jnp.ones((2, 2)))[0].sum()

    x = jnp.asarray([1.0, 1.0])
    assert np.isnan(masked.grad(f, exact=True)(x)[1])
    np.testing.assert_array_equal(masked.grad(g, exact=True)(x), [2.0, 4.0])


def test_exact_convolution():
    """Padded steps in a sequence that no output read reaches: the gradient is as without them."""
    steps = jnp.asarray([1.0, 2.0, 3.0, NAN])

    def f(kernel):
        return jnp.convolve(steps, kernel, mode="valid")[:2].sum()

    kernel = jnp.asarray([1.0, 0.5])
    assert np.isnan(jax.grad(f)(kernel)).any()
    np.testing.assert_array_equal(masked.grad(f)(kernel), [5.0, 3.0])
    np.testing.assert_array_equal(masked.grad(f, exact=True)(kernel), [5.0, 3.0])
    np.testing.assert_array_equal(jax.jit(masked.grad(f, exact=True))(kernel), [5.0, 3.0])


# What the code relies on beside the public API.


def test_the_trace_of_jax_is_where_it_was():
    """`jax.core.Trace` and the context of `jax.extend.core` carry the choosers."""
    from safeops.autodiff.jax import _choosers as choosers

    top = choosers.find_top_trace(())
    assert isinstance(top, choosers.Trace)
    with choosers.set_current_trace(top):
        assert jnp.add(1.0, 1.0) == 2
    for name in ("process_primitive", "process_custom_jvp_call", "process_custom_vjp_call"):
        assert hasattr(choosers.Trace, name)


# One text for all frameworks.


def test_the_framework_of_the_arguments_is_picked():
    """`safeops.autodiff.grad` is that of JAX for its arrays, and says what it has none for."""
    x = jnp.asarray([0.0, 2.0])

    np.testing.assert_array_equal(autodiff.grad(lambda x: log_where(x).sum())(x), [0.0, 0.5])
    gradients, masks = autodiff.grad(lambda a, x: a * x[1], (0, 1), return_mask=True)(2.0, x)
    np.testing.assert_array_equal(gradients[1], [0.0, 2.0])
    np.testing.assert_array_equal(masks[1], [False, True])
    with pytest.raises(TypeError, match="got numpy"):
        autodiff.grad(lambda x: x.sum())(np.ones(2))
