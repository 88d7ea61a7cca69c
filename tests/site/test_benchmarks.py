"""Each public function has a row in the benchmarks, beside what a user would pick."""

import json
import subprocess
import sys
from pathlib import Path

import safeops as so
from safeops import linalg, rotations, segments

PUBLIC = {*so.__all__, *linalg.__all__, *segments.__all__, *rotations.__all__}
# No framework has these, or has one without a gradient: nobody would pick another.
WITHOUT_PICK = """
expm_symmetric inv_sqrtm_psd logm_psd make_safe matrix_to_quaternion matrix_to_rotvec
matrix_to_twist nanargmax nanargmin nanpercentile polar powm_psd quaternion_slerp
quaternion_to_matrix quaternion_to_rotvec radial rotvec_to_matrix rotvec_to_quaternion
safe_angle safe_argmax safe_argmin safe_clip_by_norm safe_dihedral safe_interp safe_pdist
safe_svd safe_svdvals safe_where segment_logsumexp segment_min segment_prod segment_std
segment_var spectral_function sqrtm_psd squared_angle stop_gradient twist_to_matrix
vectorized_cond
"""
# In a process of its own: they let a process run on one core.
TABLES = """
import json, families, ops, special
print(json.dumps([*families.FAMILIES, *ops.OPERATIONS, *special.LINES]))
"""


def test_each_function_has_a_row_or_no_rival():
    """A function stands in one of the tables, or among those that no framework has."""
    folder = Path(__file__).parents[2] / "benchmarks"

    done = subprocess.run(
        [sys.executable, "-c", TABLES], cwd=folder, capture_output=True, text=True, check=True
    )

    rows = {name.partition(",")[0] for name in json.loads(done.stdout)}
    without = set(WITHOUT_PICK.split())
    assert rows | without == PUBLIC
    assert not rows & without
