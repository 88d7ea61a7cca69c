"""What all operations share at entry: whose arrays these are, and what becomes of them."""

import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import safeops
from assertions import assert_close
from calls import (
    ALONG_SLICES,
    COMBINATORS,
    DTYPE,
    ELEMENTWISE,
    EVERY,
    INDICES,
    KEEP_SHAPE,
    OPS,
    PAIRS,
    PAIRS_OF_SLICES,
    RTOL,
    RUNNING,
    arguments,
    call,
    gradients,
    public,
    sample,
    takes,
)
from frameworks import FRAMEWORKS, asarray, to_numpy
from safeops import _dispatch, safe_div, safe_norm, safe_sqrt
from safeops._core.dtypes import dtype_name

HOUSE = Path(safeops.__file__).parent


EVERY_PAIR = pytest.mark.parametrize("name", PAIRS)


def test_every_operation_has_a_row():
    """Each public function has a specification, is a combinator or returns indices."""
    assert set(OPS) | COMBINATORS | set(INDICES) == set(safeops.__all__)


# Recognition.


LEFT_BEHIND = "ignore:Implicitly cleaning:ResourceWarning"  # a folder of PyTorch 2.6


def run_python(code):
    """Run code where it imports the package under test, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", LEFT_BEHIND, "-c", code],
        cwd=HOUSE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() + done.stderr


def test_no_framework_is_imported_to_recognise_an_array():
    """What is no array is refused by the frameworks that are imported already."""
    code = (
        "import contextlib, sys, safeops\n"
        "with contextlib.suppress(TypeError): safeops.safe_sqrt([1.0])\n"
        "print({'jax', 'tensorflow', 'torch', 'keras', 'dask'} & {*sys.modules})"
    )

    assert run_python(code) == "set()"


@pytest.mark.only("torch")
def test_a_framework_may_be_imported_after_the_first_call():
    """What was recognised before does not stand in the way of what comes later."""
    code = (
        "import numpy, safeops; safeops.safe_sqrt(numpy.ones(2)); "
        "import torch; print(safeops.safe_sqrt(torch.ones(2)))"
    )

    assert run_python(code) == "tensor([1., 1.])"


def test_a_type_is_recognised_once(framework, monkeypatch):
    """The second array of a type is looked up, not asked about."""
    x = asarray(framework, [4.0])
    safe_sqrt(x)
    monkeypatch.setattr(_dispatch, "_recognise", lambda _: pytest.fail("asked again"))

    assert to_numpy(safe_sqrt(x)) == 2


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton crashes beside TensorFlow")
@pytest.mark.together
def test_frameworks_do_not_stand_in_each_others_way():
    """PyTorch compiles an operation without a break, after all others have been served."""
    import torch

    for framework in FRAMEWORKS:
        safe_sqrt(asarray(framework, [4.0]))
    torch.compiler.reset()
    compiled = torch.compile(safe_sqrt, fullgraph=True, backend="aot_eager")

    assert compiled(torch.tensor([4.0])) == 2


# Dtypes.


@EVERY_PAIR
def test_python_scalars_are_weak(name, framework):
    """Beside a Python float an array of float32 stays float32."""
    x, y = arguments(name, framework, (3,), "float32")
    exact = to_numpy(call(name, x, y))
    scalars = [float(a) for a in sample(name)]
    foreign = framework in ("array-api-strict", "torch")  # to which np.float64 is one, too
    numbers = [scalars, [np.float64(a) for a in scalars]] if foreign else [scalars]

    for a, b in numbers:
        for result in (call(name, x, b), call(name, a, y)):
            assert dtype_name(result.dtype) == "float32"
            # A compiler that knows the number may compute with it.
            np.testing.assert_allclose(to_numpy(result), exact, rtol=2 * np.finfo("float32").eps)


@pytest.mark.parametrize("name", [name for name in OPS if takes(name, "fill_value")])
def test_fill_values_are_weak(name, framework):
    """A float as `fill_value` leaves float32 as it is."""
    args = arguments(name, framework, dtype="float32")
    foreign = framework in ("array-api-strict", "torch")  # to which np.float64 is one, too

    for fill_value in (0.5, np.float64(0.5)) if foreign else (0.5,):
        result = public(name)(*args, fill_value=fill_value)

        assert dtype_name(result.dtype) == "float32"


@pytest.mark.only("numpy")
def test_scalars_of_numpy_are_arrays_of_numpy():
    """With NumPy a np.float64 counts, as in NumPy itself, and alone it gives a np.float64."""
    single = np.ones(2, np.float32)

    assert safe_div(single, np.float64(2)).dtype == (single / np.float64(2)).dtype == np.float64
    assert safe_div(single, np.float32(2)).dtype == np.float32
    assert safe_sqrt(np.float64(4)) == 2


# safe_cross_entropy reads integers as classes; sums, products and extremes of them are integers.
KEPT_INTEGERS = {
    f"{family}{kind}" for family in ("safe_", "nan") for kind in ("sum", "prod", "max", "min")
}
KEPT_INTEGERS |= {"nancumsum", "nancumprod"}
NUMBERS = [name for name in OPS if name not in {"safe_cross_entropy", *KEPT_INTEGERS}]


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64"])
@pytest.mark.parametrize("name", NUMBERS)
def test_integers_promote_as_in_division(name, dtype, framework):
    """Integers and booleans become what the framework divides them to, with the value of those."""
    x = asarray(framework, [0, 1, 1], dtype)
    # TensorFlow divides no booleans; its default float is float32.
    refuses = framework == "tensorflow" and dtype == "bool"
    wanted = "float32" if refuses else dtype_name((x / x[1:2]).dtype)
    as_float = asarray(framework, [0, 1, 1], wanted)

    op = public(name)

    result = op(*(x for _ in sample(name)))

    assert dtype_name(result.dtype) == wanted
    expected = to_numpy(op(*(as_float for _ in sample(name))))
    rounding = np.finfo(expected.dtype).eps  # floats may have a kernel
    np.testing.assert_allclose(to_numpy(result), expected, rtol=2 * rounding)


@pytest.mark.only("jax")  # which brings ml_dtypes
@pytest.mark.parametrize("name", NUMBERS)
def test_bfloat16_of_numpy_stays(name):
    """No operation widens bfloat16, as NumPy does beside a number of Python."""
    from ml_dtypes import bfloat16

    arrays = [x.astype(bfloat16) for x in arguments(name, "numpy", (3,), "float32")]

    assert dtype_name(call(name, *arrays).dtype) == "bfloat16"
    if len(arrays) > 1:
        assert dtype_name(call(name, arrays[0], arrays[1].astype("float16")).dtype) == "float32"
        assert dtype_name(call(name, arrays[0].astype("float64"), arrays[1]).dtype) == "float64"


@pytest.mark.only("array-api-strict")
@pytest.mark.parametrize("name", NUMBERS)
def test_integers_are_refused_where_their_division_is_undefined(name):
    """The array API standard does not say what integers divide to, and so neither do we."""
    x = asarray("array-api-strict", [0, 1, 1], "int64")

    with pytest.raises(TypeError, match=DTYPE + r"int64( as \w+)?; convert the array first"):
        call(name, *(x for _ in sample(name)))


WIDER = {
    ("float32", "float64"): "float64",
    ("float16", "float32"): "float32",
    ("float16", "bfloat16"): "float32",
    ("int8", "float32"): "float32",
}


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("pair", WIDER, ids="-".join)
@pytest.mark.parametrize("name", PAIRS)
def test_dtypes_promote(name, pair, autodiff_framework):
    """Two dtypes become the least that holds both, in either order."""
    (x, _), (_, y) = (arguments(name, autodiff_framework, (3,), dtype) for dtype in pair)
    (_, v), (u, _) = (arguments(name, autodiff_framework, (3,), dtype) for dtype in pair)

    assert dtype_name(call(name, x, y).dtype) == WIDER[pair]
    assert dtype_name(call(name, u, v).dtype) == WIDER[pair]


@EVERY_PAIR
def test_dtypes_promote_without_derivatives_too(name):
    """NumPy promotes alike."""
    (x, _), (_, y) = (arguments(name, "numpy", (3,), dtype) for dtype in ("float32", "float64"))

    assert call(name, x, y).dtype == np.float64


def means_something_complex(name):
    """Whether the docs of an operation promise complex numbers."""
    return "complex floating" in inspect.getdoc(getattr(safeops, name))


@pytest.mark.parametrize("name", [name for name in OPS if means_something_complex(name)])
def test_complex_numbers_work_where_the_docs_say_so(name, framework):
    """On the real axis an operation on complex numbers has the values of that on real ones."""
    real, same = (arguments(name, framework, dtype=d) for d in ("float64", "complex128"))

    assert_close(to_numpy(call(name, *same)).real, to_numpy(call(name, *real)), RTOL)


@pytest.mark.parametrize("name", [name for name in OPS if not means_something_complex(name)])
def test_complex_numbers_are_refused_elsewhere(name, framework):
    """Without a meaning for complex numbers, TypeError names the way out."""
    with pytest.raises(TypeError, match=f"{DTYPE}complex128( as \\w+)?; .*pass the real part"):
        call(name, *arguments(name, framework, dtype="complex128"))


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        (safe_div, ([1 + 1j, 1j], [1 - 1j, 0]), [1j, 0]),
        (safeops.safe_reciprocal, ([2j, 0],), [-0.5j, 0]),
        (safeops.safe_mul, ([1 + 1j, np.inf], [1 - 1j, 0]), [2, 0]),
        (safeops.xdivy, ([0, 1 + 1j], [0, 1 - 1j]), [0, 1j]),
        (safe_norm, ([3 + 4j, 12],), 13),
        (safeops.squared_norm, ([3 + 4j, 12],), 169),
        (safeops.safe_rms, ([1j, -1],), 1),
        (safeops.safe_normalize, ([3j, 4],), [0.6j, 0.8]),
        (safeops.safe_distance, ([3j, 4], [0, 0]), 5),
    ],
)
def test_values_of_complex_numbers(function, args, wanted, framework):
    """Values off the real axis are those of algebra."""
    value = to_numpy(function(*(asarray(framework, x, "complex128") for x in args)))

    assert_close([value.real, value.imag], [np.real(wanted), np.imag(wanted)], RTOL)


# Shapes.


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_no_dimensions(name, framework):
    """A single number has a result of no dimensions, and a value of the table."""
    result = to_numpy(call(name, *arguments(name, framework, ())))

    assert result.shape == ()
    assert_close(result, OPS[name].points[0].value, RTOL)


@pytest.mark.parametrize(
    "name", [n for n in ALONG_SLICES if n not in {"safe_cross_entropy", *RUNNING}]
)
def test_a_number_is_a_slice_of_one_entry(name, framework):
    """Over all of no axes the value is that of one entry, without dimensions."""
    args = arguments(name, framework, (1, 3))

    result = public(name)(*(x[0, 0] for x in args), axis=None)

    of_one = public(name)(*(x[:, :1] for x in args), axis=None)
    assert to_numpy(result).shape == ()
    np.testing.assert_array_equal(to_numpy(result), np.squeeze(to_numpy(of_one)))


@EVERY
def test_empty_arrays_have_empty_results(name, framework):
    """Where there is no entry the result has none, and its shape."""
    result = call(name, *arguments(name, framework, (0, 3)))

    kept = name in ELEMENTWISE or name in KEEP_SHAPE
    assert to_numpy(result).shape == ((0, 3) if kept else (0,))


@pytest.mark.parametrize("name", [n for n in ALONG_SLICES if n not in KEEP_SHAPE])
def test_an_empty_slice_is_one_from_which_all_is_left_out(name, framework):
    """No entries, and none kept, give one value."""
    nothing = [asarray(framework, np.ones((2, 0))) for _ in sample(name)]
    none_kept = asarray(framework, [False], "bool")

    value = to_numpy(call(name, *nothing))
    left_out = to_numpy(call(name, *arguments(name, framework), where=none_kept))

    assert value.shape == (2,)
    np.testing.assert_array_equal(value, left_out)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
@EVERY
def test_gradients_of_empty_arrays_are_empty(name, shape, autodiff_framework):
    """A gradient has the shape of its argument, also if that has no entries."""
    args = [asarray(autodiff_framework, np.ones(shape)) for _ in sample(name)]

    assert [g.shape for g in gradients(name, *args)] == [shape for _ in args]


COLUMN, ROW = [[0.5], [2.0]], [1.0, 2.0, 3.0]


@EVERY_PAIR
def test_arguments_broadcast(name, framework):
    """Arguments of two shapes have the values of arguments repeated to one shape."""
    x, y = asarray(framework, COLUMN), asarray(framework, ROW)
    full = [asarray(framework, a) for a in np.broadcast_arrays(COLUMN, ROW)]

    np.testing.assert_array_equal(to_numpy(call(name, x, y)), to_numpy(call(name, *full)))


@EVERY_PAIR
def test_gradients_have_the_shapes_of_the_arguments(name, autodiff_framework):
    """The gradient to a repeated entry is the sum over its copies."""
    x, y = asarray(autodiff_framework, COLUMN), asarray(autodiff_framework, ROW)
    full = [asarray(autodiff_framework, a) for a in np.broadcast_arrays(COLUMN, ROW)]

    to_x, to_y = gradients(name, x, y)
    of_full = gradients(name, *full)

    assert_close(to_x, of_full[0].sum(1, keepdims=True), RTOL)
    assert_close(to_y, of_full[1].sum(0), RTOL)


@pytest.mark.parametrize("name", PAIRS_OF_SLICES)
def test_slices_broadcast(name, framework):
    """Batches of slices broadcast against each other, and the mask against both."""
    x, y = sample(name)
    batch = np.multiply.outer([1.0, 2.0, 4.0, 8.0], y)
    where = asarray(framework, [True, True, False], "bool")

    result = to_numpy(
        call(name, asarray(framework, [[x], [x]]), asarray(framework, batch), where=where)
    )

    one = [asarray(framework, [x] * 4), asarray(framework, batch)]
    np.testing.assert_array_equal(result, [to_numpy(call(name, *one, where=where))] * 2)


def flattened(x, axes):
    """Return an array with axes moved to the end and joined, in NumPy."""
    rest = [i for i in range(x.ndim) if i not in axes]
    return np.transpose(x, (*rest, *axes)).reshape(*(x.shape[i] for i in rest), -1)


@pytest.mark.parametrize("axis", [None, -2, (0, 2), (-1, 0)], ids=str)
@pytest.mark.parametrize("name", [name for name in OPS if takes(name, "axis")])
def test_axes(name, axis, framework):
    """A slice over any axes has the value of the same entries along the last one."""
    op = public(name)
    annotation = inspect.signature(getattr(safeops, name)).parameters["axis"].annotation
    if annotation is int and not isinstance(axis, int):
        pytest.skip("has one axis of classes")
    if isinstance(axis, tuple) and name in RUNNING:
        pytest.skip("goes along one axis")
    axes = {None: (0, 1, 2), -2: (1,), (0, 2): (0, 2), (-1, 0): (0, 2)}[axis]
    args = [np.linspace(low, 2.0, 24).reshape(2, 3, 4) for low in (0.5, 1.0)[: len(sample(name))]]

    result = to_numpy(op(*(asarray(framework, a) for a in args), axis=axis))

    wanted = op(*(flattened(a, axes) for a in args), axis=-1)
    assert_close(flattened(result, axes) if result.ndim == 3 else result, wanted, RTOL, atol=RTOL)


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@pytest.mark.parametrize(
    ("given", "axis"), [(np.int64(1), 1), ([0, 1], (0, 1)), ((np.int8(0),), (0,))], ids=str
)
@pytest.mark.parametrize("name", ["safe_sum", "nanmedian", "safe_norm", "safe_softmax"])
def test_an_axis_may_be_of_numpy_and_axes_a_list(name, given, axis, framework):
    """Integers of NumPy and lists are what the same integers and tuples of Python are."""
    x = asarray(framework, [[1.0, 2.0], [4.0, 8.0]])
    op = public(name)

    np.testing.assert_array_equal(to_numpy(op(x, axis=given)), to_numpy(op(x, axis=axis)))


@pytest.mark.parametrize("axis", [None, 1, (0, -1)], ids=str)
@pytest.mark.parametrize("name", [name for name in OPS if takes(name, "keepdims")])
def test_keepdims(name, axis, framework):
    """With `keepdims` a reduced axis has length 1, and the values are the same."""
    op = public(name)
    args = [asarray(framework, np.ones((2, 3, 4))) for _ in sample(name)]
    shape = {None: (1, 1, 1), 1: (2, 1, 4), (0, -1): (1, 3, 1)}[axis]

    kept = to_numpy(op(*args, axis=axis, keepdims=True))
    dropped = to_numpy(op(*args, axis=axis))

    assert kept.shape == shape
    np.testing.assert_array_equal(kept.reshape(dropped.shape), dropped)


# The guests of each framework.


@pytest.mark.only("numpy")
@EVERY
def test_no_argument_is_written_to(name):
    """Read-only arrays will do."""
    args = arguments(name, "numpy")
    for x in args:
        x.flags.writeable = False

    assert call(name, *args).flags.writeable


def devices_of(f, *args):
    """Return the devices of all tensors that a function makes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            seen.update(x.device.type for x in tree_leaves(out) if isinstance(x, torch.Tensor))
            return out

    f(*args)  # a module that is imported at the first call makes tensors once
    with Watch():
        f(*args)
    return seen


