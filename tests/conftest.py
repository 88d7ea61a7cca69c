"""
Which frameworks a run tests, and how each is set up.

`--framework NAME` selects, several times or with commas; without it every installed framework is
tested. Selected means required: one that cannot be imported is an error, never a skip. A test that
asks for `framework` or `autodiff_framework` runs once for each name; one marked `only` runs where
those frameworks are selected.
"""

import argparse
import os
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from shutil import rmtree
from tempfile import mkdtemp
from zlib import crc32

import hypothesis
import pytest

import exponents
from alone import hide_all_but
from derivatives import is_left_whole
from frameworks import FRAMEWORKS, module_of

WITHOUT_AUTODIFF = ("array-api-strict", "numpy")
WITH_AUTODIFF = [name for name in FRAMEWORKS if name not in WITHOUT_AUTODIFF]
# Whose turn it is at a common test in plain nox: eager PyTorch takes a tenth of the time of the
# others, which compile.
TURNS = (*["torch"] * 5, "jax", *["torch"] * 5, "tensorflow")
# In as many parts, one a landing, CI runs what plain nox leaves out.
PARTS = 7
FIXTURES = ("framework", "autodiff_framework")
FIXTURES_OF_WAYS = {*FIXTURES, "way", "cotangent_way", "mode"}

# One result for each commit: the same examples each time, and no time limit on a busy machine.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")


def pytest_addoption(parser):
    """Add the options of this suite."""
    group = parser.getgroup("safeops")
    group.addoption("--framework", action="append", default=[], help=", ".join(FRAMEWORKS))
    group.addoption("--gpu", action="store_true", help="run the tests that need an accelerator")
    group.addoption("--site", help="the built documentation, which some tests read")
    group.addoption("--package", help="the folder of the wheel and the source distribution")
    group.addoption("--installed", action="store_true", help="demand that the working tree is not")
    group.addoption("--part", type=part_named, help=f"first: plain nox; 2/{PARTS}: of the others")


def part_named(text):
    """Return which part of the tests a run has: 0 for `first`, K for `K/7`."""
    names = {"first": 0, **{f"{k}/{PARTS}": k for k in range(1, PARTS + 1)}}
    if text not in names:
        msg = f"expected {', '.join(names)}, got {text}"
        raise argparse.ArgumentTypeError(msg)
    return names[text]


def pytest_configure(config):
    """Import the selected frameworks, and hide the others."""
    config.frameworks = chosen(config.getoption("framework"))
    hide_all_but(config.frameworks)
    if len(able := [name for name in config.frameworks if name in WITH_AUTODIFF]) == 1:
        os.environ["KERAS_BACKEND"] = able[0]  # Keras reads it when it is imported
    if "jax" in config.frameworks:
        keep_programs(config)
    if not config.getoption("tx", None):  # what only hands out tests needs no framework
        for name in config.frameworks:
            set_up(name)


def set_up(name):
    """Import a framework, and set what the tests expect of it."""
    try:
        import_module(module_of(name))
    except ImportError as error:
        msg = f"framework {name} is selected and cannot be imported: {error}"
        raise pytest.UsageError(msg) from error
    SET_UP.get(name, lambda: None)()


def keep_programs(config):
    """
    Compile a program of JAX once in a process, however often it is traced, and in its children.

    Each worker has a folder: JAX 0.10.2 writes in place what another may read half written.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = mkdtemp(prefix="safeops-jax-")
        config.add_cleanup(lambda: rmtree(folder, ignore_errors=True))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ["JAX_COMPILATION_CACHE_DIR"] += f"/{worker}"
    # Small programs too, of 0.1 s each: there are thousands.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_terminal_summary(terminalreporter):
    """Say how many numbers the exhaustive sweeps have held to exact ones, and the worst errors."""
    if exponents.EXHAUSTIVE and exponents.TALLY:
        terminalreporter.section("numbers checked")
        terminalreporter.write_line("\n".join(exponents.counted()))


def chosen(options):
    """Return the names asked for, or those of all frameworks installed."""
    names = [name for option in options for name in option.split(",")]
    if unknown := sorted(set(names) - set(FRAMEWORKS)):
        msg = f"expected frameworks out of ({', '.join(FRAMEWORKS)}), got {', '.join(unknown)}"
        raise pytest.UsageError(msg)
    return names or [name for name in FRAMEWORKS if find_spec(module_of(name))]


def set_up_torch():
    """Use one thread: the arrays of tests are small."""
    import torch

    torch.set_num_threads(1)


def set_up_jax():
    """Have float64, and refuse promotions that our code has not written out."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")


SET_UP = {"torch": set_up_torch, "jax": set_up_jax}
# TensorFlow greets on stderr; it reads this when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_generate_tests(metafunc):
    """Run a test once for each framework."""
    names = metafunc.config.frameworks
    able = [name for name in names if name not in WITHOUT_AUTODIFF]
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", names)
    if "autodiff_framework" in metafunc.fixturenames:
        metafunc.parametrize("autodiff_framework", able or [None])


