"""What a user reads who calls a function wrongly: its name, what was given, the way out."""

import inspect
import pickle
import re
from importlib import import_module
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.exceptions import AxisError

import safeops
import safeops.autodiff
from calls import COMBINATORS, EVERY, INDICES, OPS, arguments, public, sample
from frameworks import asarray

FOREIGN_WORDS = {"dim": "axis", "keepdim": "keepdims", "ddof": "correction", "mask": "where"}
PUBLIC = [name for name in safeops.__all__ if inspect.isfunction(getattr(safeops, name))]
OPERATIONS = [name for name in PUBLIC if name not in COMBINATORS - {"stop_gradient"}]
ALONG = [x for x in OPERATIONS if "axis" in inspect.signature(getattr(safeops, x)).parameters]


def plain_signature(name):
    """Return the signature of a public function, without types."""
    signature = inspect.signature(getattr(safeops, name))
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


@pytest.mark.parametrize("word", FOREIGN_WORDS)
@EVERY
def test_the_word_of_another_library_is_translated(name, word, framework):
    """A keyword that others use is an error that names the function, its options and ours."""
    ours, takes = FOREIGN_WORDS[word], plain_signature(name)
    hint = f"; {word} is {ours} here" if f"{ours}=" in takes else ""
    head = f"{name}{takes}: got an unexpected keyword argument '{word}'"

    with pytest.raises(TypeError, match=f"^{re.escape(head + hint)}$"):
        public(name)(*arguments(name, framework), **{word: 0})


@EVERY
def test_an_argument_too_few_or_too_many_is_named(name, framework):
    """What is missing, and what is too many, is an error of the public function."""
    function, (x, *_) = getattr(safeops, name), arguments(name, framework)
    takes = re.escape(f"{name}{plain_signature(name)}")

    with pytest.raises(TypeError, match=f"^{name}.* missing .*argument: '"):
        function()
    options = re.findall(r"\*, (\w+)", plain_signature(name))
    hint = f"; options have names, such as {options[0]}=" if options else ""
    with pytest.raises(TypeError, match=f"^{takes}: too many positional arguments{hint}$"):
        function(x, x, x, x)
    if len(sample(name)) > 1:
        with pytest.raises(TypeError, match=f"^{takes}: missing a required argument: '"):
            function(x)


@pytest.mark.parametrize("name", ALONG)
def test_an_axis_that_there_is_not_is_named(name, framework):
    """An axis that no argument has is one error in all frameworks, of the public function."""
    args = arguments("safe_max" if name in INDICES else name, framework)
    rank = max(len(x.shape) for x in args if hasattr(x, "shape"))

    with pytest.raises(AxisError, match=f"^{name}: .* with {rank} axes, got axis=5$"):
        public(name)(*args, axis=5)


@EVERY
def test_numbers_alone_are_named_alone(name):
    """Python numbers are what was given: no None, and no default, is said to be."""
    with pytest.raises(
        TypeError,
        match=rf"^{name}: expected at least .*, got the Python numbers? 1.0.*; pass .*\(1.0\)$",
    ):
        public(name)(*(1.0 for _ in sample(name)))


@EVERY
def test_what_is_wrong_is_said_by_the_outermost_function(name, framework):
    """An error of a function that another one calls has the name of that one, and no other."""
    words = f"^{name}: expected a boolean array"
    if "where" not in inspect.signature(getattr(safeops, name)).parameters:
        pytest.skip("has no mask")

    with pytest.raises(TypeError, match=words):
        public(name)(*arguments(name, framework), where=asarray(framework, [1.0, 0.0, 1.0]))


def test_shapes_that_do_not_fit_are_named():
    """An error of NumPy in one of our functions says which function that was."""
    with pytest.raises(ValueError, match=r"^safe_div: .*(shape|size)"):
        safeops.safe_div(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match=r"^nansum: .*(shape|size)"):
        safeops.nansum(np.ones(3), where=np.ones(2, bool))


def raising(_):
    """Raise what a user's own function may raise."""
    msg = "my own words"
    raise ValueError(msg)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: safeops.safe_where(x > 0, x, raising, fill_value=0),
        lambda x: safeops.vectorized_cond(x > 0, raising, raising, x),
        safeops.make_safe(raising, lambda x: x > 0, placeholder=1, fill_value=0),
    ],
)
def test_the_errors_of_a_branch_are_its_own(call, framework):
    """A function of the user says what it says."""
    with pytest.raises(ValueError, match=r"^my own words$"):
        call(asarray(framework, [1.0, 0.0]))


