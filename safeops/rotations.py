"""
Rotations, rigid motions and angles, smooth also where their usual formulas are 0 / 0.

Arrays have the shapes (..., 3) for rotation vectors, (..., 4) for quaternions with the scalar last,
(..., 3, 3) for matrices, (..., 6) and (..., 4, 4) for rigid motions; angles are in radians. These
are the conventions of `scipy.spatial.transform`.
"""

from functools import partial

from safeops._core.types import Array, Axis, Namespace, T
from safeops._dispatch import backend_of, fast_path, promote
from safeops._doors import show
from safeops._ops import rigid, vectors
from safeops._ops.precision import in_float32
from safeops._ops.slices import drop_axes, require_axes, with_same_slices
from safeops._ops.vectors import require_shape

__all__ = [
    "matrix_to_quaternion", "matrix_to_rotvec", "matrix_to_twist", "quaternion_slerp",
    "quaternion_to_matrix", "quaternion_to_rotvec", "rotvec_to_matrix", "rotvec_to_quaternion",
    "safe_angle", "safe_dihedral", "squared_angle", "twist_to_matrix",
]  # fmt: skip


@fast_path
def rotvec_to_matrix(w: T, /) -> T:
    """
    Matrix of a rotation vector: the exponential map of SO(3), smooth at 0 too.

    Same as ``I + sin(t) / t * W + (1 - cos(t)) / t**2 * W @ W`` with ``t = norm(w)`` and the matrix
    ``W`` of the cross product with `w`.

    Parameters
    ----------
    w : array, shape (..., 3), real floating
        Axis times angle in radians, of any length. NaN stays NaN.

    Returns
    -------
    array, shape (..., 3, 3)

    Notes
    -----
    **Gradient.** Exact everywhere, at every order: the function is entire. At 0 it is the three
    generators, the matrices of the cross product with the unit vectors.

    **Source.** Rodrigues; by the quaternion, whose factors are power series near 0.

    Examples
    --------
    >>> import numpy as np
    >>> rotvec_to_matrix(np.asarray([0.0, 0.0, np.pi / 2])).round(6) + 0.0
    array([[ 0., -1.,  0.],
           [ 1.,  0.,  0.],
           [ 0.,  0.,  1.]])
    """
    xp, w = promote(w)
    w = require_shape(w, 3, of="rotation vectors")
    return in_float32(xp, lambda w: rigid.matrix_of_turn(xp, rigid.turn_of_vector(xp, w)))(w)


@fast_path
def matrix_to_rotvec(matrix: T, /) -> T:
    """
    Rotation vector of a matrix: the logarithm of SO(3), smooth at the identity too.

    Same as ``t / (2 * sin(t)) * v``, with ``v`` from ``matrix - matrix.T`` and the angle ``t``, but
    it keeps its digits near half turns.

    Parameters
    ----------
    matrix : array, shape (..., 3, 3), real floating
        Rotation matrices; the function does not check that they are. `safeops.linalg.polar`, with
        ``proper=True``, makes one of what is nearly one. NaN stays NaN.

    Returns
    -------
    array, shape (..., 3)
        Of length at most pi.

    Notes
    -----
    **Gradient.** The gradient of `quaternion_to_rotvec` after `matrix_to_quaternion`. At the
    identity it is exact: half the difference between the matrix of changes and its transpose. At
    the half turn the rotation vector jumps to its opposite. There the branch is taken in which the
    entry of the largest size is positive, with its exact gradient.

    **Source.** Shepperd's choice among four formulas; the four are the rows of Bar-Itzhack's
    matrix, without roots.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_to_rotvec(np.diag([-1.0, -1.0, 1.0]))
    array([0.        , 0.        , 3.14159265])
    """
    xp, matrix = promote(matrix)
    matrix = require_shape(matrix, 3, 3, of="rotation matrices")
    return in_float32(xp, lambda m: rigid.vector_of_turn(xp, rigid.quaternion_of_matrix(xp, m)))(
        matrix
    )


@fast_path
def rotvec_to_quaternion(w: T, /) -> T:
    """
    Unit quaternion of a rotation vector, smooth at 0 too; the scalar is last.

    Same as ``(sin(t / 2) / t * w, cos(t / 2))`` with ``t = norm(w)``.

    Parameters
    ----------
    w : array, shape (..., 3), real floating
        Axis times angle in radians, of any length. NaN stays NaN.

    Returns
    -------
    array, shape (..., 4)
        The scalar is negative for angles between pi and 3 * pi.

    Notes
    -----
    **Gradient.** Exact everywhere, at every order: the function is entire. At 0 it is 1 / 2 for the
    vector and 0 for the scalar.

    **Source.** Euler; the factors are power series near 0.

    Examples
    --------
    >>> import numpy as np
    >>> rotvec_to_quaternion(np.asarray([[np.pi, 0.0, 0.0], [0.0, 0.0, 0.0]])).round(6)
    array([[1., 0., 0., 0.],
           [0., 0., 0., 1.]])
    """
    xp, w = promote(w)
    w = require_shape(w, 3, of="rotation vectors")
    return in_float32(xp, lambda w: xp.concat(rigid.turn_of_vector(xp, w), axis=-1))(w)


