"""Training scripts of trainers and of flax, with one bad batch each, by command and by guard."""

from pathlib import Path

import pytest

from training import Training, assert_explained, reported

SCRIPTS = Path(__file__).parent / "scripts"
OF_TORCH = {
    "with_lightning": Training(
        "BLOCKED", "sqrt", 1, "head.weight", 1, advice="of safeops.integrations.lightning"
    ),
    "with_transformers": Training(
        "BLOCKED", "sqrt", 1, "head.weight", 1, advice="safeops.integrations.transformers.guard"
    ),
}
OF_JAX = {
    "with_optax": Training("BLOCKED", "sqrt", 1, "['head']", 1),
    "with_nnx": Training("GENUINE", "sqrt", 1, ".states[0]['kernel'].value", None),
}
WAYS = ("command", "guard")


@pytest.mark.only("torch")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OF_TORCH)
def test_a_script_of_pytorch(name, way, tmp_path):
    """The report names kind, line, step and parameter, that of a guard the row too."""
    script = SCRIPTS / f"{name}.py"
    assert_explained(reported(script, tmp_path, way), script, OF_TORCH[name], way)


@pytest.mark.only("jax")
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in OF_JAX for way in WAYS if OF_JAX[name].row or way == "command"],
)
def test_a_script_of_jax(name, way, tmp_path):
    """Likewise."""
    script = SCRIPTS / f"{name}.py"
    assert_explained(reported(script, tmp_path, way), script, OF_JAX[name], way)
