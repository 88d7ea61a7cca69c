"""*What comes back, and errors*: the page, held to calls of every public function."""

import inspect
import re
from fnmatch import fnmatchcase
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import safeops
from frameworks import asarray
from safeops._core.dtypes import dtype_name

PAGE = Path(__file__).parents[2] / "docs/reference/returns.md"
# What `make_safe` returns is a function, which has other arguments.
NAMES = [name for name in safeops.__all__ if name != "make_safe"]
for module in ("rotations", "linalg", "segments"):
    NAMES += [f"{module}.{name}" for name in getattr(safeops, module).__all__]
# The lengths that docstrings call by a letter; k is the less of m and n.
SIZES = {"n": 3, "m": 2, "k": 2, "d": 3, "e": 2, "num_segments": 5, "min": min}
BATCH = (4, 2)
FIXED = {"boolean": "bool", "integer": "int64"}
# Arguments that are no arrays, by name, and options that have no default.
GIVEN = {
    **dict.fromkeys(("f1", "f2", "true_fun", "false_fun"), lambda x: x),
    "f": lambda x: x * x,
    "max_norm": 2.0,
    "num_segments": SIZES["num_segments"],
    "p": 0.5,
    "q": 0.5,
}
OPTIONS = {"linalg.spectral_function": {"derivatives": (lambda x: x + x, lambda x: 0 * x + 2)}}
MASKS = {"where", "cond", "pred"}
OUTSIDE = {"ord": 0.5, "min_norm": -1.0, "gamma": -1.0, "alpha": 2.0, "label_smoothing": 2.0}
OUTSIDE |= {"num_segments": -1, "max_norm": -1.0, "q": 200.0}


# A call, made of a docstring.


