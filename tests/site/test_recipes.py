"""Recipes: each runs alone on its framework, and agrees with the operation of safeops."""

import ast
import inspect
import math
import re

import numpy as np
import pytest

from assertions import assert_close
from frameworks import asarray, in_one_program, to_numpy
from safeops import _recipes
from safeops.__main__ import main
from safeops._backends import load
from safeops._cli.recipe import FAMILIES, FUNCTIONS, WITHOUT_RECIPE
from safeops._core.dtypes import dtype_name

NAMES = _recipes.names()
SPELLED = pytest.mark.only(*_recipes.TITLES)
# float32 arithmetic of a few operations
RTOL = 1e-5
ATOL = 1e-6


def run(code, **names):
    """Run code in a namespace of its own, with nothing in it but these names."""
    names = {"__name__": "recipe", **names}
    exec(compile(code, "recipe", "exec"), names)
    return names


def sections_in(name, framework):
    """Return the code of each section, in the spelling of a framework."""
    sections = _recipes.read(name).sections.items()
    return {title: _recipes.spell(section.code, framework) for title, section in sections}


def with_imports(code):
    """Return code below the imports that it needs."""
    return f"{_recipes.imports_of(code)}\n\n{code}"


def in_words_of_safeops(f):
    """Return a function of the library that takes the options of a recipe of PyTorch too."""
    words = {own: word for words in _recipes.WORDS.values() for word, own in words.items()}
    return lambda *args, **options: f(*args, **{words.get(k, k): v for k, v in options.items()})


def calls_of(name, framework):
    """Return the calls in which a recipe agrees with safeops, as source text."""
    code = sections_in(name, framework)[_recipes.AGREEMENT]
    return [ast.unparse(node) for node in ast.parse(code).body]


def is_floating(value):
    """Whether an argument is a floating array, for which a gradient can be taken."""
    return hasattr(value, "dtype") and "float" in dtype_name(value.dtype)


