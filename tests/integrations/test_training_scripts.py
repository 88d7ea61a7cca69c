"""Training scripts with one bad batch each, under the command `explain` and by their guards."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from training import Training, assert_explained, reported

SCRIPTS = Path(__file__).parent / "scripts"
OF_TORCH = {
    "own_loop": Training("BLOCKED", "sqrt", 1, "weight", 1),
    "accumulation": Training("FORWARD", "mul", 1, "0.weight", 2, "backward pass 2 of the step"),
    "autocast": Training("BLOCKED", "div", 1, "weight", 3),
    "grad_scaler": Training("GENUINE", "pow", 1, "weight", 2),
    "compiled": Training("BLOCKED", "log", 1, "0.weight", 0),
    "ddp": Training("BLOCKED", "div", 1, "weight", 1),
}
OF_KERAS = Training(
    "BLOCKED", "log", 1, "sequential/head/kernel", 2, advice="of safeops.integrations.keras"
)
WAYS = pytest.mark.parametrize("way", ["command", "guard"])


def check(name, wanted, folder, way, **environment):
    """Run a script; compare its report with what its author knows."""
    script = SCRIPTS / f"{name}.py"
    assert_explained(reported(script, folder, way, **environment), script, wanted, way)


def report_with(**changes):
    """Return the report that the author of `own_loop.py` expects of its guard, with changes."""
    lines = (SCRIPTS / "own_loop.py").read_text("utf-8").splitlines()
    where = {"path": "own_loop.py", "line": lines.index("    lengths = squares.sqrt()  # here") + 1}
    finding = {"kind": "BLOCKED", "operation": "sqrt", "where": where, "rows": [1]} | changes
    return {"step": 1, "parameters": ["weight"], "notes": [], "findings": [finding]} | changes


@pytest.mark.only("torch")
def test_the_comparison_can_fail():
    """Another step, parameter, row or line is not what the author of a script knows."""
    given = SCRIPTS / "own_loop.py", OF_TORCH["own_loop"], "guard"

    assert_explained(report_with(), *given)
    for changes in (
        {"step": 0},
        {"parameters": ["bias"]},
        {"rows": [2]},
        {"where": {"path": "own_loop.py", "line": 1}},
    ):
        with pytest.raises(AssertionError):
            assert_explained(report_with(**changes), *given)


@pytest.mark.only("torch")
@WAYS
@pytest.mark.parametrize("name", OF_TORCH)
def test_a_script_of_pytorch(name, way, tmp_path):
    """The report names kind, line, step and parameter, that of a guard the row too."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    check(name, OF_TORCH[name], tmp_path, way, GLOO_SOCKET_IFNAME="lo", **alone)


@pytest.mark.only("jax", "tensorflow", "torch")
@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
@WAYS
def test_a_script_of_keras(way, tmp_path):
    """Likewise, on each backend."""
    check("keras_fit", OF_KERAS, tmp_path, way)