@fast_path
def quaternion_to_rotvec(q: T, /) -> T:
    """
    Rotation vector of a quaternion of any length, smooth at the identity; 0 where `q` is zero.

    Same as ``2 * atan2(norm(v), s) / norm(v) * v`` for ``q = (v, s)`` with ``s >= 0``; `q` and its
    negative are one rotation, and of the two the quaternion with ``s >= 0`` is taken.

    Parameters
    ----------
    q : array, shape (..., 4), real floating
        Quaternions, the scalar last. NaN stays NaN.

    Returns
    -------
    array, shape (..., 3)
        Of length at most pi.

    Notes
    -----
    **Gradient.** The derivative of the function of the normalised quaternion, exact at the
    identity: ``2 / s`` for the vector, for `q` and its negative alike. At the half turn, where
    ``s == 0``, the vector keeps its sign, and the derivative is exact for that branch. At
    ``q == 0``, which is not a rotation, value and gradient 0 are chosen.

    **Source.** The logarithm of unit quaternions; the factor is a power series near the identity.

    Examples
    --------
    >>> import numpy as np
    >>> quaternion_to_rotvec(np.asarray([[0.0, 0.0, 0.0, 1.0], [2.0, 0.0, 0.0, 2.0]]))
    array([[0.        , 0.        , 0.        ],
           [1.57079633, 0.        , 0.        ]])
    """
    xp, q = promote(q)
    q = require_shape(q, 4, of="quaternions")
    return in_float32(xp, partial(rigid.vector_of_turn, xp))(q)


@fast_path
def quaternion_to_matrix(q: T, /) -> T:
    """
    Matrix of a quaternion of any length, which is normalised; the identity where `q` is zero.

    Same as ``I + 2 * s * V + 2 * V @ V`` for ``q / norm(q) = (v, s)`` and the matrix ``V`` of the
    cross product with `v`.

    Parameters
    ----------
    q : array, shape (..., 4), real floating
        Quaternions, the scalar last. NaN stays NaN.

    Returns
    -------
    array, shape (..., 3, 3)

    Notes
    -----
    **Gradient.** The derivative of the function of the normalised quaternion, exact at every order.
    At ``q == 0``, which is not a rotation, the identity with gradient 0 is chosen.

    **Source.** Hamilton; `quaternion_to_rotvec` has the same identity at ``q = 0``.

    Examples
    --------
    >>> import numpy as np
    >>> quaternion_to_matrix(np.asarray([0.0, 0.0, 2.0, 0.0]))
    array([[-1.,  0.,  0.],
           [ 0., -1.,  0.],
           [ 0.,  0.,  1.]])
    """
    xp, q = promote(q)
    q = require_shape(q, 4, of="quaternions")
    return in_float32(xp, partial(rigid.matrix_of_quaternion, xp))(q)


@fast_path
def matrix_to_quaternion(matrix: T, /) -> T:
    """
    Unit quaternion of a rotation matrix; the scalar is last, and not negative.

    Same as ``(v / (2 * r), r / 2)`` with ``r = sqrt(1 + trace(matrix))`` and ``v`` from
    ``matrix - matrix.T`` where this formula keeps its digits; elsewhere by the formula for the
    largest diagonal entry.

    Parameters
    ----------
    matrix : array, shape (..., 3, 3), real floating
        Rotation matrices; the function does not check that they are. NaN stays NaN.

    Returns
    -------
    array, shape (..., 4)
        Of length 1, also if the matrix is only nearly a rotation.

    Notes
    -----
    **Gradient.** Exact along rotations, at every order, at the identity and at the half turn too:
    of four formulas the one with the largest radicand is used, which is at least 1. Where the
    scalar is 0, the branch is taken in which the vector's entry of the largest size is positive,
    with its exact derivative. Other changes have the derivative of the normalised formula.

    **Source.** Shepperd's choice among four formulas, normalised.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_to_quaternion(np.diag([-1.0, -1.0, 1.0]))
    array([0., 0., 1., 0.])
    """
    xp, matrix = promote(matrix)
    matrix = require_shape(matrix, 3, 3, of="rotation matrices")
    return in_float32(xp, partial(rigid.unit_of_matrix, xp))(matrix)