@pytest.mark.only("torch")
@EVERY
def test_no_tensor_is_made_on_the_default_device(name):
    """All tensors on the way are where the arguments are: on PyTorch's meta device."""
    import torch

    args = [torch.ones((2, 3), device="meta") for _ in sample(name)]
    where = torch.ones((2, 3), dtype=torch.bool, device="meta")

    assert devices_of(lambda *a: call(name, *a, where=where), *args) == {"meta"}


@pytest.mark.only("torch")
@EVERY_PAIR
def test_scalars_go_to_the_device_of_the_array(name):
    """A Python scalar becomes no tensor of the default device either."""
    import torch

    x = torch.ones((2, 3), device="meta")

    assert devices_of(lambda x: call(name, x, 1.0), x) == {"meta"}
    assert devices_of(lambda x: call(name, 1.0, x), x) == {"meta"}


@pytest.mark.only("torch")
@EVERY
def test_fake_tensors_stay_fake(name):
    """Under FakeTensorMode, by which shapes are inferred, no value is asked for."""
    import torch
    from torch._subclasses import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        result = call(name, *(torch.ones((2, 3)) for _ in sample(name)))

    assert isinstance(result, FakeTensor)


@pytest.mark.only("tensorflow", "torch")
@EVERY
def test_variables_and_parameters_are_arrays(name, framework):
    """What a model keeps its weights in has the value of the array in it."""
    args = arguments(name, framework)
    kept = [weight(framework, x) for x in args]

    # A kernel for plain tensors may round otherwise than the steps that a variable takes.
    got, wanted = to_numpy(call(name, *kept)), to_numpy(call(name, *args))
    np.testing.assert_allclose(got, wanted, rtol=1e-15, atol=0)


