"""The rules of the house: what imports what, what the docs promise, what is tested."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path

import pytest

import safeops
from assertions import assert_examples_run
from frameworks import FRAMEWORKS, MAKERS
from safeops._cli.recipe import FAMILIES


def public(name):
    """Return a public function by its name, that of its module before it if it has one."""
    return attrgetter(name)(safeops)


ROOT = Path(__file__).parents[2]
HOUSE = Path(safeops.__file__).parent
MODULES = {
    ".".join(f.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__"): f
    for f in HOUSE.rglob("*.py")
}
TESTS = {file.stem: file for file in (ROOT / "tests").rglob("*.py")}
ROTATIONS = {f"rotations.{name}" for name in safeops.rotations.__all__}
LINALG = {f"linalg.{name}" for name in safeops.linalg.__all__}
SEGMENTS = {f"segments.{name}" for name in safeops.segments.__all__}
NAMES = {*safeops.__all__, *ROTATIONS, *LINALG, *SEGMENTS}
PUBLIC = sorted(name for name in NAMES if inspect.isfunction(public(name)))

LINTERS = {"_cli.lint", "_lint.prover"}
HEAVY = {"array_api_strict", "dask", "jax", "keras", "rich", "tensorflow", "torch"}
LOGGERS = {"integrations", "integrations._options"} | {
    f"integrations.{name}" for name in ("jax", "keras", "lightning", "tensorflow", "transformers")
}
PRINTERS = {
    "__main__",
    "_cli.demo",
    "_cli.explain",
    "_cli.recipe",
    "_cli.terminal",
    "_cli.lint",
}
TALKERS = PRINTERS | LOGGERS | LINTERS
RICH = {*PRINTERS, "autodiff._explain.report"}  # a report draws itself
LONGEST = 30  # lines of a function body, docstring left out

# One word for each idea; the last ones belong to one function each.
KEYWORDS = {"axis", "correction", "fill_value", "initial", "keepdims", "ord", "placeholder"}
KEYWORDS |= {"where", "b", "method", "min_norm", "count", "derivatives", "proper", "scale"}
KEYWORDS |= {"gamma", "alpha", "label_smoothing", "weights"}


# What breaks a rule: each finder takes source text and returns what it finds.


def imports(source):
    """Return the full names of all imports, wherever they stand but for types alone."""
    tree = ast.parse(source)
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If)]
    typing = [n for n in blocks if ast.unparse(n.test) == "TYPE_CHECKING"]
    unseen = {inner for block in typing for part in block.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_imported(source):
    """Return the files of tests that a file imports."""
    names = {name.split(".")[0] for name in imports(source)}
    return {name for name in names if name.startswith("test_")}


def framework_imports(source):
    """Return the imports of frameworks, and of rich."""
    return [name for name in imports(source) if name.split(".")[0] in HEAVY]


def frameworks_of(module):
    """Return what a module may import of frameworks, and of rich."""
    if module in RICH:
        return {"rich"}
    room, *parts = module.split(".")
    if room == "integrations":
        return {part.split("_")[1] for part in parts if part.startswith("_")} & HEAVY
    return {*parts[:1]} & HEAVY if room in {"_backends", "autodiff"} else set()


def kernels_taken(source):
    """Return what is imported of backends, but private names and the class that marks fills."""
    allowed = (
        r"safeops\._backends\.(\w+\.(private|bodies)(\.\w+)?|torch\.fast_paths\.FillingFunction)"
    )
    names = (name for name in imports(source) if name.startswith("safeops._backends"))
    return [name for name in names if not re.fullmatch(allowed, name)]


def noises(source):
    """Return what prints, logs or reads the environment."""
    names = {name.split(".")[0] for name in imports(source)}
    for node in ast.walk(ast.parse(source)):
        names |= {getattr(node, "id", None), getattr(node, "attr", None)}
    return sorted(names & {"environ", "getenv", "logging", "print"})


def long_functions(source):
    """Return the functions whose body is longer than the rule allows."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and node.end_lineno - body[0].lineno + 1 > LONGEST:
                yield node.name