def taken(f):
    """Return the defaults of what a function takes by position, in order, and of its options."""
    parameters = inspect.signature(f).parameters.values()
    arrays = [p.default for p in parameters if p.kind is not p.KEYWORD_ONLY]
    return arrays, {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def leaves(value):
    """Return the arrays of a result, which may be a tuple, a list or a dictionary."""
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    return [value]


def outcome(f, args, options, framework):
    """Return the value of a call, and the gradient of a weighted sum for each floating array."""
    places = [i for i, arg in enumerate(args) if is_floating(arg)]

    def call(*arrays):
        given = list(args)
        for place, array in zip(places, arrays, strict=True):
            given[place] = array
        return leaves(f(*given, **options))

    def total(*arrays):
        parts = [v for v in call(*arrays) if is_floating(v)]
        return sum(backend.xp.sum(v * weights(v, framework)) for v in parts)

    def both(*arrays):
        value = call(*arrays)
        if framework == "numpy" or not any(map(is_floating, value)):
            return value
        return [*value, *backend.grad(total)(*arrays)]

    backend = load(framework)
    found = in_one_program(framework, both)(*(args[i] for i in places))
    return list(map(to_numpy, found))


def weights(x, framework):
    """Return weights, all different: the sum of a softmax is 1, and has no slope."""
    numbers = np.linspace(1, 2, math.prod(x.shape)).reshape(tuple(x.shape))
    return asarray(framework, numbers, dtype_name(x.dtype))


def captured(call, names):
    """Return what is called, as source text, and the arguments, evaluated."""
    seen = []
    expression = ast.parse(call, mode="eval").body
    function = ast.unparse(expression.func)
    expression.func = ast.Name("capture")
    names = names | {"capture": lambda *args, **options: seen.append((args, options))}
    run(ast.unparse(expression), **names)
    return function, *seen[0]


@SPELLED
@pytest.mark.usefixtures("users_defaults")
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_alone(name, framework):
    """The program that the command prints passes its own assertions, and needs no safeops."""
    text = _recipes.program(_recipes.read(name), framework)

    with np.errstate(all="ignore" if framework != "numpy" else "raise", under="ignore"):
        run(text)

    assert not re.search(r"^\s*(import|from) safeops|\.\.\.(?!,)", text, flags=re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100


@SPELLED
@pytest.mark.usefixtures("users_defaults")
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_agrees_with_safeops(name, framework):
    """Value and gradient are those of the operation, in the calls that the page lists."""
    recipe = sections_in(name, framework)["The recipe"]
    calls = calls_of(name, framework)
    names = run(with_imports("\n".join([recipe, *(f"# {call}" for call in calls)])))

    for call in calls:
        function, args, options = captured(call, names)
        of_library = names | {name: in_words_of_safeops(FUNCTIONS[name])}
        ours, theirs = (run(f"f = {function}", **n)["f"] for n in (names, of_library))
        got = outcome(ours, args, options, framework)
        wanted = outcome(theirs, args, options, framework)

        for one, other in zip(got, wanted, strict=True):
            assert_close(one, other, RTOL, call, ATOL)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_proves_something(name):
    """There is a bug, a recipe that defines the operation, a proof, and calls to hold it to."""
    sections = _recipes.read(name).sections

    assert list(sections) == list(_recipes.SECTIONS)
    assert all(section.text or section.code for section in sections.values())
    assert f"def {name}(" in sections["The recipe"].code
    assert "assert" in sections["The bug"].code
    assert "assert" in sections["The proof"].code
    assert len(calls_of(name, "numpy")) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_call_of_a_recipe_is_a_call_of_the_operation(name):
    """A recipe takes as many arrays, and options by name, each with the default of safeops."""
    recipe = run(with_imports(sections_in(name, "numpy")["The recipe"]))[name]
    (arrays, options), (arrays_of_ours, options_of_ours) = map(taken, (recipe, FUNCTIONS[name]))

    assert arrays == arrays_of_ours
    assert options.items() <= options_of_ours.items()


def test_every_operation_has_a_recipe():
    """The recipes are those of the public functions, rotations among them, but for a few."""
    assert sorted(FUNCTIONS.keys() - WITHOUT_RECIPE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_bug_is_short(name):
    """The bug is a function of few lines, an input, and what comes out."""
    code = _recipes.read(name).sections["The bug"].code

    assert len([line for line in code.splitlines() if line.strip()]) <= 9


# The command.


@SPELLED
@pytest.mark.parametrize("name", NAMES[:3])
def test_the_command_prints_the_program(name, framework, capsys):
    """`python -m safeops recipe NAME --framework F` prints the program, and nothing else."""
    assert main(["recipe", name, "--framework", framework]) == 0

    assert capsys.readouterr().out == _recipes.program(_recipes.read(name), framework)


@SPELLED
@pytest.mark.usefixtures("users_defaults")
def test_several_recipes_make_one_module(framework, capsys):
    """A module of all names has each function of each recipe once, and their proofs pass."""
    assert main(["recipe", *NAMES, "-f", framework]) == 0

    text = capsys.readouterr().out
    names = run(text)
    for name in NAMES:
        code = sections_in(name, framework)["The recipe"]
        assert all(text.count(f"\n{part}\n") == 1 for part in _recipes.definitions(code))
    for name in ("safe_norm", "safe_log", "safe_softmax", "nanquantile", "safe_var"):
        run(with_imports(sections_in(name, framework)["The proof"]), **names)
    assert "The bug" not in text


@SPELLED
def test_only_the_function(framework, capsys):
    """`--only` prints the function, what it imports and the licence, and that is all."""
    assert main(["recipe", "safe_norm", "--only", "--framework", framework]) == 0

    licence, imports, *function = capsys.readouterr().out.split("\n\n")
    assert _recipes.LICENCE in licence
    assert imports.startswith("import ")
    assert [node.name for node in ast.parse("\n\n".join(function)).body] == ["safe_norm"]


@pytest.mark.parametrize("said", ["torch", "pytorch", "PyTorch"])
def test_pytorch_has_its_own_words(said, capsys):
    """A recipe for PyTorch, by any of its names, says `dim` and `keepdim`, and no `axis`."""
    assert main(["recipe", "safe_softmax", "safe_std", "-f", said]) == 0

    out = capsys.readouterr().out
    assert "keepdim=True" in out
    assert not re.search(r"\baxis\b|\bkeepdims\b", out)


@pytest.mark.parametrize("name", ["polar", "segment_sum", "quaternion_slerp"])
def test_a_function_without_a_recipe_says_why(name, capsys):
    """A public function that has no recipe is no misspelt name."""
    with pytest.raises(SystemExit, match="2"):
        main(["recipe", name])

    assert f"{name} has no recipe: " in capsys.readouterr().err


def test_the_command_lists_all(capsys):
    """`--list` has a title for each family, and a line for each recipe, which has its name."""
    assert main(["recipe", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if not line.startswith("  ")]
    assert sorted(line.split()[0] for line in lines if line not in titles) == NAMES
    assert titles == [f"{family.title}:" for family in FAMILIES.values()]
    assert max(map(len, lines)) <= 120


def test_a_name_that_is_close_is_offered(capsys):
    """An unknown name is an error that names the nearest ones."""
    with pytest.raises(SystemExit, match="2"):
        main(["recipe", "safe_lgo"])

    assert "got safe_lgo; try safe_log" in capsys.readouterr().err


def test_a_recipe_that_is_wrong_is_found():
    """A recipe with another gradient does not agree."""
    with pytest.raises(AssertionError):
        assert_close(np.asarray([0.0]), np.asarray([np.nan]), RTOL)
