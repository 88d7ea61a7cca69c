"""Each public function has a row in the benchmarks, beside what a user would pick."""

import json
import subprocess
import sys
from pathlib import Path

import safeops as so
from safeops import linalg, rotations, segments

PUBLIC = {*so.__all__, *linalg.__all__, *segments.__all__, *rotations.__all__}
# In a process of its own: they let a process run on one core.
TABLES = """
import json, families, ops, special
print(json.dumps([[*families.FAMILIES, *ops.OPERATIONS, *special.LINES], [*families.WITHOUT_PICK]]))
"""


def test_each_function_has_a_row_or_no_rival():
    """A function stands in one of the tables, or among those that no framework has."""
    folder = Path(__file__).parents[2] / "benchmarks"

    done = subprocess.run(
        [sys.executable, "-c", TABLES], cwd=folder, capture_output=True, text=True, check=True
    )

    rows, without = json.loads(done.stdout)
    rows = {name.partition(",")[0] for name in rows}
    assert rows | set(without) == PUBLIC
    assert not rows & set(without)
