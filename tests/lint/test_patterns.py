"""The table of wholes, for each of which there is one function."""

import ast
import re
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

import safeops
from safeops._source.edits import Page
from safeops._source.patterns import patterns, whole_of
from safeops._source.rewrites import Refused, check_undone, safe_operation

pytestmark = pytest.mark.only("numpy")

PAGE, BY_WORD = patterns()
ROWS = [row for rows in BY_WORD.values() for row in rows]
X = np.asarray([[0.3, 0.9, 0.4], [0.5, 0.2, 0.8]])
CAPITALS = {"X": X, "Y": X[::-1] + 0.5, "W": X + 1, "A": -1}


def unit(x, axis=1):
    """Return slices of length 1."""
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


def cosine(x, y, axis=1):
    """Return a cosine along an axis, by the default of PyTorch the second."""
    return (unit(x, axis) * unit(y, axis)).sum(axis)


def unit_of_order(x, axis=1, **_):
    """Return slices of length 1; of the orders a pattern has that of Euclid alone."""
    return unit(x, axis)


# What a name means in a pattern, where NumPy has none.
NAMES = {
    "F": SimpleNamespace(cosine_similarity=cosine, normalize=unit_of_order),
    "l2_normalize": unit,
    "logsumexp": special.logsumexp,
    "norm": np.linalg.norm,
    "np": np,
    "torch": SimpleNamespace(std=partial(np.std, ddof=1)),
}


def evaluated(source, options):
    """Return what a pattern or its call is at ordinary numbers."""
    words = re.findall(r"[a-z]\w+", source)
    names = {word: getattr(np, word) for word in words if hasattr(np, word)}
    names |= {word: getattr(safeops, word) for word in words if hasattr(safeops, word)}
    return np.asarray(eval(source, names | NAMES | CAPITALS, {"O": options}))  # noqa: S307