def bare_docstrings(source):
    """Return the functions that are a docstring and nothing else."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) == 1:
            yield node.name


def assertion_helpers(source):
    """Return the names of the functions that assert."""
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("assert_")}


def helpers_seen_to_fail(source):
    """Return the names of the functions called under ``pytest.raises(AssertionError)``."""
    for block in ast.walk(ast.parse(source)):
        if isinstance(block, ast.With) and "raises(AssertionError" in ast.unparse(block.items[0]):
            calls = (node for node in ast.walk(block) if isinstance(node, ast.Call))
            yield from (ast.unparse(call.func).split(".")[-1] for call in calls)


def sections(name):
    """Return the sections of a docstring by their titles."""
    doc = inspect.getdoc(public(name)) or ""
    summary, *rest = re.split(r"^(\w[\w ]*)\n-{3,}\n", doc, flags=re.MULTILINE)
    return {"Summary": summary, **dict(zip(rest[::2], rest[1::2], strict=True))}


def python_blocks(text):
    """Return the Python blocks of a Markdown text, each on the lines where it stands there."""
    for block in re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        yield "\n" * (text[: block.start()].count("\n") + 1) + block[1]


def parameters(name):
    """Return the parameters of a public function."""
    return inspect.signature(public(name)).parameters.values()


@pytest.mark.parametrize(
    ("find", "source", "found"),
    [
        (framework_imports, "def f():\n from jax.numpy import sqrt", "jax.numpy.sqrt"),
        (kernels_taken, "from safeops._backends.torch.slices import x", "slices.x"),
        (kernels_taken, "from safeops._backends import load", "load"),
        (noises, "def f():\n print()", "print"),
        (noises, "import os\nos.environ", "environ"),
        (noises, "from logging import warning", "logging"),
        (long_functions, "def f():\n '''Doc.'''" + "\n pass" * 31, "f"),
        (bare_docstrings, "class A:\n def f(self):\n  '''Doc.'''", "f"),
        (assertion_helpers, "def assert_equal(a, b): pass", "assert_equal"),
        (helpers_seen_to_fail, "with pytest.raises(AssertionError): m.assert_x(1)", "assert_x"),
        (python_blocks, "A\n```python\nx = 1\n```\n", "\n\nx = 1\n"),
    ],
)
def test_a_finder_finds_what_is_planted(find, source, found):
    """Each finder finds its fault in a planted source."""
    assert any(name.endswith(found) for name in find(source))


@pytest.mark.parametrize(
    ("find", "source"),
    [
        (framework_imports, "import array_api_compat.torch"),
        (kernels_taken, "from safeops._backends.torch.private import x"),
        (noises, "x = 'print'"),
        (long_functions, "def f():\n '''Doc.\n\n\n'''" + "\n pass" * 30),
        (bare_docstrings, "def f(x):\n '''Doc.'''\n del x"),
        (helpers_seen_to_fail, "with pytest.raises(TypeError): assert_x(1)"),
    ],
)
def test_a_finder_passes_what_is_right(find, source):
    """No finder finds a fault where there is none."""
    assert not list(find(source))


# The house.


def test_the_right_package_is_tested(pytestconfig):
    """``--installed`` tests the installed package; without it the working tree is tested."""
    installed = pytestconfig.getoption("installed")

    assert (ROOT / "safeops" == HOUSE) is not installed
    assert not installed or version("safeops") == safeops.__version__


@pytest.mark.parametrize("module", MODULES)
def test_a_framework_is_imported_in_its_folders_only(module):
    """Only a framework's own folders import it, and only the demonstration imports rich."""
    found = {name.split(".")[0] for name in framework_imports(MODULES[module].read_text())}

    assert found <= frameworks_of(module)


def test_a_folder_may_import_its_own_framework_only():
    """What a module may import is told by its folder."""
    assert frameworks_of("autodiff.jax._evaluator") == frameworks_of("_backends.jax") == {"jax"}
    assert frameworks_of("integrations._jax") == {"jax"}
    assert frameworks_of("integrations.jax") == set()
    assert frameworks_of("autodiff._explain.finding") == frameworks_of("_ops.jax") == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("autodiff.")])
def test_masked_autodiff_takes_no_kernels(module):
    """Masked autodiff takes of backends only what is private to PyTorch, and what marks fills."""
    assert kernels_taken(MODULES[module].read_text()) == []


@pytest.mark.parametrize("module", MODULES)
def test_no_module_talks(module):
    """Nothing prints, logs or reads the environment, but the command line."""
    found = [] if module in TALKERS else noises(MODULES[module].read_text())

    assert found == []


@pytest.mark.parametrize("module", MODULES)
def test_no_function_is_long(module):
    """A function body has at most 30 lines."""
    found = list(long_functions(MODULES[module].read_text()))

    assert found == []


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("autodiff")])
def test_autograph_can_transform_every_function(module):
    """AutoGraph of TensorFlow cannot transform a docstring alone, and tells the user (2.21)."""
    source = MODULES[module].read_text(encoding="utf-8")

    assert module == "_core.types" or not list(bare_docstrings(source))  # protocols are not called


def test_import_is_light_and_silent():
    """``import safeops`` imports no framework but NumPy, and prints nothing."""
    code = f"import safeops, sys; sys.exit(str(sorted({HEAVY} & set(sys.modules)) or ''))"

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=HOUSE.parent,  # so that it imports the package under test
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr.strip()) == ("", "")


