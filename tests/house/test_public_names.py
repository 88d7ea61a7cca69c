"""Public names: none is lost, and each stands where it stood."""

import ast
import re
from pathlib import Path

import pytest

import safeops

HOUSE = Path(safeops.__file__).parent
LONGEST = 600  # lines of a file

# As they were before the house was rebuilt; a name that comes is added, and none is taken away.
NAMES = {
    "_public": """
        boxcox entr exprel inv_boxcox log1mexp log_cosh log_expm1 log_sech2 log_sinhc
        logarithmic_mean make_safe nanargmax nanargmin
        nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod
        nanquantile nanstd nansum nanvar radial rel_entr safe_acos safe_acosh safe_argmax
        safe_attention safe_binary_cross_entropy safe_focal_loss safe_kl_divergence safe_nll
        safe_argmin safe_asin safe_atan2 safe_atanh safe_cdist safe_clip_by_norm safe_pdist
        safe_interp safe_logcumsumexp safe_standardize safe_correlation
        safe_cosine_similarity log_ndtr safe_ndtri safe_erfinv
        safe_digamma safe_lgamma safe_gammainc safe_gammaincc
        safe_cross_entropy safe_distance safe_div safe_exp safe_expm1 safe_hypot
        safe_log safe_log10 safe_log1p safe_log2 safe_log_softmax safe_logaddexp
        safe_logit safe_logmeanexp safe_logsubexp safe_logsumexp safe_max safe_mean
        safe_min safe_mul safe_norm safe_normalize safe_pow safe_prod safe_reciprocal
        safe_rms safe_rsqrt safe_softmax safe_sqrt safe_std safe_sum safe_var safe_where
        sinc sinhc squared_norm stop_gradient vectorized_cond xdivy xlog1py xlogy
    """,
    "nan_reductions": """
        nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin
        nanpercentile nanprod nanquantile nanstd nansum nanvar
    """,
    "linalg": """
        expm_symmetric inv_sqrtm_psd logm_psd polar powm_psd safe_cholesky safe_det
        safe_eigh safe_eigvalsh safe_slogdet safe_svd safe_svdvals spectral_function
        sqrtm_psd
    """,
    "rotations": """
        matrix_to_quaternion matrix_to_rotvec matrix_to_twist quaternion_slerp
        quaternion_to_matrix quaternion_to_rotvec rotvec_to_matrix rotvec_to_quaternion
        safe_angle safe_dihedral squared_angle twist_to_matrix
    """,
    "segments": """
        segment_logsumexp segment_max segment_mean segment_min segment_prod segment_softmax
        segment_std segment_sum segment_var
    """,
    "testing": """
        Finding GradientFinding GradientReport Place Report check_gradients
    """,
    "autodiff/__init__": """
        Finding Report UnknownOperationWarning explain grad
    """,
    "autodiff/jax/__init__": """
        UnknownOperationWarning explain grad hessian jacfwd jacrev jvp masked_grad
        value_and_grad vjp watch_grad
    """,
    "autodiff/torch/__init__": """
        UnknownOperationWarning backward compile explain explain_backward func grad
        gradient_mask masked_backward record_lines value_and_grad watch_backward
    """,
    "autodiff/torch/func": """
        grad hessian jacrev value_and_grad vjp
    """,
    "autodiff/tensorflow/__init__": """
        GradientTape UnknownOperationWarning explain grad value_and_grad watch_tape
    """,
    "integrations/__init__": """
        NonFiniteGradientError guard
    """,
    "integrations/jax": """
        value_and_grad
    """,
    "integrations/tensorflow": """
        value_and_grad
    """,
    "integrations/keras": """
        GuardCallback
    """,
    "integrations/lightning": """
        GuardCallback
    """,
    "integrations/transformers": """
        guard
    """,
}


def listed(source):
    """Return the names in ``__all__`` of a source."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def defined(source):
    """Return the names that a source defines or imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from map(ast.unparse, node.targets)


def is_long(source):
    """Whether a source has more lines than a file may have."""
    return len(source.splitlines()) > LONGEST


@pytest.mark.parametrize("module", NAMES)
def test_no_public_name_is_lost(module):
    """A module lists the names that it has always had, and has each of them."""
    source = (HOUSE / f"{module}.py").read_text()

    assert set(NAMES[module].split()) - listed(source) == set()
    assert listed(source) - set(defined(source)) == set()


def test_a_lost_name_is_seen():
    """A name that is no longer listed, or listed and not there, is found."""
    assert listed("__all__ = ['a']") == {"a"}
    assert listed("a = 1") == set()
    assert set(defined("import a as b\nc = 1\ndef d(): pass")) == {"b", "c", "d"}


def test_no_file_is_long():
    """A file of the package, and of its tests, has at most 600 lines."""
    files = [*HOUSE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]
    long = [file.name for file in files if is_long(file.read_text())]

    assert long == []
    assert is_long("\n" * (LONGEST + 1))


# Where a matrix or a slice has one number, or what is asked stands in no loop over the entries.
BY_NUMBER = {"determinants", "eigenvectors", "masked_reductions"}


def asks_by_name(source):
    """Whether source calls `isnan` or `isinf` of a namespace."""
    return bool(re.search(r"\bxp\.is(nan|inf)\(", source))


def test_entries_are_compared():
    """Inductor of PyTorch (2.13) calls `isnan` and `isinf` one by one: `_ops.where` compares."""
    files = [file for file in (HOUSE / "_ops").glob("*.py") if asks_by_name(file.read_text())]

    assert {file.stem for file in files} <= BY_NUMBER
    assert asks_by_name("y = xp.isnan(x)")
