"""Rotations: values and derivatives in every mode, chosen gradients, errors."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.exceptions import AxisError

import turning
from derivatives import MODES, REPEATED, SECOND
from exponents import EXHAUSTIVE
from frameworks import asarray, in_one_program, to_numpy
from safeops import rotations as so
from safeops._backends import load
from safeops._core.dtypes import dtype_name
from safeops._dispatch import backend_of
from specs.rotations import SPECS, naive_angle
from turned import errors, found

RTOL = {"float64": 1e-9, "float32": 1e-5}
# Where a function is traced or compiled for each order, these two have all modes, with all orders
# but those that are REPEATED, and the others some, unless SAFEOPS_EXHAUSTIVE is set.
STAND_FOR_ALL = ("rotvec_to_matrix", "quaternion_to_rotvec")
CHEAP = {"torch": ("autograd", "func", "vmap"), "jax": ("jit",), "tensorflow": ("eager",)}
REST = {"torch": (), "jax": ("forward", "rev-rev", "rev-fwd", "fwd-fwd")}
REST["tensorflow"] = ("forward", "fwd-rev", "rev-fwd", "fwd-fwd")


def pytest_generate_tests(metafunc):
    """Run a row in each mode of each selected framework, and in float32 in one mode of it."""
    if "way" not in metafunc.fixturenames:
        return
    ways = [
        (row, (name, mode, dtype))
        for name, modes in MODES.items()
        for mode in modes
        for dtype in RTOL
        for row in SPECS
        if is_due(row, name, mode, dtype)
    ]
    ids = ["-".join([row.name, *way]) for row, way in ways]
    metafunc.parametrize(("row", "way"), ways, ids=ids)


def is_due(row, name, mode, dtype):
    """Whether a row runs in a mode."""
    if EXHAUSTIVE:
        return True
    if dtype == "float32":
        return mode == CHEAP[name][0] and (name == "torch" or row.name in STAND_FOR_ALL)
    return mode in CHEAP[name] or row.name in STAND_FOR_ALL


# Infinite in float32 for angles of 1e-30 (docs/explain/limits.md).
INFINITE = {
    ("tensorflow", mode): (("fwd-fwd",), "1 / angle**2 is beyond float32")
    for mode in ("function", "unknown-shape", "xla")
}
ANGLES = ("safe_angle", "squared_angle")


def left_out(row, framework, dtype):
    """Return the orders that a row leaves to others, and those that it has not got."""
    orders = () if EXHAUSTIVE or row.name in STAND_FOR_ALL else REST[framework]
    modes = CHEAP[framework] if orders else ()
    repeated = {} if EXHAUSTIVE else {way: (SECOND, fact) for way, fact in REPEATED.items()}
    return (
        repeated
        | (INFINITE if dtype == "float32" and row.name in ANGLES else {})
        | {(framework, mode): (orders, "SAFEOPS_EXHAUSTIVE has them") for mode in modes}
    )


def lost_by_a_turn(row, point, dtype):
    """Return what a slope loses: a few times as many units as a turn has radians."""
    if not row.name.startswith(("rotvec", "twist")):
        return 0
    return 4 * np.finfo(dtype).eps * np.abs(point[0]).max()


def test_values_and_derivatives_are_those_of_the_formula(row, way):
    """All derivatives are exact at all points, beside points of NaN, inf and 0 in one batch."""
    framework, _, dtype = way

    points = row.points_in(dtype)
    allowed = np.array([RTOL[dtype] + lost_by_a_turn(row, point, dtype) for point in points])
    got = found(row, *way, left_out(row, framework, dtype))
    for order, error in errors(row, got, dtype).items():
        at = (error / allowed).argmax()
        assert error[at] <= allowed[at], (order, error[at], points[at])


def test_what_one_point_does_to_another_is_found(autodiff_framework):
    """A sum over the batch, even times 0, brings the NaN of a point to the other ones."""
    row = next(row for row in SPECS if row.name == "rotvec_to_matrix")
    planted = replace(row, op=lambda w: row.op(w) + 0.0 * backend_of(w).xp.sum(w))
    mode = CHEAP[autodiff_framework][0]
    skipped = {(autodiff_framework, mode): (("forward", *SECOND), "one derivative will do")}

    got = found(planted, autodiff_framework, mode, "float64", skipped)

    assert (errors(row, got, "float64")["value"] == np.inf).all()


# Against SciPy, and there and back.


@pytest.fixture
def scipy_rotation():
    """SciPy's rotations."""
    return pytest.importorskip("scipy.spatial.transform", reason="SciPy is not installed")


