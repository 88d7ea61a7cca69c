"""
NumPy's own tests of the nan family, run against ours.

The file ships inside NumPy. A shim stands for `np` in it and translates: keywords that have another
name here, lists into arrays, and what we say by a value, NaN or -1, into the warning or the error
that NumPy adds, so that the rest of such a test still runs. What cannot pass is listed with its
reason: a listed test that passes is an error, and so is another that fails.
"""

import ast
import importlib.util
import inspect
import re
import warnings
from collections import Counter
from functools import partial, wraps
from pathlib import Path

import numpy as np
import pytest

import safeops

pytestmark = pytest.mark.only("numpy")
SOURCE = Path(importlib.util.find_spec("numpy.lib.tests.test_nanfunctions").origin)
NAMES = [name for name in safeops.__all__ if name.startswith("nan")]
SAYS = {
    "nanmean": "Mean of empty slice",
    "nanstd": "Degrees of freedom <= 0 for slice.",
    "nanvar": "Degrees of freedom <= 0 for slice.",
}
PRIVATE = (
    "TestSignatureMatch",
    "test__nan_mask",
    "test__replace_nan",
    "test_memmap_takes_fast_route",
)
NO_ENTRY = "attempt to get argm.. of an empty sequence"


class OutOfScopeError(Exception):
    """An option of NumPy that we have not got."""


# pytest.warns reports in this way that its block raised.
REFUSED = (TypeError, OutOfScopeError, pytest.fail.Exception)
# What cannot pass: the names of tests, how they fail, why, and how many there are.
LISTED = (
    (
        r"::test_dtype_from_input$|[\[-]g[\]-]|(?<!_q)\[(.*-)?G[\]-]",
        REFUSED,
        "long doubles are NumPy's alone",
        164,
    ),
    (
        r"(MinMax|ArgminArgmax|Median)::.*[\[-][FD][\]-]|\[nan(arg)?(max|min|median)\b.*-[FD]\]",
        REFUSED,
        "NumPy orders complex numbers by their real parts; they have no order",
        61,
    ),
    (r"-O\]|::test_object_array", TypeError, "arrays of objects are NumPy's alone", 37),
    (r"Median::test_allnans\[m8", REFUSED, "time differences are NumPy's alone", 36),
    (r"::test_masked", TypeError, "a MaskedArray is refused, in words that name `where`", 1),
    (r"::test_subclass", AssertionError, "subclasses of ndarray come back as ndarrays", 5),
    (
        r"::test_(keepdims_)?out\b|MeanVarStd::test_out_dtype_error|test_nanstd_with_mean_keyword",
        OutOfScopeError,
        "out= is NumPy's alone: other arrays cannot be written to",
        27,
    ),
    (r"::test_dtype_(from|error)", OutOfScopeError, "there is no dtype=: convert the array", 7),
    (r"Percentile::test_result_values\[.*True", OutOfScopeError, "no weights= and no out=", 3),
    (
        r"::test_nan_value_with_weight\[|Quantile::test_regression\[True",
        OutOfScopeError,
        "no weights=",
        6,
    ),
    (r"with_weight_ndim", ValueError, "q has at most one dimension", 3),
    (
        r"test_nanfunc_q\[nanquantile-.*-[bBhHiIlLqQnNpP]\]",
        AssertionError,
        "q=1, an integer, keeps integers in NumPy; here they are always divided",
        28,
    ),
    (
        r"::test_nanquantile_allnan_first_slice_dtype",
        AssertionError,
        "a result has the dtype of its entries, also where q is an array of float64",
        1 if np.lib.NumpyVersion(np.__version__) >= "2.5.0" else 0,
    ),
    (
        r"test_nanfunc_ddof\[nanvar-1d-F\]",
        AssertionError,
        "7 decimals of 1166.9333 in float32 are more than it has: off by its last digit",
        1,
    ),
)