@pytest.mark.parametrize("options", [{}, {"axis": -1, "keepdims": True}], ids=["all", "axis"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: PAGE.text(row.tree))
def test_a_pattern_is_an_identity(row, options):
    """At ordinary numbers a whole has the value of the function that takes its place."""
    needs_axis = row.name == "safe_cosine_similarity" and "**O" in row.call
    if needs_axis and not options:
        pytest.skip("without an axis the row before is the one that matches")

    wanted, found = (evaluated(x, options) for x in (PAGE.text(row.tree), row.call))

    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_an_identity_can_fail():
    """A pattern whose call is another function is found."""
    wanted, found = evaluated("log(cosh(X))", {}), evaluated("log_sinhc(X)", {})

    assert not np.allclose(wanted, found)


SPELLINGS = [
    ("torch.log(x).sum(0).exp()", "log", "safe_prod(x, axis=0)"),
    ("torch.exp(torch.sum(torch.log(x), dim=-1))", "log", "safe_prod(x, axis=-1)"),
    ("jnp.exp(jnp.log1p(-p).sum())", "log1p", "safe_prod(1 - p)"),
    ("jnp.exp(jnp.log1p(a * b).sum())", "log1p", "safe_prod(1 + (a * b))"),
    ("jnp.log(0.5 * (jnp.exp(-d) + jnp.exp(d)))", "exp", "log_cosh(d)"),
    ("((a - b)**2).sum(-1).sqrt()", "sqrt", "safe_norm(a - b, axis=-1)"),
    ("tf.sqrt(tf.reduce_mean(v * v, axis=1))", "sqrt", "safe_rms(v, axis=1)"),
    ("jnp.sqrt(jnp.clip(x, 0, None))", "sqrt", "safe_sqrt(x)"),
    ("jnp.sqrt(jnp.clip(x, min=0))", "sqrt", "safe_sqrt(x)"),
    ("np.sqrt(np.clip(x, a_min=0.0, a_max=None))", "sqrt", "safe_sqrt(x)"),
    ("x.clamp_min(0).sqrt()", "sqrt", "safe_sqrt(x)"),
    ("F.normalize(v, dim=-1)", "normalize", "safe_normalize(v, axis=-1)"),
    ("F.normalize(v)", "normalize", "safe_normalize(v, axis=1)"),
    (
        "torch.logsumexp(a[:, None] + torch.log(t), 0)",
        "log",
        "safe_logsumexp(a[:, None], axis=0, b=t)",
    ),
    (
        "(x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)",
        "std",
        "safe_standardize(x, axis=-1, correction=1)",
    ),
    (
        "(x - jnp.mean(x, 0, keepdims=True)) / jnp.std(x, 0, keepdims=True)",
        "div",
        "safe_standardize(x, axis=0)",
    ),
    (
        "(a * b).sum(-1) / (torch.norm(b, dim=-1) * torch.norm(a, dim=-1))",
        "norm",
        "safe_cosine_similarity(a, b, axis=-1)",
    ),
]
OTHERS = [
    ("jnp.sqrt(jnp.clip(x, 0, 1))", "sqrt"),  # another limit
    ("jnp.sqrt(jnp.clip(x, max=0))", "sqrt"),
    ("jnp.sqrt(jnp.clip(x, 0, out=y))", "sqrt"),
    ("torch.log(x).exp().sum()", "log"),  # another order
    ("torch.exp(torch.sum(torch.log(x), dim=-1) / n)", "log"),  # a geometric mean
    ("torch.exp(torch.sum(torch.log(x), dim=-1, dtype=d))", "log"),  # an option
    ("jnp.log((jnp.exp(a) + jnp.exp(-b)) / 2)", "exp"),  # two numbers
    ("F.normalize(v, dim=-1, eps=1e-3)", "normalize"),  # it chooses a length
    ("sklearn.preprocessing.normalize(v)", "normalize"),
    ("(x - x.mean()) / x.std()", "div"),  # of PyTorch or of NumPy?
    (  # PyTorch takes the names of NumPy too
        "(x - x.mean(axis=0, keepdims=True)) / x.std(axis=0, keepdims=True)",
        "std",
    ),
    ("(x - x.mean(0)) / x.std(0)", "div"),  # means and deviations meet by their last axes
    ("(a * b).sum(-1) / (torch.norm(a, dim=-1) * torch.norm(b, dim=0))", "norm"),
    ("v / torch.norm(v, dim=-1)", "div"),  # the axis is not kept
    ("torch.exp(torch.sum(torch.log(x), *axes))", "log"),
]


def found_in(source, operation):
    """Return the call for the whole around an operation, by its name, or ""."""
    page = Page((source + "\n",), ast.parse(source))
    nodes = [x for x in page.expressions if is_named(x, operation)]
    assert nodes
    whole = whole_of(page, nodes[-1], is_dropped=False)
    return "" if whole is None else whole.change(page.text)


def is_named(node, operation):
    """Whether an expression is an operation."""
    if isinstance(node, ast.BinOp):
        return operation == "div" and isinstance(node.op, ast.Div)
    function = getattr(node, "func", None)
    return operation == getattr(function, "attr", getattr(function, "id", None))


@pytest.mark.parametrize(("source", "operation", "wanted"), SPELLINGS, ids=lambda x: str(x)[:40])
def test_a_whole_is_found_in_every_spelling(source, operation, wanted):
    """A method, a function, an option by place or by name, and factors in any order match."""
    assert found_in(source, operation) == wanted


@pytest.mark.parametrize(("source", "operation"), OTHERS, ids=lambda x: str(x)[:40])
def test_another_whole_is_not_taken_for_it(source, operation):
    """Nothing takes the place of what is not the same by its source."""
    assert found_in(source, operation) == ""


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("m.softmax(scores)", ""),  # of a namespace, or along an axis: the source does not say
        ("m.logsumexp(scores, -1)", ""),
        ("scores.softmax(-1)", "safe_softmax(scores, axis=-1)"),
        ("scores.softmax(dim)", "safe_softmax(scores, axis=dim)"),
        ("torch.softmax(scores, last)", "safe_softmax(scores, axis=last)"),
    ],
)
def test_a_namespace_is_not_edited_as_an_array(source, wanted):
    """A method has an axis where a function of a namespace has its argument."""
    page = Page((source + "\n",), ast.parse(source))
    found = safe_operation(page, page.expressions[0])
    assert (found[1](page.text) if found else "") == wanted


@pytest.mark.parametrize("square", ["t * t", "t**2", "t.square()", "torch.square(t)"])
def test_the_slope_of_a_tangent_is_known_by_its_name(square):
    """A logarithm of it is smooth, where a safe logarithm would have another value."""
    source = "t = torch.{}(x)\ny = torch.log(1 - " + square + ")\n"

    for function, is_refused in (("tanh", True), ("sin", False)):
        text = source.format(function)
        page = Page(tuple(text.splitlines(keepends=True)), ast.parse(text))
        log = next(x for x in page.expressions if is_named(x, "log"))
        with pytest.raises(Refused) if is_refused else nullcontext():
            check_undone(page, log, is_dropped=False)
