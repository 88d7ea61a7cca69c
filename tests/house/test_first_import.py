"""`import safeops`: all that a report prints is there, and nothing before it is asked for."""

import os
import pickle
import subprocess
import sys
from importlib import import_module

import pytest

import safeops
from private_names import HOUSE

DOORS = ("", ".linalg", ".rotations", ".segments", ".testing", ".autodiff", ".integrations")
OF_FRAMEWORKS = {
    "torch": ["autodiff.torch.backward", "autodiff.torch.func.grad", "integrations.guard"],
    "jax": ["autodiff.jax.grad", "integrations.jax.value_and_grad"],
    "tensorflow": ["autodiff.tensorflow.GradientTape", "integrations.tensorflow.value_and_grad"],
}


def said(code, *arguments):
    """What a program prints, with the package under test."""
    slow = "ignore:Guards may run slower on Python 3.13.0"  # what PyTorch says there
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", slow, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(HOUSE.parent), *sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def public():
    """Yield the public objects with their names, of what needs no framework."""
    for door in DOORS:
        module = import_module(f"safeops{door}")
        yield from ((module, name) for name in module.__all__)


@pytest.mark.parametrize(("module", "name"), [*public()], ids=lambda x: getattr(x, "__name__", x))
def test_a_public_object_says_where_it_is_imported_from(module, name):
    """Its module is a public one that has it, and pickle finds it there."""
    x = getattr(module, name)

    assert "._" not in x.__module__
    assert x.__module__ in {module.__name__, "safeops"} or name in {"Finding", "Report"}
    assert getattr(import_module(x.__module__), x.__name__) is x
    assert pickle.loads(pickle.dumps(x)) is x  # noqa: S301  (our own)


def test_importing_safeops_imports_no_operation():
    """`import safeops` takes a few modules of Python: no NumPy, no operation."""
    code = "import sys; known = {*sys.modules}; import safeops; print(len({*sys.modules} - known),"
    code += "*sorted(x for x in sys.modules if x.startswith(('numpy', 'safeops'))))"
    count, *names = said(code)[0].split()

    assert names == ["safeops", "safeops._doors"]
    assert int(count) <= 40


def test_lint_imports_no_operation_and_no_array(tmp_path):
    """`lint` of a line imports neither NumPy nor an operation, and the version neither of both."""
    (tmp_path / "one.py").write_text("import torch\ny = torch.where(x > 0, torch.log(x), 0)\n")
    code = """
import sys
from safeops.__main__ import main
known = ("numpy", "safeops._public", "safeops._dispatch", "rich", "safeops._cli.demo")
try:
    main(sys.argv[1:])
finally:
    print([x for x in known if x in sys.modules], len(sys.modules) < 220)
"""
    assert said(code, "lint", str(tmp_path / "one.py"))[-1] == "[] True"
    assert said(code, "--version")[-1] == "[] True"


@pytest.mark.parametrize("name", ["linalg", "rotations", "segments", "testing", "autodiff"])
def test_a_module_is_there_after_importing_safeops(name):
    """What a report prints, such as `safeops.autodiff`, runs after `import safeops` alone."""
    assert said(f"import safeops; print(safeops.{name}.__name__)") == [f"safeops.{name}"]


@pytest.mark.only(*OF_FRAMEWORKS)
def test_the_modules_of_a_framework_are_there_after_importing_safeops(framework):
    """`safeops.autodiff.torch.backward` runs as printed, and says where it is."""
    names = OF_FRAMEWORKS[framework]
    shown = ", ".join(f"safeops.{name}" for name in names)
    code = f"import warnings; warnings.simplefilter('ignore'); import safeops\nfor x in ({shown},):"

    found = said(f"{code}\n    print(f'{{x.__module__}}.{{x.__name__}}')")

    assert found == [f"safeops.{name}" for name in names]


def test_a_name_that_is_not_there_is_an_attribute_error():
    """A wrong name has the error of Python, with what it needs to propose the nearest name."""
    with pytest.raises(
        AttributeError, match=r"^module .safeops. has no attribute .safe_lgo.$"
    ) as e:
        _ = safeops.safe_lgo

    assert (e.value.name, e.value.obj) == ("safe_lgo", safeops)
    assert not hasattr(safeops.autodiff, "mxnet")
    assert not hasattr(safeops.integrations, "mxnet")


@pytest.mark.parametrize(
    ("door", "name", "near"),
    [
        (safeops, "softmax", "safe_softmax"),
        (safeops.autodiff, "tf", "tensorflow"),
        (safeops.autodiff, "pytorch", "torch"),
        (safeops.integrations, "tf", "tensorflow"),
    ],
)
def test_a_name_of_elsewhere_says_what_there_is(door, name, near):
    """A function without its prefix, and a framework by its other name, have a way out."""
    said = f"^module '{door.__name__}' has no attribute '{name}'; it has {near}$"
    with pytest.raises(AttributeError, match=said):
        getattr(door, name)


def test_a_question_for_a_private_name_imports_nothing():
    """Tools that ask each module for private names do not import the operations."""
    code = "import sys, safeops; print(hasattr(safeops, '__wrapped__'), 'numpy' in sys.modules)"
    assert said(code) == ["False False"]


def test_completion_shows_what_is_public():
    """`dir` has the operations, and the modules before they are imported."""
    assert {*safeops._public.__all__, "autodiff", "linalg", "integrations"} < {*dir(safeops)}
    assert {*safeops.autodiff.__all__} < {*dir(safeops.autodiff)} | {"x"}


@pytest.mark.only("torch")
def test_a_compiled_program_finds_an_operation_that_nobody_asked_for():
    """torch.compile traces the first access to an operation, and torch.fx finds it afterwards."""
    code = """
import torch, safeops, pickle
f = torch.compile(lambda x: safeops.safe_log(x), backend="aot_eager", fullgraph=True)
print(f(torch.ones(1)).tolist())
graph = torch.fx.Tracer(autowrap_modules=(safeops,)).trace(lambda x: safeops.safe_sqrt(x) + 1)
print([node.target.__module__ for node in graph.nodes if node.op == "call_function"])
module = torch.fx.GraphModule(torch.nn.Module(), graph)
print(pickle.loads(pickle.dumps(module))(torch.zeros(1)).tolist())
"""
    assert said(code) == ["[0.0]", "['safeops', '_operator']", "[1.0]"]
