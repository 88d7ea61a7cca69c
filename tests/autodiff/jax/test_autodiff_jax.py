"""Masked autodiff for JAX: the programs that people reported, and random ones against the tape."""

from functools import partial

import numpy as np
import pytest

import tape
from assertions import assert_close
from frameworks import to_numpy
from parts import IN_PARTS, seeds_of

pytestmark = [pytest.mark.only("jax"), pytest.mark.usefixtures("mixed_dtypes")]

jax = pytest.importorskip("jax", reason="JAX is not selected, and this file is about it alone")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from reported_jax import (  # noqa: E402
    BAD_ROWS,
    INF,
    NAN,
    NAN_ROWS,
    PROGRAMS,
    PROGRAMS_RUN,
    ROWS,
    UNDEFINED,
    WEIGHTS,
    assert_same,
    first_rows,
    on_jax,
)
from safeops import autodiff  # noqa: E402
from safeops.autodiff import jax as masked  # noqa: E402


@pytest.mark.parametrize("name", NAN_ROWS)
def test_rows_that_nothing_uses_change_nothing(name):
    """With NaN rows the gradient is that without them; that of jax.grad is NaN."""
    loss = first_rows(NAN_ROWS[name])
    clean = jax.grad(loss)(WEIGHTS, ROWS)
    assert np.isfinite(clean).all()

    got = masked.grad(loss, on_unknown="error")(WEIGHTS, BAD_ROWS)

    assert_close(got, clean, 1e-12, name, 1e-12)
    assert np.isnan(jax.grad(loss)(WEIGHTS, BAD_ROWS)).any()


@pytest.mark.parametrize("name", NAN_ROWS)
def test_rows_that_nothing_uses_change_nothing_compiled(name):
    """So it is in `jax.jit`, where no value is known when the program is traced."""
    loss = first_rows(NAN_ROWS[name])

    got = jax.jit(masked.grad(loss, on_unknown="error"))(WEIGHTS, BAD_ROWS)

    assert_close(got, jax.grad(loss)(WEIGHTS, ROWS), 1e-12, name, 1e-12)