def test_a_framework_is_a_file_and_a_group():
    """Backends, dependency groups and the makers of test arrays are one list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [group for group in project["dependency-groups"] if group.startswith("backend-")]

    assert sorted(groups) == [f"backend-{name}" for name in FRAMEWORKS]
    assert sorted(MAKERS) == list(FRAMEWORKS)


def test_the_page_for_installing_has_the_oldest_versions():
    """The oldest versions are said once to pip, once to the tests of them, once to readers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    options, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    names = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
    declared = [
        *project["project"]["dependencies"],
        *(options[name][0] for name in names if name in options),
    ]
    floors = dict(line.split(">=") for line in declared)
    *first, last = (f"{said} {floors[name]}" for name, said in names.items())
    sources = [(HOUSE / f"_backends/{x}/private.py").read_text() for x in names if x != "numpy"]
    newest = [re.search(r'^NEWEST = "([\d.]+)"', x, flags=re.MULTILINE)[1] for x in sources]

    text = (ROOT / "docs/install.md").read_text()

    assert f"The oldest versions are {', '.join(first)} and {last};" in text
    assert {f"newest-{name}" for name in names} <= groups.keys()
    assert f"| newest that was tried | {' | '.join(newest)} |" in text
    for name in names:
        pins = dict(line.split("==") for line in groups[f"oldest-{name}"])
        pins["tensorflow"] = pins.pop("tensorflow-cpu", None)  # without the code for GPUs
        for package in {name, "numpy", "array-api-compat"}:
            assert pins[package].startswith(f"{floors[package]}."), (name, package)


@pytest.mark.xdist_group("house")
def test_a_group_of_tests_has_one_process(request):
    """The marks of pytest-xdist have an effect: a sweep that many tests read runs once."""
    assert request.node.nodeid.endswith("@house") is ("PYTEST_XDIST_WORKER" in os.environ)


def test_no_test_file_imports_another():
    """What two files of tests share stands in a file of its own."""
    found = {name: files_imported(file.read_text()) for name, file in TESTS.items()}

    assert {name for name, names in found.items() if names} == set()
    assert files_imported("from test_house import imports") == {"test_house"}
    assert files_imported("import test_house as house") == {"test_house"}


def test_every_assertion_helper_can_fail():
    """Each ``assert_*`` of the tests is called under ``pytest.raises(AssertionError)``."""
    sources = [file.read_text() for file in TESTS.values()]
    helpers = set().union(*map(assertion_helpers, sources))
    seen = {name for source in sources for name in helpers_seen_to_fail(source)}

    assert helpers <= seen


# The door.


def test_the_door_is_in_order():
    """Every name of ``__all__`` exists, once, and there are functions among them."""
    assert PUBLIC
    assert len(set(safeops.__all__)) == len(safeops.__all__)
    assert all(hasattr(safeops, name) for name in safeops.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_arrays_by_position_options_by_keyword(name):
    """No parameter can be given both ways, and options have the words of the house."""
    kinds = {p.kind for p in parameters(name)}
    options = {p.name for p in parameters(name) if p.kind is p.KEYWORD_ONLY}

    assert kinds.isdisjoint(
        {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_KEYWORD}
    )
    assert options <= KEYWORDS


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_are_annotated(name):
    """Every parameter has a type, and so has the result."""
    signature = inspect.signature(public(name))

    assert all(p.annotation is not p.empty for p in parameters(name))
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_have_their_sections(name):
    """A docstring has a one-line summary, the sections of numpydoc, its gradient and source."""
    doc = sections(name)

    assert re.match(r"[^\n]+\.\n\n", doc["Summary"])
    assert {"Parameters", "Notes", "Examples"} <= set(doc)
    assert "**Gradient.**" in doc["Notes"]
    assert "**Source.**" in doc["Notes"]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_name_every_parameter(name):
    """The section Parameters lists the parameters of the signature, in their order."""
    rows = re.findall(r"^(\S.*?) : ", sections(name)["Parameters"], flags=re.MULTILINE)
    listed = [word.strip("*` ") for row in rows for word in row.split(",")]

    assert listed == [p.name for p in parameters(name)]


@pytest.mark.together
@pytest.mark.usefixtures("users_defaults")
@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_examples_run(name):
    """There are examples, and they print what they say."""
    modules = (safeops, safeops.rotations, safeops.linalg, safeops.segments)
    names = {name: thing for module in modules for name, thing in vars(module).items()}
    assert_examples_run(public(name), names)


# The files at the top.


@pytest.mark.together
def test_readme_examples_run():
    """The Python blocks of the README run, each by itself in a process, as a reader tries them."""
    blocks = list(python_blocks((ROOT / "README.md").read_text()))

    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True, cwd=HOUSE.parent)

    assert blocks


def test_changelog_has_a_place_for_what_is_new():
    """The changelog opens with the section of what is not yet released."""
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

    assert titles[0] == "Unreleased"


def test_the_reference_lists_every_family():
    """The page of a family is made of its module, and is found from the list of pages."""
    listed = (ROOT / "docs/reference/index.md").read_text().split()

    assert {family.page for family in FAMILIES.values()} <= {*listed}