def sections(name):
    """Return the sections of a docstring by their titles."""
    doc = inspect.getdoc(attrgetter(name)(safeops))
    _, *rest = re.split(r"^(\w+)\n-{3,}\n", doc, flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def described(name):
    """Return what a docstring says of each parameter, but for its sentences."""
    found = re.findall(r"^(\S.*?) : (.*)$", sections(name)["Parameters"], flags=re.MULTILINE)
    return {word.strip("* "): kind for words, kind in found for word in words.split(",")}


def options(name):
    """Return what a docstring says of each option."""
    takes = inspect.signature(attrgetter(name)(safeops)).parameters
    named = [key for key, value in takes.items() if value.kind is value.KEYWORD_ONLY]
    return {key: described(name)[key] for key in named}


def positional(name):
    """Return what a docstring says of each argument by position."""
    return {key: kind for key, kind in described(name).items() if key not in options(name)}


def arrays(name):
    """Return the arguments that are arrays in each call."""
    return [key for key, kind in positional(name).items() if kind.startswith("array")]


def lengths(text):
    """Return the words for the lengths of the first shape in a text; None without a shape."""
    shape = re.search(r"shape \(((?:[^()]|\([^()]*\))*)\)", text)
    return shape and [word for word in re.split(r", *(?![^(]*\))", shape[1]) if word]


def in_numbers(words):
    """Return a shape of words in numbers."""
    sizes = (BATCH if word == "..." else (int(eval(word, {}, SIZES)),) for word in words)  # noqa: S307  (our own docs)
    return sum(sizes, ())


def array(kind, framework, dtype="float64", grow=0):
    """Return an array as a docstring describes it; its last axis may be longer."""
    shape = in_numbers(lengths(kind))
    shape = (*shape[:-1], shape[-1] + grow)
    first, _, other = kind.partition(";")  # labels are probabilities, or else integers
    fixed = FIXED.get(first.rpartition(", ")[2])
    fixed = "float32" if other and dtype in {"int32", "bool"} else fixed
    value = np.zeros(shape) if fixed == "int64" else np.full(shape, 0.5)
    if shape[-2:] in {(3, 3), (4, 4)}:
        value += np.eye(shape[-1])
    return asarray(framework, value, fixed or dtype)


def arguments(name, framework, dtype="float64"):
    """Return the arguments of a call, by their names."""
    given = positional(name).items()
    return {k: array(v, framework, dtype) if v.startswith("array") else GIVEN[k] for k, v in given}


def call(name, args, **given):
    """Return the results of a call, as a tuple; those of JAX are traced, not compiled."""

    def results():
        found = attrgetter(name)(safeops)(*args.values(), **OPTIONS.get(name, {}), **given)
        return found if isinstance(found, tuple) else (found,)

    if any(type(x).__module__.startswith("jax") for x in args.values()):
        import jax

        return jax.eval_shape(results)
    return results()


# The page.


def rows(title):
    """Return the table of the page whose head opens with a title, by its first column."""
    text = PAGE.read_text().partition(f"\n| {title}")[2].partition("\n\n")[0]
    found = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return {first: rest for first, *rest in found}


def row_of(name, table):
    """Return the row of a function; the first one if no other names it or an option of it."""
    short = name.rpartition(".")[2]
    for words, cells in table.items():
        these, _, not_these = words.partition(" except ")
        named, unnamed = (re.findall(r"`([\w*]+)=?`", part) for part in (these, not_these))
        if short not in unnamed and any(fnmatchcase(short, x) or x in options(name) for x in named):
            return cells
    return next(iter(table.values()))


def test_tables_name_functions():
    """Each name in the tables of results is one of a function or of an option of one."""
    known = {name.rpartition(".")[2] for name in NAMES}.union(*map(options, NAMES))
    tables = [*rows("Functions | Shape"), *rows("Functions | Integers")]
    named = re.findall(r"`([\w*]+)=?`", " ".join(tables))

    assert len(tables) > 2
    assert [x for x in named if not any(fnmatchcase(y, x) for y in known)] == []


def said_of_all(doc):
    """Return what the sections Returns and Raises say that the page says of every function."""
    said = " ".join((doc.get("Returns", "") + doc.get("Raises", "")).split())
    return re.findall(
        r"[Ff]ramework(?:,| and) |supported framework|not boolean|dtypes promoted", said
    )


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_leave_out_what_holds_for_all(name):
    """Returns and Raises have what is peculiar; *What comes back, and errors* has the rest."""
    assert said_of_all(sections(name)) == []


@pytest.mark.parametrize(
    "doc",
    [
        {"Returns": "array\n    Framework, dtype and\n    device of `x`."},
        {"Raises": "TypeError\n    If `x` is no array of a supported\n    framework."},
    ],
)
def test_what_holds_for_all_is_found(doc):
    """A sentence that the page has is found in either section, wrapped or not."""
    assert said_of_all(doc)


def axes_of(name):
    """Return the option for the last axis, which each function with an axis can reduce."""
    return {"axis": -1} if "axis" in options(name) else {}


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("name", NAMES)
def test_shapes(name, framework):
    """A result has the shape of its docstring, or else that of the page."""
    shape, *_ = row_of(name, rows("Functions | Shape"))
    args = arguments(name, framework)
    full = np.broadcast_shapes(*(tuple(args[key].shape) for key in arrays(name)[:1]))
    said = re.findall(r"^\S.*shape.*$", sections(name).get("Returns", ""), flags=re.MULTILINE)
    wanted = [in_numbers(lengths(line)) for line in said]
    if not said:
        of_row = {"that": full, "without": full[:-1], "`(num_segments,": (5, *full[1:])}
        wanted = [of_row[shape.split()[0]]]

    assert [tuple(x.shape) for x in call(name, args, **axes_of(name))] == wanted
    if "keepdims" in options(name):
        (kept,) = call(name, args, axis=-1, keepdims=True)
        assert tuple(kept.shape) == (*full[:-1], 1)


def wanted_dtype(cell, dtype):
    """Return the pattern of a dtype that a cell of the page speaks of."""
    patterns = {
        "become floating": r"float\d+",
        "stay, widened": r"int\d+",
        "become indices": r"int\d+",
        "become real": r"float32",
    }
    return next((patterns[words] for words in patterns if cell.startswith(words)), dtype)


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("name", NAMES)
def test_dtypes(name, framework):
    """A result has the precision of the arguments; integers and complex numbers are as said."""
    integers, of_complex = row_of(name, rows("Functions | Integers"))
    kinds = " ".join(positional(name).values())
    indices = integers if integers == "become indices" else ""
    dtypes = {"float32": indices, "int32": integers, "bool": integers}
    if "complex" in kinds or "any dtype" in kinds:
        dtypes["complex64"] = of_complex
    said = re.findall(r"^(?=\S).*array.*$", sections(name).get("Returns", ""), flags=re.MULTILINE)

    for dtype, cell in dtypes.items():
        got = [dtype_name(x.dtype) for x in call(name, arguments(name, framework, dtype))]
        real = [dtype == "complex64" and "real floating" in line for line in said or [""]]
        of = ["become real" if r else cell for r in real]
        fits = (re.fullmatch(wanted_dtype(x, dtype), y) for x, y in zip(of, got, strict=True))
        assert all(fits), (dtype, got)


# Errors: each row of the page is a function that makes wrong calls of right ones.


def replaced(name, args, make):
    """Return calls in which one array each is another thing."""
    return [(args | {key: make(key)}, {}) for key in arrays(name)]


def of_two_frameworks(name, args, framework):
    """Return calls with an array of NumPy beside another of PyTorch."""
    keys = arrays(name)[1:] if framework == "torch" else []
    return [(args | {key: np.asarray(args[key])}, {}) for key in keys]


def in_another_dtype(name, args, framework):
    """Return calls with complex numbers, strings, or floats for integers."""
    wrong = []
    for key, kind in positional(name).items():
        if key in arrays(name) and "real floating" in kind and "complex" not in kind:
            wrong.append((args | {key: array(kind, framework, "complex64")}, {}))
        if kind.endswith(", integer") and ";" not in kind:
            wrong.append((args | {key: array("array, " + kind[:-9], framework)}, {}))
        if framework == "numpy" and "floating" in kind and kind.startswith("array"):
            wrong.append((args | {key: np.full(args[key].shape, "0.5")}, {}))
    return wrong


def of_numbers(name, args, framework):
    """Return calls with a mask or condition of floats."""
    options_ = [(args, {"where": asarray(framework, [1.0])})] if "where" in options(name) else []
    return options_ + [(args | {k: asarray(framework, [1.0])}, {}) for k in args if k in MASKS]


def of_another_type(name, args, _):
    """Return calls with a word for a number, an axis or a flag."""
    typed = ("float", "int", "bool", "number")
    words = {key: "word" for key, kind in options(name).items() if kind.startswith(typed)}
    return [(args, {key: value}) for key, value in words.items()]


def too_few_or_many(name, args, _):
    """Return a call without arguments, and one with ten more."""
    more = {} if name == "vectorized_cond" else {str(i): args[arrays(name)[0]] for i in range(10)}
    return [({}, {}), *([(args | more, {})] if more else [])]


def that_do_not_broadcast(name, args, framework):
    """Return calls with an array, or a mask, of five entries beside two."""
    plain = [key for key in arrays(name) if lengths(positional(name)[key]) == ["..."]]
    wrong = [args | {key: array(positional(name)[key], framework, grow=3)} for key in plain[1:]]
    mask = {"where": asarray(framework, np.ones(5), "bool")}
    return [(x, {}) for x in wrong] + ([(args, mask)] if "where" in options(name) else [])


def of_another_shape(name, args, framework):
    """Return calls in which an axis is too long whose length another one has, or the docstring."""
    wrong = []
    every = [word for key in arrays(name) for word in lengths(positional(name)[key])]
    for key in arrays(name):
        kind = positional(name)[key]
        last = lengths(kind)[-1]
        if last != "..." and (last.isdigit() or every.count(last) > 1):
            wrong.append((args | {key: array(kind, framework, grow=1)}, {}))
    return wrong


def outside_of_a_range(name, args, _):
    """Return calls with a number that is too small or too large."""
    out = [
        ({**args, key: OUTSIDE[key]}, {})
        for key in args
        if key in OUTSIDE and key not in arrays(name)
    ]
    return out + [(args, {key: OUTSIDE[key]}) for key in options(name) if key in OUTSIDE]


WRONG = {
    "something": lambda name, args, _: replaced(name, args, lambda _: [1.0]),
    "no array": lambda name, args, _: [(args | dict.fromkeys(arrays(name), 1.0), {})],
    "arrays of two": of_two_frameworks,
    "a dtype": in_another_dtype,
    "a mask": of_numbers,
    "an option of another": of_another_type,
    "an option that": lambda _name, args, _: [(args, {"nonsense": 1})],
    "an argument": too_few_or_many,
    "an axis": lambda name, args, _: [(args, {"axis": 7})] if "axis" in options(name) else [],
    "shapes": that_do_not_broadcast,
    "a shape": of_another_shape,
    "a number": outside_of_a_range,
}


def test_every_row_of_errors_has_calls():
    """The rows of the page are those of the test, and each has wrong calls of some function."""
    table = rows("What is wrong")

    assert len(table) == len(WRONG)
    for (words, make), row in zip(WRONG.items(), table, strict=True):
        framework = "torch" if make is of_two_frameworks else "numpy"
        assert row.startswith(f"{words} ")
        assert any(make(name, arguments(name, "numpy"), framework) for name in NAMES)


@pytest.mark.only("jax", "numpy", "tensorflow", "torch")
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("name", NAMES)
def test_errors(name, framework):
    """A wrong call raises the error of the page, which names the function."""
    table, args = rows("What is wrong").values(), arguments(name, framework)

    for (row, make), (error,) in zip(WRONG.items(), table, strict=True):
        kind = error.partition("`")[2].partition("`")[0].rpartition(".")[2]
        for wrong, given in make(name, args, framework):
            with pytest.raises(Exception, match=rf"^{name.rpartition('.')[2]}\b") as raised:
                call(name, wrong, **given)
            assert type(raised.value).__name__ == kind, row


@pytest.mark.only("numpy", "torch")
@pytest.mark.parametrize("name", NAMES)
def test_values_raise_nothing(name, framework):
    """NaN and infinities, in each array or in all, have a value."""
    args = arguments(name, framework)
    floats = [key for key in arrays(name) if "float" in dtype_name(args[key].dtype)]

    for x in (np.nan, np.inf, -np.inf):
        odd = {key: asarray(framework, np.full(tuple(args[key].shape), x)) for key in floats}
        with np.errstate(all="ignore"):
            assert all(call(name, args | {key: odd[key]}) for key in floats)
            assert call(name, args | odd)