# One branch is run, and JAX guards the operands of those that vmap turns into a selection.
RIGHT_ANYWAY = {"branch of cond", "mapped cond"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_unmodified_programs(name):
    """A program that people wrote has its gradient; that of jax.grad is not finite."""
    f, x, wanted = PROGRAMS[name]

    assert_close(masked.grad(f, on_unknown="error")(x), wanted, 1e-14, name)
    assert np.isfinite(jax.grad(f)(x)).all() == (name in RIGHT_ANYWAY)


@pytest.mark.parametrize("name", PROGRAMS)
def test_unmodified_programs_compiled(name):
    """So it is in `jax.jit`, and with the masked pass only where the ordinary one is not finite."""
    f, x, wanted = PROGRAMS[name]

    assert_close(jax.jit(masked.grad(f, on_unknown="error"))(x), wanted, 1e-14, name)
    assert_close(masked.grad(f, lazy=True)(x), wanted, 1e-14, name)


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_derivatives_stay_undefined(name):
    """What no selection explains stays NaN or inf, as it is with jax.grad."""
    f, x, wanted = UNDEFINED[name]

    np.testing.assert_array_equal(masked.grad(f)(x), wanted)
    np.testing.assert_array_equal(jax.grad(f)(x), wanted)


# Random programs.


@IN_PARTS
def test_random_programs_agree_with_the_tape(part):
    """Gradients are those of the tape, NaN where it has NaN, and masks are its masks."""
    for seed in seeds_of(part, PROGRAMS_RUN):
        program, x = tape.clipped(seed) if seed % 2 else tape.drawn(seed)
        _, wanted, wanted_mask = tape.masked_gradient(partial(tape.run, program), x)

        gradient = masked.grad(on_jax(program), return_mask=True, exact=True, on_unknown="error")
        got, mask = map(to_numpy, gradient(jnp.asarray(x)))

        assert_same(got, wanted, f"seed {seed}: {program}")
        np.testing.assert_array_equal(mask, wanted_mask, f"seed {seed}: {program}")


def test_another_gradient_is_found():
    """The comparison with the tape fails for a hidden NaN and for another number."""
    with pytest.raises(AssertionError):
        assert_same(np.array([0.0]), np.array([NAN]), "")
    with pytest.raises(AssertionError):
        assert_same(np.array([1.0]), np.array([2.0]), "")


@IN_PARTS
def test_nothing_is_hidden(part):
    """Where jax.grad is finite ours is equal; the default contraction only adds NaN to `exact`."""
    for seed in seeds_of(part, PROGRAMS_RUN // 5):
        program, x = tape.drawn(seed)
        f, x = on_jax(program), jnp.asarray(x)
        ordinary, exact, default = map(
            to_numpy, (jax.grad(f)(x), masked.grad(f, exact=True)(x), masked.grad(f)(x))
        )

        finite = np.isfinite(ordinary)
        assert_close(default[finite], ordinary[finite], 1e-12, f"seed {seed}")
        agreed = np.isfinite(default)
        assert_close(default[agreed], exact[agreed], 1e-12, f"seed {seed}")


@IN_PARTS
def test_a_nan_that_is_used_is_not_hidden(part):
    """If the loss is NaN by an entry that is NaN, the gradient of a factor of it is not finite."""
    hidden = 0
    for seed in seeds_of(part, PROGRAMS_RUN // 5):
        program, x = tape.clipped(seed)
        f, ones, known = on_jax(program), jnp.ones_like(x), np.where(np.isnan(x), 1.5, x)
        loss = lambda w, x, f=f: f(w * x)  # noqa: E731
        if np.isnan(loss(ones, x)) and np.isfinite(loss(ones, known)):
            hidden += 1

            assert not jnp.isfinite(masked.grad(loss)(ones, x)).all(), f"seed {seed}: {program}"
    assert hidden > PROGRAMS_RUN // 100  # else nothing was there to hide


def test_forward_mode_agrees_with_reverse_mode():
    """The Jacobians of both modes are equal, entry by entry."""
    for seed in range(PROGRAMS_RUN // 25):
        program, x = tape.drawn(seed)
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
        (
            lambda: masked.jacrev(jnp.sin, lazy=True),
            TypeError,
            "unexpected keyword argument 'lazy'",
        ),
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


DATA = np.arange(18.0).reshape(3, 2, 3) + 1  # of three steps
DATA_OF_NAN = np.where(np.arange(2)[:, None] * np.arange(3)[:, None, None] == 1, NAN, DATA)


def read(rows, weights):
    """Sum what is read of a product: its second row is not read in the first column."""
    return jnp.where(jnp.asarray([[True, True], [False, True]]), rows @ weights, 0.0).sum()


def summed(weights):
    """Sum over steps."""
    return lax.scan(lambda total, rows: (total + read(rows, weights), 0.0), 0.0, DATA_OF_NAN)[0]


def summed_twice(weights):
    """Sum over steps of steps."""
    steps = jnp.stack([DATA_OF_NAN, DATA])
    inner = lambda rows: lax.scan(lambda c, r: (c + read(r, weights), 0.0), 0.0, rows)[0]  # noqa: E731
    return lax.scan(lambda total, rows: (total + inner(rows), 0.0), 0.0, steps)[0]


SUMS = {"by itself": (lambda w: read(DATA_OF_NAN[1], w), 1), "scan": (summed, 3)}
SUMS["scan of scans"] = (summed_twice, 6)
AROUND = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda w: jax.vmap(f)(jnp.stack([w, 2 * w]))[1],
    "jit of vmap": lambda f: lambda w: jax.jit(jax.vmap(f))(jnp.stack([w, 2 * w]))[1],
    "remat": lambda f: jax.jit(jax.checkpoint(f)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", SUMS)
def test_exact_in_loops_and_batches(name, around):
    """
    A coefficient of NaN that absent and active entries of a sum meet, in a step of several.

    With `exact` the first column is the sum of the rows that were read: the first of each step.
    """
    f, steps = SUMS[name]
    every = np.concatenate([DATA_OF_NAN, DATA])[:steps] if steps > 1 else DATA_OF_NAN[1:2]
    weights = jnp.ones((3, 2))

    got, usual = (AROUND[around](masked.grad(f, exact=e))(weights) for e in (True, False))

    np.testing.assert_array_equal(got[:, 0], every[:, 0].sum(0))
    assert np.isnan(got[:, 1]).all()  # the second row is read in the second column
    assert np.isnan(usual[:, 0]).all()


def test_exact_asks_once_for_a_batch():
    """A branch of each example would be a select, for which both ways are computed."""
    w = jnp.ones((4, 3, 2))
    ours = jax.jit(jax.vmap(masked.grad(lambda w: read(DATA[0], w), exact=True))).lower(w)
    branch = jax.vmap(lambda w: lax.cond(w.sum() > 1, lambda: w, lambda: 2 * w))

    assert "stablehlo.case" in ours.as_text()
    assert "stablehlo.case" not in jax.jit(branch).lower(w).as_text()


@jax.custom_vjp
def sanitized(x):
    """Return x; its backward pass sets to 0 what is not finite."""
    return x


sanitized.defvjp(lambda x: (x, None), lambda _, g: (jnp.where(jnp.isfinite(g), g, 0.0),))


def test_exact_beside_a_backward_pass_that_removes_nan():
    """In a scan that pass removes the NaN of absent entries, and the rest of a sum with them."""
    one, weights = jnp.ones((2, 2)), jnp.asarray([[INF, 2.0], [3.0, 4.0]])

    def step(x):
        return jnp.where(jnp.asarray([[True, True], [False, True]]), sanitized(x) @ weights, 0.0)

    def in_scan(x):
        return lax.scan(lambda c, _: (step(c), None), x, None, length=1)[0].sum()

    expected = [[0.0, 7.0], [2.0, 4.0]]
    np.testing.assert_array_equal(masked.grad(in_scan, exact=True)(one), expected)
    np.testing.assert_array_equal(masked.grad(lambda x: step(x).sum(), exact=True)(one), expected)
    np.testing.assert_array_equal(masked.grad(in_scan)(one)[1], [0.0, 4.0])


def test_exact_beside_a_scan_of_integers():
    """A backward pass may count entries in a scan: no result is a number with a gradient."""

    @jax.custom_vjp
    def counted(x):
        return x

    def backward(_, g):
        number, _ = lax.scan(lambda n, _: (n + (g > 0).sum(), None), 0, None, length=2)
        return (g * number,)

    counted.defvjp(lambda x: (x, None), backward)

    got = masked.grad(lambda x: counted(x).sum(), exact=True)(jnp.ones(2))

    np.testing.assert_array_equal(got, [4.0, 4.0])


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


def test_the_gradient_of_an_unused_argument_is_an_array():
    """It is an array of JAX as all others are, and no literal of a program."""
    slopes = masked.grad(lambda _, x: 2.0 * x, (0, 1))(1.0, 3.0)

    assert all(isinstance(slope, jax.Array) for slope in slopes)
    assert [float(slope) for slope in slopes] == [0.0, 2.0]
