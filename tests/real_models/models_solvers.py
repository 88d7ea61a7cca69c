"""Solvers of JAX over a batch of problems: equations, differential equations, transport."""

import warnings

import diffrax
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
from jax.experimental.ode import odeint

with warnings.catch_warnings():
    # ott 0.6 imports jaxopt, which is no longer maintained and says so
    warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
    from ott.geometry import geometry, pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import implicit_differentiation, sinkhorn
from real_models.engines import Jax
from real_models.harness import Case, Program

ENGINE = Jax
# ott 0.6 asks lineax 0.1 for a solver by its former name, when the program is traced.
FILTERS = ("ignore:`NormalCG:DeprecationWarning",)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "standard")
MATRIX = np.array([[0.3, -0.2, 0.1], [0.1, 0.4, -0.3], [-0.2, 0.2, 0.5]])
ROWS = np.random.default_rng(0).uniform(0.5, 1.5, (3, 3))


def solved(solve, bad):
    """Return a program that solves a problem for each row."""
    outputs = jax.vmap(solve, (None, 0))
    return Program(outputs, ROWS, parameters=MATRIX, bad=bad)


def decay(t, y, a):
    """Return the slope of a nonlinear equation."""
    del t
    return -jnp.tanh(a @ y) - 0.1 * y


def integrated(solver, **options):
    """Return a solver of a differential equation by diffrax."""
    how = {"throw": False, "max_steps": 64} | options

    def solve(a, row):
        term = diffrax.ODETerm(decay)
        found = diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.25, row, args=a, **how)
        return found.ys[-1]

    return solve


def residual(y, args):
    """Return what is zero at the solution."""
    a, row = args
    return y + 0.3 * jnp.tanh(a @ y) - row


def optimised(search, solver, function=residual, **options):
    """Return a solver by optimistix."""

    def solve(a, row):
        return search(function, solver, jnp.zeros(3), (a, row), throw=False, **options).value

    return solve


def linear(solver, *, positive=True):
    """Return a solver of linear equations whose matrix depends on the row, by lineax."""

    def solve(a, row):
        matrix = a @ a.T + jnp.diag(1 + row) if positive else a + jnp.diag(1 + row)
        tags = lineax.positive_semidefinite_tag if positive else ()
        operator = lineax.MatrixLinearOperator(matrix, tags)
        return lineax.linear_solve(operator, row, solver, throw=False).value

    return solve


def transported(a, row, **options):
    """Return the cost of transport between points that depend on the row."""
    x = jnp.outer(row, jnp.arange(1.0, 3.0)) @ a[:2, :2]
    cloud = pointcloud.PointCloud(x, x[::-1] + 1.0, epsilon=1.0)
    problem = linear_problem.LinearProblem(cloud)
    return sinkhorn.Sinkhorn(max_iterations=50, **options)(problem).reg_ot_cost


def matched(a, row):
    """Return a plan of transport, differentiated implicitly."""
    plan = geometry.Geometry(jnp.abs(a) + jnp.outer(row, row), epsilon=1.0)
    implicit = implicit_differentiation.ImplicitDiff()
    solver = sinkhorn.Sinkhorn(max_iterations=50, implicit_diff=implicit)
    return solver(linear_problem.LinearProblem(plan)).matrix.sum(0) * row


def case(package, name, make, bad=np.nan, **known):
    """Return the case of a solver."""
    return Case(package, name, lambda: solved(make(), bad), **known)


FORWARD = diffrax.DirectAdjoint
CASES = [
    case(
        "jax",
        "odeint",
        lambda: (
            lambda a, row: odeint(lambda y, t, a: decay(t, y, a), row, jnp.array([0.0, 1.0]), a)[-1]
        ),
    ),
    case("diffrax", "default adjoint", lambda: integrated(diffrax.Heun())),
    case(
        "diffrax",
        "default adjoint, adaptive",
        lambda: integrated(diffrax.Bosh3(), stepsize_controller=diffrax.PIDController(1e-3, 1e-6)),
        untouched="each step from NaN is rejected by its error, and the last state is the first",
    ),
    case(
        "diffrax",
        "DirectAdjoint",
        lambda: integrated(diffrax.Heun(), adjoint=diffrax.DirectAdjoint()),
    ),
    case(
        "diffrax",
        "BacksolveAdjoint",
        lambda: integrated(diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint()),
    ),
    case(
        "optimistix",
        "root_find, Newton",
        lambda: optimised(optimistix.root_find, optimistix.Newton(1e-8, 1e-8)),
    ),
    case(
        "optimistix",
        "least_squares, Levenberg-Marquardt",
        lambda: optimised(optimistix.least_squares, optimistix.LevenbergMarquardt(1e-8, 1e-8)),
    ),
    case(
        "optimistix",
        "fixed_point",
        lambda: optimised(
            optimistix.fixed_point,
            optimistix.FixedPointIteration(1e-8, 1e-8),
            lambda y, args: y - residual(y, args),
        ),
    ),
    # stops at once where it is given a NaN, and returns zeros; it makes its own of what overflows
    case("lineax", "CG", lambda: linear(lineax.CG(1e-10, 1e-10)), bad=1e200),
    case("lineax", "GMRES", lambda: linear(lineax.GMRES(1e-10, 1e-10), positive=False)),
    case("lineax", "LU", lambda: linear(lineax.LU(), positive=False)),
    case("lineax", "Cholesky", lambda: linear(lineax.Cholesky())),
    case("ott-jax", "Sinkhorn cost", lambda: transported),
    case("ott-jax", "Sinkhorn, implicit", lambda: matched),
]
