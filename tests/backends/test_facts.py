"""
Facts about the frameworks that the code and the tables rely on, one test a fact.

A test that fails says that a framework has changed: what was built on the fact can go. Those of
TensorFlow's functions are in test_tensorflow_namespace.py.
"""

import numpy as np
import pytest

import safeops as so
from frameworks import asarray, to_numpy
from safeops._core.errors import numbers

pytestmark = pytest.mark.whole  # facts of each framework


@pytest.mark.only("torch")
def test_forward_ad_does_not_nest():
    """`torch.autograd.forward_ad` has one level: no second order in forward mode (2.13)."""
    from torch.autograd import forward_ad

    inner = forward_ad.dual_level()
    with (
        forward_ad.dual_level(),
        pytest.raises(RuntimeError, match="Nested forward mode AD"),
        inner,
    ):
        pass


@pytest.mark.only("torch")
def test_compiled_functions_have_one_backward_pass():
    """What `torch.compile` returns is differentiated once, and not in forward mode (2.13)."""
    import torch

    x = torch.tensor(2.0, requires_grad=True)
    y = torch.compile(lambda x: x * x * x, backend="aot_eager")(x)
    (slope,) = torch.autograd.grad(y, x, create_graph=True)

    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(slope, x)


@pytest.mark.only("torch")
@pytest.mark.parametrize("norm", ["instance_norm", "batch_norm"])
def test_norms_of_one_batch_have_a_wrong_slope_for_permuted_cotangents(norm):
    """
    A batch norm of one image reads a cotangent of permuted strides in a wrong order (2.13).

    An instance norm is one of all images as channels. Finite differences decide.
    """
    import torch
    from torch.nn import functional

    numbers = np.random.default_rng(0)
    x = torch.tensor(numbers.normal(size=(1, 4, 3, 3)), requires_grad=True)
    weights = torch.tensor(numbers.normal(size=(3, 3, 1, 4)))

    def loss(x):
        if norm == "instance_norm":
            return (functional.instance_norm(x).permute(2, 3, 0, 1) * weights).sum()
        mean, variance = torch.zeros(2, 4, dtype=x.dtype)
        y = functional.batch_norm(x, mean, variance, training=True)
        return (y.permute(2, 3, 0, 1) * weights).sum()

    step = torch.zeros_like(x)
    step[0, 0, 0, 0] = 1e-6
    slope = (loss(x + step) - loss(x - step)) / 2e-6
    (found,) = torch.autograd.grad(loss(x), x)

    assert torch.autograd.gradcheck(lambda x: functional.instance_norm(x).contiguous(), x)
    assert abs(found[0, 0, 0, 0] - slope) > 1e-2


@pytest.mark.only("torch")
def test_the_slope_of_as_strided_scatter_is_of_what_is_written_over():
    """PyTorch's derivative of `as_strided_scatter` takes the wrong entries (2.13)."""
    import torch

    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    y = torch.as_strided_scatter(x, torch.zeros(2), (2,), (1,), 2)
    (found,) = torch.autograd.grad(y.sum(), x)

    assert y.tolist() == [1.0, 2.0, 0.0, 0.0]
    assert found.tolist() == [0.0, 0.0, 1.0, 1.0]  # the right one is [1, 1, 0, 0]


@pytest.mark.only("torch")
def test_a_bag_scaled_by_frequency_divides_by_a_wrong_count():
    """
    On a CPU `embedding_bag` with ``scale_grad_by_freq`` divides by a wrong count (2.13, not 2.14).

    The slope of a sum is the count of a row, divided by that count: 1, as `embedding` has it.
    """
    import torch
    from torch.nn.functional import embedding, embedding_bag

    table = torch.zeros(3, 1, requires_grad=True)
    indices, one_bag = torch.tensor([0, 1, 1, 2, 2, 2]), torch.tensor([0])
    rows = embedding(indices, table, scale_grad_by_freq=True)
    bag = embedding_bag(indices, table, one_bag, mode="sum", scale_grad_by_freq=True)

    assert torch.autograd.grad(rows.sum(), table)[0].flatten().tolist() == [1.0, 1.0, 1.0]
    last = 1.0 if torch.__version__ >= (2, 14) else 1.5
    assert torch.autograd.grad(bag.sum(), table)[0].flatten().tolist() == [1.0, 1.0, last]


