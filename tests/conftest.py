"""
Which frameworks a run tests, how each is set up, and which tests it takes.

`--framework NAME` selects, several times or with commas; without it every installed framework is
tested. Selected means required: one that cannot be imported is an error, never a skip. A test that
asks for `framework` or `autodiff_framework` runs once for each name; one marked `only` runs where
those frameworks are selected.

`--share` says which rows run in which ways: `tests/support/rows.py`. Without it all of them do.
"""

import os
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from shutil import rmtree
from tempfile import mkdtemp

import hypothesis
import pytest

import exponents
from alone import hide_all_but
from frameworks import FRAMEWORKS, WITH_AUTODIFF, module_of
from rows import SHARES, concerns, taken_by

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
    group.addoption("--share", choices=SHARES, help="none: plain nox; K/7: and the Kth share of CI")


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
    """Run a test once for each framework; what is not selected is left out below."""
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", FRAMEWORKS)
    if "autodiff_framework" in metafunc.fixturenames:
        metafunc.parametrize("autodiff_framework", WITH_AUTODIFF)


def pytest_collection_modifyitems(config, items):
    """Leave out what this run is not for, and skip what it has not got."""
    wanted = [item for item in items if concerns(item, config.frameworks)]
    if share := config.getoption("share"):
        taken = {item for item, name in taken_by(share, items) if name in config.frameworks}
        wanted = [item for item in wanted if item in taken]
    config.hook.pytest_deselected(items=list({*items}.difference(wanted)))
    items[:] = wanted
    missing = sorted(set(FRAMEWORKS) - set(config.frameworks))
    for item in items:
        if item.get_closest_marker("gpu") and not config.getoption("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an accelerator: pytest --gpu"))
        if item.get_closest_marker("site") and not config.getoption("site"):
            item.add_marker(pytest.mark.skip(reason="needs the built documentation: nox -s docs"))
        if item.get_closest_marker("together") and missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)} too"))


@pytest.fixture(autouse=True, scope="module")
def forget_programs(pytestconfig):
    """Drop the programs of JAX after a file that leaves many: each takes 1.6 MB."""
    yield
    if "jax" in pytestconfig.frameworks:
        import jax

        if len(jax.devices()[0].client.live_executables()) > 1000:
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