RNG = np.random.default_rng(20)
TURNS = np.concatenate([RNG.normal(size=(20, 3)), [[0.0, 0, 0], [1e-9, 0, 0], [0, np.pi, 0]]])


def test_scipy_agrees(scipy_rotation):
    """Rotation vectors, matrices and quaternions are those of scipy.spatial.transform."""
    theirs = scipy_rotation.Rotation.from_rotvec(TURNS)
    matrix, q = theirs.as_matrix(), theirs.as_quat()
    upright = theirs.as_quat(canonical=True)

    pairs = [
        (so.rotvec_to_matrix(TURNS), matrix),
        (so.rotvec_to_quaternion(TURNS), q),
        (so.quaternion_to_matrix(3.0 * q), matrix),
        (so.quaternion_to_rotvec(-3.0 * q)[:-1], theirs.as_rotvec()[:-1]),
        (so.matrix_to_rotvec(matrix), theirs.from_matrix(matrix).as_rotvec()),
        (so.matrix_to_quaternion(matrix)[:-1], upright[:-1]),
    ]

    for ours, wanted in pairs:
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=4e-15)


def test_the_way_between_quaternions_is_that_of_scipy(scipy_rotation):
    """`quaternion_slerp` takes the shorter way, as SciPy's Slerp does."""
    p, q, t = RNG.normal(size=(9, 4)), RNG.normal(size=(9, 4)), RNG.uniform(size=9)
    slerp, rotation = scipy_rotation.Slerp, scipy_rotation.Rotation

    wanted = [
        slerp([0, 1], rotation.from_quat([a, b]))(s).as_matrix()
        for a, b, s in zip(p, q, t, strict=True)
    ]

    ours = so.quaternion_to_matrix(so.quaternion_slerp(p, q, t))
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=4e-15)


def test_rigid_motions_are_those_of_scipy(scipy_rotation):
    """A twist is a rotation vector, then a translation, as in SciPy's RigidTransform."""
    if not hasattr(scipy_rotation, "RigidTransform"):
        pytest.skip("RigidTransform came with SciPy 1.16")
    twist = np.concatenate([TURNS, RNG.normal(size=TURNS.shape)], axis=-1)
    theirs = scipy_rotation.RigidTransform.from_exp_coords(twist)

    np.testing.assert_allclose(so.twist_to_matrix(twist), theirs.as_matrix(), rtol=0, atol=1e-14)
    back = so.matrix_to_twist(theirs.as_matrix())
    np.testing.assert_allclose(back[:-1], theirs.as_exp_coords()[:-1], rtol=0, atol=2e-14)


THERE_AND_BACK = {
    "by matrices": (so.rotvec_to_matrix, so.matrix_to_rotvec, 3),
    "by quaternions": (so.rotvec_to_quaternion, so.quaternion_to_rotvec, 3),
    "by rigid motions": (so.twist_to_matrix, so.matrix_to_twist, 6),
}


@pytest.mark.parametrize("name", THERE_AND_BACK)
def test_there_and_back_is_the_identity(name, autodiff_framework):
    """Value and Jacobian of there and back are those of the identity, from 0 to nearly pi."""
    there, back, n = THERE_AND_BACK[name]
    backend = load(autodiff_framework)
    sizes = np.array([0.0, 1e-30, 1e-9, 1e-4, 1.0, 3.0])[:, None]
    x = asarray(autodiff_framework, sizes * np.array([2.0, -1.0, 2.0, 3.0, 3.0, -3.0])[:n] / 3)

    value = back(there(x))

    def pulled(unit):
        return backend.grad(lambda x: backend.xp.sum(back(there(x)) * unit))(x)[0]

    units = [asarray(autodiff_framework, unit) for unit in np.eye(n)]
    rows = list(map(in_one_program(autodiff_framework, pulled), units))

    np.testing.assert_allclose(to_numpy(value), to_numpy(x), rtol=2e-15, atol=1e-15)
    jacobian = np.stack([to_numpy(row) for row in rows], axis=1)
    np.testing.assert_allclose(jacobian, np.broadcast_to(np.eye(n), jacobian.shape), atol=2e-13)


# What is chosen.