def pytest_collection_modifyitems(config, items):
    """Leave out what this run is not for, and skip what it has not got."""
    wanted = {item for item in items if concerns(item, config.frameworks) and not repeats(item)}
    part = config.getoption("part")
    if part is not None:
        first = first_of([item for item in items if item in wanted], config.frameworks)
        left = {item for item in wanted - first if not concerns_none(item) or is_second(item)}
        wanted = {item for item in left if part_of(item) == part} if part else first
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = [item for item in items if item in wanted]
    missing = sorted(set(FRAMEWORKS) - set(config.frameworks))
    for item in items:
        if item.get_closest_marker("gpu") and not config.getoption("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an accelerator: pytest --gpu"))
        if item.get_closest_marker("site") and not config.getoption("site"):
            item.add_marker(pytest.mark.skip(reason="needs the built documentation: nox -s docs"))
        if item.get_closest_marker("together") and missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)} too"))


def concerns(item, selected):
    """Whether a test has something to say about one of the selected frameworks."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    names = [parameters[key] for key in FIXTURES if key in parameters] or selected
    only = item.get_closest_marker("only")
    return None not in names and (only is None or not set(only.args).isdisjoint(names))


def repeats(item):
    """Whether a row in a mode is left to the exhaustive run, since another mode has the same."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    if exponents.EXHAUSTIVE or item.get_closest_marker("exhaustive") is None:
        return False
    return {"row", "way"} <= given.keys() and is_left_whole(given["row"], given["way"])


def is_second(item):
    """Whether plain nox leaves a test out."""
    return item.get_closest_marker("second") is not None


def concerns_none(item):
    """Whether a test says nothing about a framework."""
    named = not FIXTURES_OF_WAYS.isdisjoint(item.fixturenames)
    return not named and item.get_closest_marker("only") is None


def value_of(item, name, index=None):
    """Return what tells a parameter's values, or entries of these, apart: rows have no hash."""
    value = item.callspec.params[name]
    # Without modes, as NumPy is, a test has pytest's own mark of no value here.
    return id(value if index is None or not isinstance(value, tuple) else value[index])


def part_of(item):
    """Return in which part an item is that plain nox leaves out: by its name, on each machine."""
    return 1 + crc32(item.nodeid.encode()) % PARTS


def first_of(items, selected):
    """
    Return what plain nox runs of these tests.

    What concerns no framework runs beside NumPy alone. What is marked `second` is in the other
    parts. Of a test marked `in_turn(NAME)` each value of that parameter runs once; the other
    parameters take turns, so that each value of theirs comes up too. `in_turn(NAME, INDEX)` does so
    with an entry of the values. Of a test that runs on every framework with derivatives, one of
    these frameworks runs it, by `TURNS`, unless it is marked `everywhere`.
    """
    first, tests = set(), {}
    for item in items:
        if not is_second(item) and ("numpy" in selected or not concerns_none(item)):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, same_test in tests.items():
        for i, same in enumerate(share(name, by_turns(same_test), selected)):
            first.add(same[i % len(same)])
    return first


def by_turns(items):
    """Return the items of a test in lists, of each of which plain nox runs one."""
    turns = items[0].get_closest_marker("in_turn")
    if turns is None:
        return [[item] for item in items]
    values = {}
    for item in items:
        values.setdefault(value_of(item, *turns.args), []).append(item)
    return list(values.values())


def share(test, lists, selected):
    """Return which lists this run has: frameworks with derivatives take turns at them."""
    item = lists[0][0]
    only = item.get_closest_marker("only")
    able = [name for name in TURNS if only is None or name in only.args]
    everywhere = concerns_none(item) or item.get_closest_marker("everywhere")
    if everywhere or set(able).isdisjoint(selected):
        return lists
    start = crc32(test.encode())  # so that tests of one item do not all run on one framework
    return [same for i, same in enumerate(lists, start) if able[i % len(able)] in selected]


@pytest.fixture(autouse=True, scope="module")
def forget_programs(pytestconfig):
    """Drop the programs of JAX after each file: each takes 1.6 MB, thousands of them 4.5 GB."""
    yield
    if "jax" in pytestconfig.frameworks:
        import jax

        jax.clear_caches()


@pytest.fixture
def mixed_dtypes(pytestconfig):
    """Let JAX promote the arguments of one call, which it may not do elsewhere."""
    with jax_option(pytestconfig, "numpy_dtype_promotion", "standard"):
        yield


@pytest.fixture
def users_defaults(pytestconfig):
    """Let JAX promote and make float32, as it does for those who read the docs."""
    standard = jax_option(pytestconfig, "numpy_dtype_promotion", "standard")
    with standard, jax_option(pytestconfig, "enable_x64", False):
        yield


def jax_option(config, name, value):
    """Return a context in which an option of JAX has another value, if JAX is selected."""
    if "jax" not in config.frameworks:
        return nullcontext()
    import jax
    import jax.experimental

    if name == "enable_x64" and not hasattr(jax, name):  # in 0.6 it is at another place
        return jax.experimental.enable_x64(value)
    return getattr(jax, name)(value)
