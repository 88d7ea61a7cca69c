"""
The checks of the project: plain `nox` runs those of every change, `nox -l` lists the sessions.

CI runs the tag `ci`, and one of seven shares of all that is left, so that seven landings run all:
``nox -t ci share-3 -- --share=3/7`` is the third again. A share is a seventh of the tests that
plain nox leaves out, and the sessions with its tag, which want an environment of their own. A
framework is a group `backend-*` in pyproject.toml; each has a session of its own, without the
other frameworks.
"""

import re
from pathlib import Path
from shutil import which
from subprocess import run

import nox

nox.options.default_venv_backend = "virtualenv"

PYPROJECT = nox.project.load_toml("pyproject.toml")
PREFIX = "backend-"
FRAMEWORKS = [
    group.removeprefix(PREFIX)
    for group in PYPROJECT["dependency-groups"]
    if group.startswith(PREFIX)
]


DIFFERENTIATED = [name for name in FRAMEWORKS if name not in ("numpy", "array-api-strict")]

# A process for each core.
PYTEST = ("pytest", "-n", "auto", "--dist", "loadgroup", "--installed", "--durations=10")
# In which share of CI a session is.
SHARES = {
    "tests-jax": 1,
    "tests-torch": 2,
    "tests-tensorflow": 3,
    "tests-numpy": 4,
    "tests-array-api-strict": 4,
    "real-models": 4,
    "trainers": 5,
    "tests-devices": 5,
    "floors": 6,
    "newest": 7,
}


def install(session: nox.Session, *groups: str) -> None:
    """Install the package as a user does, not editable: what is built is what is checked."""
    # A session imports a part of each framework: bytecode is made for that part alone, by the first
    # process. Without it each process takes 11 s more for TensorFlow, and 2 s for PyTorch.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.install("--no-compile", ".[demo]", *nox.project.dependency_groups(PYPROJECT, *groups))


def tag_of(name: str) -> str:
    """Return the tag of a session's share."""
    return f"share-{SHARES[name]}"


def alone(session: nox.Session) -> list[str]:
    """Return the options of a session that is itself in a share: there, the tests of plain nox."""
    return [re.sub("--share=[1-9].*", "--share=none", x) for x in session.posargs]


@nox.session(tags=["ci"])
def tests(session: nox.Session) -> None:
    """Test every framework, a run of pytest each: each row of the tests in one way."""
    test_all(session, *(session.posargs or ["--share=none"]))


@nox.session(default=False)
def full(session: nox.Session) -> None:
    """Test every framework, a run of pytest each: each row of the tests in all ways; hours."""
    test_all(session, "--share=all", *session.posargs)


def test_all(session: nox.Session, *options: str) -> None:
    """Run the tests of all frameworks in one environment."""
    install(session, "test", "keras", *(PREFIX + name for name in FRAMEWORKS))
    for framework in FRAMEWORKS:
        session.run(*PYTEST, f"--framework={framework}", "-m", "not together", *options)
    every = [f"--framework={name}" for name in FRAMEWORKS]
    session.run(*PYTEST, *every, "-m", "together", *options)
    # -P: the installed package, not the working tree
    session.run("python", "-P", "-m", "safeops", "--json", silent=True)


def add_session_of(framework: str) -> None:
    """Make the session of one framework."""
    name = f"tests-{framework}"

    @nox.session(name=name, default=False, tags=[tag_of(name)])
    def tests(session: nox.Session) -> None:
        """Test one framework alone, in all ways, or each row in one: ``-- --share=none``."""
        others = ("keras",) if framework in DIFFERENTIATED else ()
        install(session, "test", *others, PREFIX + framework)
        selected = f"--framework={framework}"
        session.run(*PYTEST, selected, "-m", "not together", *alone(session))


for _framework in FRAMEWORKS:
    add_session_of(_framework)