X, Z = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]
ORIGIN, TOP = [0.0, 0.0, 0.0], [0.0, 0.0, 1.5]
NONE, NORTH = [0.0] * 4, [0.0, 0.0, 0.0, 1.0]
CHOSEN = {
    "the rotation vector of no quaternion": (so.quaternion_to_rotvec, [NONE], [0.0] * 3),
    "the matrix of no quaternion": (so.quaternion_to_matrix, [NONE], np.eye(3)),
    "the way from no quaternion": (so.quaternion_slerp, [NONE, NORTH, 0.5], NONE),
    "the way to no quaternion": (so.quaternion_slerp, [NORTH, NONE, 0.5], NONE),
    "parallel vectors": (so.safe_angle, [X, [3.0, 0, 0]], 0.0),
    "parallel vectors, rounded": (so.safe_angle, [[0.1, 0.2, 0.7], [0.3, 0.6, 2.1]], 0.0),
    "opposite vectors": (so.safe_angle, [[0.1, 0.2, 0.7], [-0.3, -0.6, -2.1]], np.pi),
    "a zero vector": (so.safe_angle, [ORIGIN, X], 0.0),
    "two zero vectors": (so.safe_angle, [ORIGIN, ORIGIN], 0.0),
    "opposite vectors, squared": (so.squared_angle, [X, [-2.0, 0, 0]], np.pi**2),
    "a zero vector, squared": (so.squared_angle, [X, ORIGIN], 0.0),
    "three points on a line": (so.safe_dihedral, [Z, ORIGIN, TOP, X], 0.0),
    "three points on a slanting line": (
        so.safe_dihedral,
        [[0.1, 0.2, 0.3], [0.3, 0.6, 0.9], [0.7, 1.4, 2.1], X],
        0.0,
    ),
    "two points that coincide": (so.safe_dihedral, [X, TOP, TOP, ORIGIN], 0.0),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_gradients(name, autodiff_framework):
    """At the singular points the value is the one stated, and gradient and Hessian are 0."""
    op, args, wanted = CHOSEN[name]
    backend = load(autodiff_framework)
    xp, args = backend.xp, [asarray(autodiff_framework, x) for x in args]

    def g(*args):
        return xp.sum(op(*args))

    def slope(*args):
        return sum(xp.sum(x * 1.5) for x in backend.grad(g)(*args))

    np.testing.assert_array_equal(to_numpy(op(*args)), wanted)
    for x in (*backend.grad(g)(*args), *backend.grad(slope)(*args)):
        assert (to_numpy(x) == 0).all()


BESIDE = {
    "the rotation vector of a small quaternion": (
        *(so.quaternion_to_rotvec, [[0.0, 0.0, 0.0, 1e-100]]),
        [[2e100] * 3 + [0.0]],
    ),
    "nearly parallel vectors": (
        *(so.safe_angle, [X, [1.0, 1e-12, 0.0]]),
        [[0.0, -1.0, 0.0], [-1e-12, 1.0, 0.0]],
    ),
    "nearly opposite vectors": (
        *(so.safe_angle, [X, [-1.0, 1e-12, 0.0]]),
        [[0.0, -1.0, 0.0], [-1e-12, -1.0, 0.0]],
    ),
    "three points nearly on a line": (
        *(so.safe_dihedral, [[1e-12, 0.0, 1.0], ORIGIN, TOP, [1.0, 0.0, 1.0]]),
        [[0, -1e12, 0], [0, (1e12 - 1) / 3, 0], [0, (2e12 - 2) / 3, 0], [0, 1, 0]],
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_gradients_beside_the_chosen_ones(name, autodiff_framework):
    """Beside a singular point the gradient is the derivative, however large."""
    op, args, wanted = BESIDE[name]
    backend = load(autodiff_framework)
    args = [asarray(autodiff_framework, x) for x in args]

    found = backend.grad(lambda *args: backend.xp.sum(op(*args)))(*args)

    for got, exact in zip(found, wanted, strict=True):
        np.testing.assert_allclose(to_numpy(got), exact, rtol=1e-11, atol=1e-23)


def test_half_a_turn_apart_has_the_way_to_the_second(autodiff_framework):
    """Of two ways that are equally short, the one to `q` itself is taken."""
    p, q = (asarray(autodiff_framework, x) for x in (NORTH, [1.0, 0.0, 0.0, 0.0]))
    half = 0.5**0.5

    for sign in (1.0, -1.0):
        got = so.quaternion_slerp(p, sign * q, asarray(autodiff_framework, 0.5))
        np.testing.assert_allclose(to_numpy(got), [sign * half, 0, 0, half], atol=1e-15)


@pytest.mark.parametrize("row", SPECS, ids=lambda row: row.name)
def test_no_finite_result_of_what_is_not(row, framework):
    """A NaN or inf in an entry that is read makes NaN in the result of its point, and no other."""
    x = turning.flat(row.points_in("float64")[6])
    read = np.arange(x.size) < (12 if row.name == "matrix_to_twist" else x.size)
    bad = np.flatnonzero(np.tile(read, 3))
    points = np.tile(x, (3 * x.size, 1))
    points[np.arange(3 * x.size), np.tile(np.arange(x.size), 3)] = np.repeat(
        [np.nan, np.inf, -np.inf], x.size
    )
    points = np.stack([points[bad], np.broadcast_to(x, (bad.size, x.size))])
    shapes = [y.shape for y in row.points_in("float64")[6]]
    parts = np.split(points, np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1], -1)
    args = [np.reshape(y, (2, bad.size, *s)) for y, s in zip(parts, shapes, strict=True)]

    with np.errstate(invalid="ignore"):
        value = to_numpy(row.op(*(asarray(framework, a) for a in args)))

    bad, good = value.reshape(2, bad.size, -1)
    assert np.isnan(bad).any(-1).all()
    assert np.isfinite(good).all()


@pytest.mark.parametrize("row", SPECS, ids=lambda row: row.name)
def test_nan_has_a_gradient_of_nan(row, autodiff_framework):
    """Of a point with a NaN the gradient is NaN, no silent 0."""
    args = [np.stack([y, y]) for y in row.points_in("float64")[6]]
    args[0][(0,) * args[0].ndim] = np.nan
    arrays = [asarray(autodiff_framework, a) for a in args]
    backend = load(autodiff_framework)

    slope = backend.grad(lambda *args: backend.xp.sum(row.op(*args)))
    found = in_one_program(autodiff_framework, slope)(*arrays)

    assert np.isnan(to_numpy(found[0])[0]).any()
    assert all(np.isfinite(to_numpy(x)[1]).all() for x in found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("row", SPECS, ids=lambda row: row.name)
def test_values_everywhere(row, dtype, framework):
    """Values are those of the formula in each dtype, which is kept; an empty batch stays empty."""
    if dtype in ("float16", "bfloat16") and framework in ("numpy", "array-api-strict"):
        pytest.skip("has no such dtype in the standard")
    points = row.points_in("float64")[3:6]
    args = [asarray(framework, np.stack(column), dtype) for column in zip(*points, strict=True)]
    rounded = [tuple(to_numpy(a)[i].astype(float) for a in args) for i in range(3)]

    value, empty = row.op(*args), row.op(*(a[:0, ...] for a in args))

    assert dtype_name(value.dtype) == dtype_name(empty.dtype) == dtype
    assert tuple(empty.shape) == (0, *value.shape[1:])
    exact = [turning.value_at(row, point) for point in rounded]
    rtol = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    got = to_numpy(value).astype(float).reshape(3, -1)
    np.testing.assert_allclose(got, exact, rtol=rtol, atol=rtol)


def test_arguments_are_broadcast(framework):
    """One quaternion and many, vectors and a batch of them, each along the last axis."""
    q = asarray(framework, np.tile(NORTH, (2, 1)))
    t = asarray(framework, [[0.0], [0.5], [1.0]])
    x, many = asarray(framework, X), asarray(framework, np.tile(X, (5, 4, 1)))

    assert so.quaternion_slerp(q[0, ...], q, t).shape == (3, 2, 4)
    assert so.safe_angle(x, many).shape == (5, 4)
    assert so.squared_angle(many, x).shape == (5, 4)
    assert so.safe_dihedral(x, many, x, many).shape == (5, 4)
    assert so.safe_angle(many, many, axis=0).shape == (4, 3)
    assert so.safe_dihedral(*[many[:3, ...]] * 4, axis=0).shape == (4, 3)


WRONG = {
    "rotvec_to_matrix": (
        [[4]],
        r"rotvec_to_matrix: expected rotation vectors of .*3\), got \(4,\)",
    ),
    "matrix_to_rotvec": (
        [[3]],
        r"matrix_to_rotvec: expected rotation matrices .*3, 3\), got \(3,\)",
    ),
    "quaternion_slerp": ([[4], [3], []], r"quaternion_slerp: expected quaternions .*got \(3,\)"),
    "safe_dihedral": ([[2]] * 4, r"safe_dihedral: expected points of .*3\), got \(2,\)"),
    "twist_to_matrix": ([[2, 4]], r"twist_to_matrix: expected twists of .*6\), got \(2, 4\)"),
    "matrix_to_twist": ([[3, 3]], r"matrix_to_twist: expected matrices of rigid .*got \(3, 3\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_shapes_that_do_not_fit(name, framework):
    """A wrong length is an error that names the function, what it takes and what was given."""
    shapes, message = WRONG[name]

    with pytest.raises(ValueError, match=message):
        getattr(so, name)(*(asarray(framework, np.zeros(shape)) for shape in shapes))


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("rank", [None, "known"])
@pytest.mark.parametrize("row", SPECS, ids=lambda row: row.name)
def test_lengths_that_a_trace_does_not_know(row, rank):
    """A wrong length is an error also where only the running program knows it."""
    import tensorflow as tf

    if row.name in ANGLES:
        pytest.skip("takes vectors of any length")
    args = [tf.constant(np.stack([x, x])) for x in row.points_in("float64")[6]]
    specs = [tf.TensorSpec(rank and [None] * len(x.shape), x.dtype) for x in args]
    program = tf.function(row.op, input_signature=specs)
    longer = tf.concat([args[0], args[0][..., :1]], -1)

    np.testing.assert_allclose(program(*args), row.op(*args), rtol=1e-12, atol=1e-15)
    with pytest.raises(tf.errors.InvalidArgumentError):
        program(longer, *args[1:])


@pytest.mark.parametrize("name", ["safe_angle", "squared_angle", "safe_dihedral"])
def test_numbers_are_no_vectors(name, framework):
    """A number has no axis: an error, also where the framework takes it for a vector of one."""
    vector, number = asarray(framework, X), asarray(framework, 1.0)
    count = 4 if name == "safe_dihedral" else 2

    with pytest.raises(AxisError, match=rf"^{name}: .* with 0 axes, got axis=-1$"):
        getattr(so, name)(*[number] * count)
    if count == 2:
        with pytest.raises(ValueError, match=rf"^{name}: .* with axis -1, got one without axes"):
            getattr(so, name)(vector, number)


# What people write.


NAIVE = {
    "rotvec_to_matrix at 0": [ORIGIN],
    "quaternion_to_rotvec at the identity": [NORTH],
    "safe_angle of parallel vectors": [X, X],
    "safe_angle of opposite vectors": [X, [-1.0, 0, 0]],
    "safe_dihedral at cis": [X, ORIGIN, TOP, [2.0, 0.0, 1.5]],
}


@pytest.mark.parametrize("name", NAIVE)
def test_naive_versions_fail(name, autodiff_framework):
    """What people write has no finite gradient there."""
    (naive,) = (row.naive for row in SPECS if row.name == name.split()[0])
    backend = load(autodiff_framework)
    arrays = [asarray(autodiff_framework, x) for x in NAIVE[name]]

    found = backend.grad(lambda *args: backend.xp.sum(naive(*args)))(*arrays)

    assert not all(np.isfinite(to_numpy(x)).all() for x in found)


def test_small_angles_keep_their_digits(framework):
    """`safe_angle` is right to 1e-6 rad in float32, where the arc cosine says 0."""
    a, b = (asarray(framework, x, "float32") for x in (X, [1.0, 1e-4, 0.0]))

    assert abs(float(so.safe_angle(a, b)) - 1e-4) < 1e-10
    assert float(naive_angle(a, b)) == 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_angles_are_right_at_all_sizes(dtype, framework):
    """Random vectors have their angle to 1e-12 rad, and to 1e-6 in float32."""
    rng = np.random.default_rng(7)  # its own: the same vectors whatever ran before
    a = rng.normal(size=(200, 3))
    away = np.geomspace(1e-16, 1.0, 200)[:, None] * rng.normal(size=(200, 3))
    b = np.where(np.arange(200)[:, None] % 2, 1.0, -1.0) * a * rng.uniform(0.1, 9, (200, 1)) + away
    a, b = (x.astype(dtype) for x in (a, b))

    got = to_numpy(so.safe_angle(asarray(framework, a, dtype), asarray(framework, b, dtype)))

    exact = [turning.value_of_angle(x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-12 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize("length", [3, 300])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_multiples_are_parallel(length, dtype, framework):
    """A rounded multiple of a vector has the angle 0 or pi, in all sizes: no noise has a slope."""
    rng = np.random.default_rng(3)
    a = (rng.normal(size=(500, length)) * 10 ** rng.uniform(-9, 9, (500, 1))).astype(dtype)
    factor = (rng.uniform(0.1, 9, (500, 1)) * np.where(np.arange(500)[:, None] % 2, 1, -1)).astype(
        dtype
    )

    got = so.safe_angle(asarray(framework, a, dtype), asarray(framework, factor * a, dtype))

    np.testing.assert_array_equal(
        to_numpy(got), np.where(factor[:, 0] > 0, 0.0, np.pi).astype(dtype)
    )
