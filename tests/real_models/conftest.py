"""
Which family of models a run measures: ``--family timm`` reads `models_timm.py`.

`nox -s real-models` runs a process for each family, since frameworks and the backends of Keras do
not share one. ``keras-jax`` reads `models_keras.py`, with that backend. Without the option only the
tests of the harness are collected.
"""

import json
import os
from importlib import import_module
from pathlib import Path

import pytest
from real_models import harness

# Where a solver fails for one row of a batch, equinox raises from inside the compiled program, or
# spoils all rows: the NaN that is to be left out would never get out alone. Read at its import.
os.environ["EQX_ON_ERROR"] = "off"


def pytest_addoption(parser):
    """Add the options of these tests."""
    group = parser.getgroup("real models")
    group.addoption("--family", help="the models to measure: timm, keras-jax, ...")
    group.addoption("--rows", help="put what came out in this file")
    group.addoption("--timed", action="store_true", help="measure times too")


def pytest_configure(config):
    """Tell Keras its backend, which it reads when it is imported."""
    _, _, backend = (config.getoption("family") or "").partition("-")
    if backend:
        os.environ["KERAS_BACKEND"] = backend


def pytest_generate_tests(metafunc):
    """Run a test once for each model of the family."""
    if "case" not in metafunc.fixturenames:
        return
    family = metafunc.config.getoption("family")
    module = import_module(f"real_models.models_{family.split('-')[0]}") if family else None
    marks = [pytest.mark.filterwarnings(line) for line in getattr(module, "FILTERS", ())]
    cases = [
        pytest.param(case, marks=[*marks, pytest.mark.xdist_group(str(case))])  # one measures it
        for case in getattr(module, "CASES", [])
    ]
    metafunc.parametrize("case", cases, ids=[str(case.values[0]) for case in cases])
    metafunc.config.engine = getattr(module, "ENGINE", None)


@pytest.fixture
def row(case, pytestconfig):
    """Measure a model, once for all its tests."""
    timed = pytestconfig.getoption("timed")
    return harness.measured(case, pytestconfig.engine, timed=timed)


def pytest_sessionfinish(session):
    """Write the rows that were measured."""
    file = session.config.getoption("rows")
    if file:
        family = session.config.getoption("family")
        rows = {family: [harness.written(row) for row in harness.rows()]}
        known = json.loads(Path(file).read_text()) if Path(file).exists() else {}
        Path(file).write_text(json.dumps(known | rows, indent=1) + "\n")