# Of the oldest versions that pyproject.toml allows, the operations are tested, and what goes in and
# comes out of them; a row of its own tests what reads a framework's own programs.
OPERATIONS = [
    f"tests/ops/test_{name}.py"
    for name in ("entry", "guests", "errors", "where", "cases", "reductions", "properties")
]
JAX_PROGRAMS = ["tests/autodiff/jax", "tests/integrations/test_guard_jax.py"]
# PyTorch compiles operations from 2.9 on; the sweeps over its own database have the pinned one.
EAGER = [*OPERATIONS, "-k", "not compile"]
TORCH_PROGRAMS = [
    "tests/ops/test_cases.py",
    "tests/ops/test_where.py",
    *(
        f"tests/autodiff/torch/test_{name}.py"
        for name in ("autodiff_torch", "explain_torch", "explain_watching", "diary_torch")
    ),
    *(
        f"tests/autodiff/torch/test_autodiff_torch_{name}.py"
        for name in ("compiled", "doors", "edges", "func", "hooks", "private", "twice")
    ),
    "tests/integrations/test_guard_torch.py",
    "tests/integrations/test_guard_torch_steps.py",
]
# From a group oldest-* or newest-* of pyproject.toml to its framework and tests. CI has none of
# PyTorch, of which pip has CUDA builds of gigabytes.
FLOORS = {
    "numpy": ("numpy", OPERATIONS),
    "torch": ("torch", EAGER),
    "torch-programs": ("torch", TORCH_PROGRAMS),
    "jax": ("jax", OPERATIONS),
    "jax-programs": ("jax", JAX_PROGRAMS),
    "tensorflow": ("tensorflow", OPERATIONS),
}
NEWEST = {
    "numpy": ("numpy", [*OPERATIONS, "tests/backends"]),
    "jax": ("jax", [*OPERATIONS, *JAX_PROGRAMS, "tests/backends"]),
    "torch": ("torch", []),  # all
    "tensorflow": ("tensorflow", []),  # all
}


def rows_of(kind: str, rows: dict[str, tuple[str, list[str]]]) -> list[nox.param]:
    """Return what a session is run with."""
    tags = {row: [] if row.startswith("torch") else [tag_of(kind)] for row in rows}
    return [nox.param(row, id=row, tags=tags[row]) for row in rows]


def run_row(session: nox.Session, group: str, framework: str, files: list[str]) -> None:
    """Run tests of a framework in the version of a group."""
    install(session, "test", group)
    selected = f"--framework={framework}"
    session.run(*PYTEST, selected, "-m", "not together", *files, *alone(session))


@nox.session(name="tests-floors", default=False)
@nox.parametrize("row", rows_of("floors", FLOORS))
def tests_floors(session: nox.Session, row: str) -> None:
    """Test with the oldest versions of each layer: ``nox -s "tests-floors(jax)"`` is one."""
    run_row(session, f"oldest-{row}", *FLOORS[row])