def translated(name):
    """Return a function of ours that is called like NumPy's and complains like it."""
    op = getattr(safeops, name)

    @wraps(getattr(np, name))
    def called(x, *args, ddof=None, correction=None, **options):
        if ddof is not None and correction is not None:
            msg = "ddof and correction can't be provided simultaneously."
            raise ValueError(msg)
        divisor = correction if ddof is None else ddof
        options |= {"correction": divisor}
        options = {key: value for key, value in options.items() if not is_default(key, value)}
        args += (options.pop("q"),) if "q" in options else ()
        x, args = np.asanyarray(x), [as_array(q) for q in args]
        if missing := sorted(set(options) - set(inspect.signature(op).parameters)):
            raise OutOfScopeError(missing)
        value = op(x, *args, **options)
        complain(name, x, value)
        return value

    return called


def is_default(key, value):
    """Whether an option that we have not got is one that changes nothing."""
    return value is None or (key == "overwrite_input" and value is False)


def as_array(q):
    """Return a list or tuple as an array of floats."""
    return np.asarray(q, dtype=float) if isinstance(q, (list, tuple)) else q


def complain(name, x, value):
    """Warn or raise as NumPy does where the result says that there was no entry."""
    if "arg" in name:
        if np.any(value == -1):
            raise ValueError(NO_ENTRY if x.size == 0 else "All-NaN slice encountered")
    elif np.any(np.isnan(value)):
        times = np.isnan(value).sum() if name == "nanmedian" and x.size else 1  # as NumPy counts
        for _ in range(times):
            warnings.warn(SAYS.get(name, "All-NaN slice encountered"), RuntimeWarning, stacklevel=3)


class Shim:
    """NumPy, with our functions in place of its own."""

    def __init__(self):
        for name in NAMES:
            setattr(self, name, translated(name))
        self.nanpercentile = wraps(np.nanpercentile)(partial(percentile, self.nanquantile))

    def __getattr__(self, name):
        """Return what we have not replaced."""
        return getattr(np, name)


def percentile(quantile, x, q, **options):
    """Return a quantile by hundredths."""
    return quantile(x, np.asarray(q) / 100 if np.ndim(q) else q / 100, **options)


def is_of_numpy_alone(node):
    """Whether a statement imports NumPy, or tests its signatures and private functions."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names] == ["numpy"]
    return getattr(node, "name", None) in PRIVATE


def numpys_tests():
    """Return the tests of NumPy's file, by name, with the shim as `np`."""
    tree = ast.parse(SOURCE.read_text())
    tree.body = [node for node in tree.body if not is_of_numpy_alone(node)]
    namespace = {"np": Shim(), "__name__": "numpys_tests"}
    exec(compile(tree, SOURCE, "exec"), namespace)
    return {name: test for name, test in namespace.items() if name.lower().startswith("test")}


globals().update(numpys_tests())


def reason_for(item):
    """Return the row of the list that names a test, or None."""
    name = "::".join(item.nodeid.split("::")[1:])
    return next((row for row in LISTED if re.search(row[0], name)), None)


@pytest.fixture(autouse=True)
def _listed(request):
    """Demand that a listed test fails, and in the way that the list says."""
    if row := reason_for(request.node):
        request.node.obj = failing(request.node.obj, *row[1:3])


def failing(test, errors, reason):
    """Return a test that is reported as an expected failure if `test` fails, else as a failure."""

    def run(**args):
        with pytest.raises(errors):
            test(**args)
        # A mark would do the same, ten times slower: pytest would parse NumPy's file for each.
        pytest.xfail(reason)

    return run


def test_a_listed_test_that_passes_is_an_error():
    """What is listed without need, or fails in another way, is not an expected failure."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        failing(lambda: None, TypeError, "")()
    with pytest.raises(ValueError, match="another"):
        failing(lambda: int("another"), TypeError, "")()


def collected(node):
    """Return all tests below a node, whichever of them are selected."""
    for child in node.collect():
        yield from collected(child) if isinstance(child, pytest.Collector) else (child,)


def test_more_than_eight_hundred_tests_of_numpy_pass(request):
    """825 tests pass; each row of the list names as many as it says."""
    rows = [reason_for(t) for t in collected(request.node.parent)]
    counts = Counter(row[2] for row in rows if row)

    assert rows.count(None) == 825 + 54 + 2  # that skip themselves; of ours
    assert counts == {reason: count for _, _, reason, count in LISTED if count}