def looking_up(x):
    """Raise while another error is handled."""
    try:
        return {}["key"]
    except KeyError:
        return raising(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: safeops.vectorized_cond(x > 0, looking_up, looking_up, x),
        safeops.make_safe(looking_up, lambda x: x > 0, placeholder=1, fill_value=0),
    ],
)
def test_the_error_behind_that_of_a_branch_is_shown(call, framework):
    """A traceback shows what was handled as a function of the user raised."""
    with pytest.raises(ValueError, match="my own words") as raised:
        call(asarray(framework, [1.0, 0.0]))
    assert isinstance(raised.value.__context__, KeyError)
    assert not raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: safeops.safe_where(x > 0, x, x, fill_value=0),
            "safe_where: expected a function",
        ),
        (lambda x: safeops.safe_where(x, x, abs, fill_value=0), "safe_where: .* boolean array"),
        (lambda x: safeops.safe_where(x > 0, x, abs), "safe_where: .*f2 and fill_value"),
        (lambda x: safeops.safe_where(x > 0, x, abs, fill=0), r"safe_where\(.*'fill'"),
        (lambda x: safeops.vectorized_cond(x > 0, abs), r"vectorized_cond\(.* 'false_fun'"),
        (lambda x: safeops.stop_gradient([x]), r"stop_gradient: .*got list as x; pass .*\(x\)$"),
        (lambda x: safeops.make_safe(x, abs, placeholder=1, fill_value=0), "make_safe: .*function"),
        (
            lambda x: safeops.make_safe(raising, abs, placeholder=1, fill_value=0)(x, x),
            r"raising\(_\): too many",
        ),
        (
            lambda x: safeops.make_safe(raising, abs, placeholder=1, fill_value=0)(_=x),
            "raising: expected arrays by position, got _ by name",
        ),
    ],
)
def test_combinators_speak_too(call, words, framework):
    """The errors of a combinator name it as well."""
    with pytest.raises(TypeError, match=f"^{words}"):
        call(asarray(framework, [1.0, 0.0]))


def of_module(name, **members):
    """Return an object of a library that need not be installed, as its type says."""
    module = ModuleType(name)
    return type("Thing", (), members | {"__module__": module.__name__})()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("pandas.core.series", r"got Thing as \w+; pass \w+.to_numpy\(\)"),
        ("polars.series.series", r"got Thing as \w+; pass \w+.to_numpy\(\)"),
        ("xarray.core.dataarray", r"got Thing as \w+; .*xarray.apply_ufunc, or .*to_numpy"),
    ],
)
def test_tables_have_a_way_out(name, owner, words):
    """A column of pandas, and an array of xarray, is an error that says what to do."""
    thing = of_module(owner, to_numpy=lambda _: None, dtype=np.dtype(float))
    count = len(sample(name)) if name in OPS else 1

    for position in range(count):
        args = [np.ones(3) for _ in range(count)]
        args[position] = thing
        with pytest.raises(TypeError, match=f"^{name}: .*{words}"):
            (public if name in OPS else lambda name: getattr(safeops, name))(name)(*args)


@pytest.mark.only("numpy")
@EVERY
def test_masked_arrays_have_a_way_out(name):
    """A masked array of NumPy is an error that says what to pass."""
    args = [np.ma.ones(3), *arguments(name, "numpy", (3,))[1:]]

    with pytest.raises(TypeError, match=f"^{name}: .*MaskedArray; pass x.data, and where=~x.mask"):
        public(name)(*args)


@pytest.mark.only("torch")
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@EVERY
def test_masked_tensors_have_a_way_out(name):
    """A MaskedTensor is an error that says what to pass, for each argument."""
    import torch

    masked = torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))
    for position in range(len(sample(name))):
        args = arguments(name, "torch", (3,), "float32")
        args[position] = masked

        with pytest.raises(TypeError, match=f"^{name}: .*MaskedTensor; pass x.get_data"):
            public(name)(*args)