@fast_path
def quaternion_slerp(p: T, q: T, t: T, /) -> T:
    """
    Quaternion a part `t` of the way from `p` to `q`, by the shorter way; 0 if one of them is zero.

    Same as ``p * exp(t * log(inverse(p) * q))`` with `p` and `q` normalised, and with the
    logarithm of `quaternion_to_rotvec`.

    Parameters
    ----------
    p, q : array, shape (..., 4), real floating
        Quaternions of any length, the scalar last. NaN stays NaN.
    t : array, shape (...), real floating
        0 gives `p`, and 1 gives `q` or its negative; below 0 and above 1 the motion goes on.

    Returns
    -------
    array, shape (..., 4)
        Of length 1.

    Notes
    -----
    **Gradient.** Exact for all three arguments, at every order, also where `p` and `q` are equal or
    antipodal, and so the same rotation. Half a turn apart, where ``sum(p * q)`` is 0, two ways are
    equally short: the way towards `q` itself is taken, with its exact derivative. Where `p` or `q`
    is zero, value and gradient 0 are chosen.

    **Source.** Shoemake; computed by the logarithm, whose series covers equal arguments.

    Examples
    --------
    >>> import numpy as np
    >>> identity, turn = np.asarray([0.0, 0.0, 0.0, 1.0]), np.asarray([1.0, 0.0, 0.0, 0.0])
    >>> quaternion_slerp(identity, turn, np.asarray([0.0, 0.5]))
    array([[0.        , 0.        , 0.        , 1.        ],
           [0.70710678, 0.        , 0.        , 0.70710678]])
    """
    xp, p, q, t = promote(p, q, t)
    p = require_shape(p, 4, of="quaternions")
    q = require_shape(q, 4, of="quaternions")
    return in_float32(xp, partial(rigid.slerp, xp))(p, q, t)


@fast_path
def safe_angle(a: T, b: T, /, *, axis: Axis = -1) -> T:
    """
    Angle between vectors, with gradient 0 where they are parallel; 0 if one of them is zero.

    Same as ``acos(sum(a * b) / (norm(a) * norm(b)))`` over `axis`, right to two units of rounding
    (``eps``) in radians at all angles.

    Parameters
    ----------
    a, b : array, shape (...), real floating
        Vectors of any length. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of a vector; None for all.

    Returns
    -------
    array
        Radians in [0, pi].

    Notes
    -----
    **Gradient.** For `a` the unit vector away from `b`, at a right angle to `a`, divided by
    ``norm(a)``. For parallel vectors, at angles 0 and pi, the function is a cone: 0 is chosen, at
    every order, the subgradient, or supergradient, of minimum norm. For a zero vector 0 is chosen
    too. Vectors count as parallel if no entry of their directions differs by more than four units
    of rounding, but for a factor that all entries share. At an angle t from 0 or pi the slope has
    errors of ``eps / t``. Inside a smooth composite, such as ``angle**2``, use `squared_angle`.

    **Source.** Kahan's formula ``2 * atan2(norm(u - v), norm(u + v))`` of the directions. The arc
    cosine is 0 below 3e-4 rad in float32.

    Examples
    --------
    >>> import numpy as np
    >>> safe_angle(np.asarray([1.0, 0.0]), np.asarray([[1.0, 1e-9], [2.0, 0.0], [-1.0, 0.0]]))
    array([1.00000000e-09, 0.00000000e+00, 3.14159265e+00])
    """
    xp, a, b = _entered(a, b, axis)
    angle = in_float32(xp, partial(vectors.angle, xp, axis=axis))(a, b)
    return drop_axes(xp, angle, axis, keepdims=False)


@fast_path
def squared_angle(a: T, b: T, /, *, axis: Axis = -1) -> T:
    """
    Square of the angle between vectors, smooth where they are parallel; 0 if one of them is zero.

    Same as ``safe_angle(a, b, axis=axis) ** 2``.

    Parameters
    ----------
    a, b : array, shape (...), real floating
        Vectors of any length. NaN stays NaN.
    axis : int or tuple of ints, default: -1
        Axes of a vector; None for all.

    Notes
    -----
    **Gradient.** Exact for parallel vectors of one direction: 0, with the Hessian
    ``2 * (I - n n^T) / norm(a)**2`` for `a`, where ``n = a / norm(a)``. For opposite vectors the
    function is a cone, and 0 is chosen; for a zero vector 0 is chosen too.

    **Source.** The power series of ``asin(x)**2``; as `squared_norm` is to `safe_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> squared_angle(np.asarray([2.0, 0.0]), np.asarray([[1.0, 0.0], [0.0, 1.0]]))
    array([0.       , 2.4674011])
    """
    xp, a, b = _entered(a, b, axis)
    square = in_float32(xp, partial(vectors.squared_angle, xp, axis=axis))(a, b)
    return drop_axes(xp, square, axis, keepdims=False)


