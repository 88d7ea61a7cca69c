"""The public functions of `autodiff` and `testing`, read as text: no framework is imported."""

import ast
import inspect
import re
from itertools import product
from pathlib import Path

import pytest

import safeops

HOUSE = Path(safeops.__file__).parent
DOORS = ["testing.py", *(f"autodiff/{x}__init__.py" for x in ("", "jax/", "tensorflow/", "torch/"))]
DOORS += [f"integrations/{name}.py" for name in ("__init__", "tensorflow", "transformers")]
FUNC = "autodiff/torch/func.py"  # its options can be given by position, as PyTorch's can


def functions_of(source):
    """Return the public functions of a module by their names, with those that it imports."""
    tree = ast.parse(source)
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and "__all__" in ast.dump(n)]
    public = ast.literal_eval(lists[0])
    froms = [n.module for n in tree.body if isinstance(n, ast.ImportFrom)]
    files = [HOUSE.parent / f"{module.replace('.', '/')}.py" for module in froms]
    trees = [tree, *(ast.parse(file.read_text()) for file in files if file.exists())]
    functions = [n for t in trees for n in t.body if isinstance(n, ast.FunctionDef)]
    return {n.name: n for n in functions if n.name in public}


def open_functions(source):
    """Return the functions that take any keyword."""
    return [name for name, f in functions_of(source).items() if f.args.kwarg]


def options_by_position(source):
    """Return the functions with an option, a bool or a word, that can be given by position."""
    for name, f in functions_of(source).items():
        given = [*f.args.posonlyargs, *f.args.args][-len(f.args.defaults) or None :]
        for parameter, default in zip(given, f.args.defaults, strict=False):
            if isinstance(getattr(default, "value", None), bool | str):
                yield f"{name}({parameter.arg})"


def parameters_not_listed(source):
    """Return the functions whose docstring lists other parameters than the signature has."""
    for name, f in functions_of(source).items():
        every = [*f.args.posonlyargs, *f.args.args, f.args.vararg, *f.args.kwonlyargs]
        doc = inspect.cleandoc(ast.get_docstring(f) or "")
        _, _, section = doc.partition("Parameters\n----------\n")
        section = re.split(r"^\w[\w ]*\n-{3,}\n", section, maxsplit=1, flags=re.MULTILINE)[0]
        rows = re.findall(r"^(\S.*)$", section, flags=re.MULTILINE)
        listed = [x.strip("* ") for row in rows for x in row.partition(" : ")[0].split(",")]
        if listed != [parameter.arg for parameter in every if parameter]:
            yield name


def sections_missing(source):
    """Return the functions whose docstring lacks a section of the house."""
    for name, f in functions_of(source).items():
        doc = ast.get_docstring(f) or ""
        wanted = ("Returns\n---", "Notes\n---", "**Gradient.**", "**Source.**", "Examples\n---")
        lacks = [x for x in wanted if x not in doc.replace("Yields\n---", "Returns\n---")]
        yield from (f"{name}: {x.partition(chr(10))[0]}" for x in lacks)


@pytest.mark.parametrize(
    ("find", "source"),
    [
        (open_functions, "def f(**how): 'Doc.'"),
        (options_by_position, "def f(x, lazy=False): 'Doc.'"),
        (
            parameters_not_listed,
            "def f(x,y):\n '''Doc.\n\n Parameters\n ----------\n x : a\n '''",
        ),
        (sections_missing, "def f(): 'Doc.'"),
    ],
)
def test_a_finder_finds_what_is_planted(find, source):
    """Each finder finds its fault in a planted source, and none in a private function."""
    assert list(find(f"__all__ = ['f']\n{source}"))
    assert not list(find(f"__all__ = []\n{source}"))


def test_a_function_that_a_door_imports_is_read():
    """A public function that stands in a private file is found by the door that imports it."""
    source = "from safeops.autodiff.torch._compiled import compile\n__all__ = ['compile']"

    assert list(functions_of(source)) == ["compile"]


@pytest.mark.parametrize(
    ("find", "door"),
    [
        *product([open_functions, parameters_not_listed, sections_missing], [*DOORS, FUNC]),
        *product([options_by_position], DOORS),
    ],
)
def test_public_functions_follow_the_house(find, door):
    """Options are written out, are given by keyword, and stand in the docstring."""
    source = (HOUSE / door).read_text()

    assert functions_of(source)
    assert list(find(source)) == []