@pytest.mark.only("jax")
def test_the_errors_of_a_framework_keep_their_kind():
    """What JAX says of a traced number is what it is without us."""
    import jax

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda x, c: safeops.nanvar(x, correction=1 if c else 0))(np.ones(3), 1)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda x, axis: safeops.nansum(x, axis=axis))(np.ones(3), 0)


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures_are_kept(name):
    """A decorated function has the signature and name of what was decorated, and is public."""
    function = getattr(safeops, name)

    assert function.__name__ == function.__qualname__ == name
    assert function.__module__ == "safeops"
    assert str(inspect.signature(function)) != "(*args, **options)"


@pytest.mark.parametrize("value", [(), [], {}], ids=["tuple", "list", "dict"])
def test_a_branch_returns_one_array(value, framework):
    """A branch of safe_where with several values is an error that names vectorized_cond."""
    x, several = asarray(framework, [1.0, 0.0]), type(value)

    def pair(x):
        return {"x": x} if several is dict else several((x, x))

    words = f"^safe_where: expected a branch .* got {several.__name__}; use vectorized_cond$"
    with pytest.raises(TypeError, match=words):
        safeops.safe_where(x > 0, x, pair, fill_value=0)
    with pytest.raises(TypeError, match=words):
        safeops.safe_where(x > 0, x, abs, pair)


@pytest.mark.only("torch")
@pytest.mark.parametrize("family", [safeops, safeops.linalg])
def test_a_symbolic_trace_records_a_call(family):
    """torch.fx records a function of safeops as one call, as it does those of PyTorch."""
    import torch

    name = {"safeops": "safe_div", "safeops.linalg": "sqrtm_psd"}[family.__name__]
    f = getattr(family, name)

    class Root(torch.nn.Module):
        def forward(self, x):
            return f(2.0, x) if name == "safe_div" else f(x) + x

    traced = torch.fx.symbolic_trace(Root())

    assert f in [node.target for node in traced.graph.nodes]
    x = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    assert pickle.loads(pickle.dumps(traced))(x).tolist() == Root()(x).tolist()  # noqa: S301  (ours)


@pytest.mark.only("torch")
def test_a_symbolic_trace_of_a_branch_has_a_way_out():
    """torch.fx records no call with a function: an error that says what does."""
    import torch

    with pytest.raises(TypeError, match=r"^safe_where: .*Proxy of torch.fx.*torch.export$"):
        torch.fx.symbolic_trace(lambda x: safeops.safe_where(x > 0, x, torch.log, fill_value=0.0))


def test_what_has_every_attribute_is_no_array(framework):
    """A mock is no array of any framework; TensorFlow alone takes one for a tensor."""
    if framework == "tensorflow":
        assert import_module("tensorflow").is_tensor(Mock())
    with pytest.raises(TypeError, match=r"^safe_sqrt: expected arrays of .*got Mock"):
        safeops.safe_sqrt(Mock())


@pytest.mark.together
def test_a_symbolic_trace_records_a_call_beside_tensorflow():
    """A Proxy of torch.fx is known as one after TensorFlow has been imported, too."""
    import torch

    safeops.safe_softmax(asarray("tensorflow", [1.0]))
    graph = torch.fx.symbolic_trace(lambda x: 2 * safeops.safe_softmax(x)).graph

    assert safeops.safe_softmax in [node.target for node in graph.nodes]


@pytest.mark.parametrize("name", ["linalg", "nan_reductions", "rotations", "segments", "testing"])
def test_completion_in_a_module_shows_what_is_public(name):
    """`dir` of a public module lists what it offers, and nothing that it imports."""
    module = import_module(f"safeops.{name}")

    assert dir(module) == sorted(module.__all__)
    assert len(vars(module)) > len(dir(module))


def test_completion_shows_what_is_public():
    """`dir` of the package, and of masked autodiff, lists public names and no other."""
    names, masked = dir(safeops), dir(safeops.autodiff)

    assert set(safeops.__all__) < set(names)
    assert {"autodiff", "nan_reductions"} < set(names)
    assert {"explain", "grad", "Finding", "Report"} <= set(masked)
    assert [n for n in (*names, *masked) if n.startswith("_")] == ["__version__"]
    assert set(masked) <= {*safeops.autodiff.__all__, "jax", "tensorflow", "torch"}
    assert all(hasattr(safeops, n) for n in names)