def newer_python() -> str | None:
    """Return a Python that starts here, and that the newest NumPy and JAX run on, if there is."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[2-4].*/bin/python"))
    found = (which(str(x)) for x in ("python3.13", "python3.14", "python3.12", *installed))
    return next((path for path in found if path and starts(path)), None)


def starts(path: str) -> bool:
    """Whether a Python starts: pyenv has shims of versions that it does not start."""
    return not run([path, "-c", ""], check=False, capture_output=True).returncode  # noqa: S603


NEWER = newer_python()


@nox.session(name="tests-newest", default=False, python=NEWER)
@nox.parametrize("row", rows_of("newest", NEWEST))
def tests_newest(session: nox.Session, row: str) -> None:
    """Test with the newest version of a framework, whatever it is today."""
    if NEWER is None:
        session.skip("the newest versions need Python 3.12 or later, which is not here")
    run_row(session, f"newest-{row}", *NEWEST[row])


@nox.session(default=False)
def programs(session: nox.Session) -> None:
    """Hold masked autodiff to the tape on 20,000 random programs; takes a quarter of an hour."""
    install(session, "test", "backend-jax")
    session.env["SAFEOPS_PROGRAMS"] = "20000"
    file = "tests/autodiff/jax/test_autodiff_jax.py"
    session.run("pytest", "--installed", "--framework=jax", file, "-k", "random_programs")


@nox.session(name="tests-devices", default=False, tags=[tag_of("tests-devices")])
def tests_devices(session: nox.Session) -> None:
    """Test what several devices and processes do together, on this machine."""
    for framework in ("array-api-strict", "jax", "torch", "tensorflow"):
        others = ("devices",) if framework == "array-api-strict" else ()
        install(session, "test", PREFIX + framework, *others)
        session.run("pytest", "--installed", f"--framework={framework}", "tests/devices")


# A process each: frameworks, and backends of Keras, do not share one.
FAMILIES = {
    "transformers": "torch",
    "timm": "torch",
    "geometric": "torch",
    "torch": "torch",
    "jax": "jax",
    "solvers": "jax",
    "tfp": "tensorflow",
    "keras-torch": "torch",
    "keras-jax": "jax",
    "keras-tensorflow": "tensorflow",
}


@nox.session(name="real-models", default=False, tags=[tag_of("real-models")])
def real_models(session: nox.Session) -> None:
    """
    Hold masked autodiff to real models of transformers, timm, diffrax and others.

    ``nox -s real-models -- --timed --rows tests/real_models/rows.json`` also measures times, and
    writes the table of the documentation.
    """
    install(session, "test", "real-models", *(PREFIX + name for name in FRAMEWORKS))
    alone = nox.project.dependency_groups(PYPROJECT, "real-models-alone")
    session.install("--no-deps", *alone)
    command = ["pytest", "--installed"]
    session.run(*command, "--framework=torch", "tests/real_models/test_harness.py")
    command.append("tests/real_models/test_real_models.py")
    asked = [option for option in session.posargs if not option.startswith("--share")]
    for family, framework in FAMILIES.items():
        options = [f"--framework={framework}", f"--family={family}", *asked]
        if framework == "jax" and not asked:  # it compiles; the rest starts no faster
            options += ["-n", "2", "--dist", "loadgroup"]
        session.run(*command, *options)


@nox.session(default=False, tags=[tag_of("trainers")])
def trainers(session: nox.Session) -> None:
    """Test training with the trainers of transformers and Lightning, with optax and with flax."""
    install(session, "test", "trainers", "backend-torch", "backend-jax")
    # These packages warn of their own dependencies.
    command = ("pytest", "--installed", "-W", "default")
    session.run(*command, "--framework=torch", "tests/trainers")
    session.run(*command, "--framework=jax", "tests/trainers/test_training_scripts.py")


@nox.session(default=False)
def exhaustive(session: nox.Session) -> None:
    """Run all tests, with more orders, dtypes and numbers: ``nox -s exhaustive -- torch``."""
    session.env["SAFEOPS_EXHAUSTIVE"] = "1"
    for framework in session.posargs or ("torch", "jax", "tensorflow"):
        install(session, "test", PREFIX + framework)
        selected = f"--framework={framework}"
        # Sweeps over exponents count their numbers, which takes one process.
        session.run("pytest", "--installed", selected, "-k", "exponents", "tests")
        session.run(*PYTEST, selected, "-m", "not together", "-k", "not exponents", "tests")


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure the operations beside the unsafe ones: ``nox -s bench -- --quick``; not a test."""
    install(session, "bench", "test", *(PREFIX + name for name in FRAMEWORKS))
    session.run(
        "python", "-P", "benchmarks/ops.py", *session.posargs, env={"PYTHONPATH": "benchmarks"}
    )


@nox.session(default=False)
def accuracy(session: nox.Session) -> None:
    """Measure errors in units in the last place: the table of the documentation; minutes."""
    install(session, "bench", "test", *(PREFIX + name for name in FRAMEWORKS))
    command = ["python", "-P", "benchmarks/accuracy.py", "--out", "docs/accuracy.json"]
    session.run(*command, *session.posargs)


@nox.session(tags=["ci"])
def lint(session: nox.Session) -> None:
    """Check form, format, types, and who imports whom."""
    install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports")


@nox.session(default=False, tags=["ci"])
def docs(session: nox.Session) -> None:
    """Build the documentation, whose pages are run, and check what was built."""
    install(session, "docs", "test", *(PREFIX + name for name in DIFFERENTIATED))
    # -P: the installed package, not the working tree
    build = ["python", "-P", "-m", "sphinx", "--show-traceback", "-W", "--keep-going", "-q"]
    session.run(*build, "-j", "auto", "docs", "docs/_build")
    selected = [f"--framework={name}" for name in DIFFERENTIATED]
    session.run("pytest", "--installed", *selected, "--site=docs/_build", "tests/site/test_site.py")


@nox.session(default=False, tags=["ci"])
def package(session: nox.Session) -> None:
    """Build the wheel and the source distribution, and check what they contain."""
    session.install("build", *nox.project.dependency_groups(PYPROJECT, "test"))
    folder = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", folder)
    wheel = next(Path(folder).glob("*.whl"))
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.run("pytest", "--installed", f"--package={folder}", "tests/site/test_package.py")