def _entered(a: Array, b: Array, axis: Axis) -> tuple[Namespace, Array, Array]:
    """Return the namespace, and vectors of as many entries."""
    xp, *arrays = promote(a, b)
    for x in arrays:
        require_axes(x, axis)
    return xp, *with_same_slices(xp, arrays, axis)


@fast_path
def safe_dihedral(a: T, b: T, c: T, d: T, /, *, axis: int = -1) -> T:
    """
    Torsion angle of four points, with gradient 0 where three in a row are on a line; 0 there.

    Same as ``atan2(sum(cross(n, m) * e), sum(n * m))`` with ``n = cross(b - a, c - b)``,
    ``m = cross(c - b, d - c)`` and ``e = (c - b) / norm(c - b)``.

    Parameters
    ----------
    a, b, c, d : array, shape (..., 3), real floating
        Points. NaN stays NaN.
    axis : int, default: -1
        Axis of the coordinates.

    Returns
    -------
    array, shape (...)
        Radians from -pi to pi: 0 for cis, pi for trans, positive clockwise as seen from `b` to `c`
        (IUPAC).

    Notes
    -----
    **Gradient.** Exact wherever there is an angle, at cis and at trans too. With three points on a
    line there is no angle: value and gradient 0 are chosen, at every order. Three points count as
    on a line if no entry of the cross product exceeds its own rounding.

    **Source.** The formula by the arc tangent, which has no singularity at cis and trans.

    Examples
    --------
    >>> import numpy as np
    >>> a, b, c, d = np.asarray([[1.0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]])
    >>> safe_dihedral(a, b, c, d).round(6)
    np.float64(1.570796)
    """
    xp, *points = promote(a, b, c, d)
    backend = backend_of(*points)
    points = [backend.flatten_axes(x, axis) for x in xp.broadcast_arrays(*points)]
    points = [require_shape(x, 3, of="points") for x in points]
    angle = in_float32(xp, partial(vectors.dihedral, xp))(*points)
    return xp.squeeze(angle, axis=-1)


@fast_path
def twist_to_matrix(twist: T, /) -> T:
    """
    Matrix of a rigid motion from its twist: the exponential map of SE(3), smooth at 0 too.

    Same as ``expm([[W, v], [0, 0]])`` for the twist ``(w, v)``, with the matrix ``W`` of the cross
    product with `w`.

    Parameters
    ----------
    twist : array, shape (..., 6), real floating
        Rotation vector, then translation, as in `scipy.spatial.transform.RigidTransform`. NaN stays
        NaN.

    Returns
    -------
    array, shape (..., 4, 4)

    Notes
    -----
    **Gradient.** Exact at every order: the function is entire. At 0 it is the six generators.

    **Source.** Rodrigues' formula and its integral; the factors are power series near 0.

    Examples
    --------
    >>> import numpy as np
    >>> twist_to_matrix(np.asarray([0.0, 0.0, np.pi, np.pi, 0.0, 0.0])).round(6) + 0.0
    array([[-1.,  0.,  0.,  0.],
           [ 0., -1.,  0.,  2.],
           [ 0.,  0.,  1.,  0.],
           [ 0.,  0.,  0.,  1.]])
    """
    xp, twist = promote(twist)
    twist = require_shape(twist, 6, of="twists")
    return in_float32(xp, partial(rigid.matrix_of_twist, xp))(twist)


@fast_path
def matrix_to_twist(matrix: T, /) -> T:
    """
    Twist of the matrix of a rigid motion: the logarithm of SE(3), smooth at the identity too.

    Same as ``logm(matrix)``, of which it returns the six numbers that are not redundant.

    Parameters
    ----------
    matrix : array, shape (..., 4, 4), real floating
        Rigid motions; the function does not check that they are, and does not read the last row.
        NaN stays NaN.

    Returns
    -------
    array, shape (..., 6)
        Rotation vector, at most pi long, then translation.

    Notes
    -----
    **Gradient.** Exact at the identity, and at the half turn on the branch of `matrix_to_rotvec`.

    **Source.** `matrix_to_rotvec`, and the inverse of the integral of Rodrigues' formula.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_to_twist(np.eye(4))
    array([0., 0., 0., 0., 0., 0.])
    """
    xp, matrix = promote(matrix)
    matrix = require_shape(matrix, 4, 4, of="matrices of rigid motions")
    return in_float32(xp, partial(rigid.twist_of_matrix, xp))(matrix)


__dir__ = show("safeops.rotations", __all__, globals())