@pytest.mark.only("torch")
def test_a_dispatch_mode_forgets_conjugates():
    """Below a dispatch mode kernels that know no lazy conjugate take numbers as they are (2.13)."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Where(TorchDispatchMode):
        """A mode that selects all entries of what is copied."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            """Run one operation."""
            if func is torch.ops.aten.mm.default:
                return torch.where(torch.tensor(True), args[0], 0)
            return func(*args, **(kwargs or {}))

    x = torch.tensor([[1j]]).conj()
    with Where():
        found = x @ x

    assert found.item() == 1j  # and not -1j


@pytest.mark.only("torch")
def test_torch_compile_traces_a_jvp_of_a_jvp_without_a_cache():
    """It fails with the cache of its fake tensors, of a product with a constant (2.9 to 2.15)."""
    import torch

    def second(x):
        def slope(x):
            return torch.func.jvp(lambda x: torch.ones(3) * x, (x,), (x,))[1]

        return torch.func.jvp(slope, (x,), (x,))[1]

    assert (second(torch.ones(3)) == 1).all()
    compiled = torch.compile(second, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        assert (compiled(torch.ones(3)) == 1).all()
    torch.compiler.reset()
    error = torch._dynamo.exc.TorchDynamoException  # of which each version has another kind
    with (
        torch._dynamo.config.patch(fake_tensor_cache_enabled=True),
        pytest.raises(error, match="fake tensor"),
    ):
        compiled(torch.ones(3))


@pytest.mark.only("torch")
def test_the_slope_of_fmax_at_a_nan():
    """PyTorch 2.14 sends it to the NaN that fmax passes over, too; other versions do not."""
    import torch

    x, y = (torch.tensor(a, requires_grad=True) for a in (np.nan, 0.0))

    slopes = torch.autograd.grad(torch.fmax(x, y), (x, y))

    assert [float(s) for s in slopes] == [float((2, 14) <= torch.__version__ < (2, 15)), 1.0]


@pytest.mark.only("torch")
def test_torch_compile_traces_no_result_type_of_a_scalar():
    """So the promotion of PyTorch arguments is written out (2.13)."""
    import torch

    def f(x):
        return x.to(torch.result_type(x, 1.0))

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, fullgraph=True, backend="aot_eager")(torch.ones(3, dtype=torch.int32))


@pytest.mark.only("torch")
def test_the_slope_of_pow_is_a_constant_at_power_zero():
    """``d/dp d/dx x**p`` is 1 / x at p = 0; PyTorch has 0, and ours does not (2.13)."""
    import torch

    def mixed(f):
        slope = torch.func.grad(f, argnums=0)
        return torch.func.grad(slope, argnums=1)(torch.tensor(4.0), torch.tensor(0.0))

    assert mixed(torch.pow) == 0
    assert mixed(so.safe_pow) == 0.25


@pytest.mark.only("jax")
def test_jax_divides_by_a_square():
    """Its slope of ``0 / y`` is NaN where ``y**-2`` overflows, and ours is right (0.10.2)."""
    import jax
    import jax.numpy as jnp

    x, y = jnp.float32(0.0), jnp.float32(1e-25)

    assert jnp.isnan(jax.grad(jnp.divide, argnums=1)(x, y))
    assert jax.grad(so.safe_div, argnums=1)(x, y) == 0


@pytest.mark.only("jax")
def test_the_slope_of_abs_is_one_at_zero():
    """JAX has slope 1 of the absolute value at 0, and our norm of minimum norm has 0 (0.10.2)."""
    import jax
    import jax.numpy as jnp

    assert jax.grad(jnp.abs)(0.0) == 1
    assert jax.grad(lambda x: so.safe_norm(x, ord=1))(jnp.zeros(1)) == 0


@pytest.mark.only("jax")
def test_the_slope_of_a_maximum_loses_nan_under_jit():
    """JAX multiplies it with 0 and 1, XLA makes a select of that, and ours keeps it (0.10.2)."""
    import jax
    import jax.numpy as jnp

    x = jnp.asarray([1.0, jnp.nan])

    assert jnp.isnan(jax.grad(jnp.max)(x)).all()
    assert (jax.jit(jax.grad(jnp.max))(x) == 0).all()
    assert jnp.isnan(jax.jit(jax.grad(so.safe_max))(x)).all()


@pytest.mark.only("jax")
def test_log1p_of_xla_is_inexact():
    """Its float64 is off by a hundred units in the last place at -0.4141, up to JAX 0.10."""
    import jax
    import jax.numpy as jnp

    x = -0.414105
    error = abs(float(jnp.log1p(jnp.float64(x))) - np.log1p(x))

    is_off = error > 50 * np.spacing(abs(np.log1p(x)))
    assert bool(is_off) is (numbers(jax.__version__) < (0, 11))


FLUSHED = {("jax", "float32"), ("tensorflow", "float32")}
FLUSHED |= {("jax", "bfloat16"), ("tensorflow", "bfloat16")}


@pytest.mark.parametrize(
    ("dtype", "x"), [("float32", 1e-40), ("bfloat16", 1e-40), ("float16", 1e-7)]
)
def test_who_flushes_subnormal_numbers(dtype, x, autodiff_framework):
    """JAX and TensorFlow make them 0 in float32 and bfloat16, PyTorch nowhere, none in float16."""
    small = asarray(autodiff_framework, [x], dtype)
    one = asarray(autodiff_framework, [1.0], dtype)

    assert (to_numpy(small * one) == 0).all() == ((autodiff_framework, dtype) in FLUSHED)