def weight(framework, x):
    """Return what a model of a framework keeps a weight in."""
    if framework == "torch":
        import torch

        return torch.nn.Parameter(x)
    import tensorflow as tf

    return tf.Variable(x)


QUANTILES = {"nanmedian", "nanpercentile", "nanquantile"}
NO_QUANTILES = pytest.mark.parametrize("name", [name for name in OPS if name not in QUANTILES])


@pytest.mark.only("tensorflow")
@NO_QUANTILES  # which put their axes last, for which they must know how many there are
def test_the_rank_may_be_unknown(name):
    """In a graph without any static shape the values are the same."""
    import tensorflow as tf

    args = arguments(name, "tensorflow")
    shapeless = [tf.TensorSpec(None, x.dtype) for x in args]
    function = tf.function(lambda *args: call(name, *args), input_signature=shapeless)

    assert_close(function(*args), call(name, *args), RTOL)


@pytest.mark.only("array-api-strict")
@NO_QUANTILES  # dask has no sort
def test_dask_stays_lazy(name):
    """Nothing is computed before it is asked for."""
    import dask
    import dask.array as da

    def refuse(*_args, **_options):
        pytest.fail("computed too early")

    args = arguments(name, "numpy")
    with dask.config.set(scheduler=refuse):
        lazy = call(name, *(da.from_array(x, chunks=(1, 3)) for x in args))

    assert_close(lazy.compute(), call(name, *args), RTOL)
