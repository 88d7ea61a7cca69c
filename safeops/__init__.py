"""Safe numerical operations for NumPy, PyTorch, JAX and TensorFlow: the gradient is right too."""

from safeops._angles import (
    safe_acos,
    safe_acosh,
    safe_asin,
    safe_atan2,
    safe_atanh,
    safe_hypot,
    sinc,
)
from safeops._division import safe_div, safe_mul, safe_reciprocal, xdivy
from safeops._logs import (
    entr,
    rel_entr,
    safe_log,
    safe_log1p,
    safe_log2,
    safe_log10,
    safe_logaddexp,
    safe_logit,
    safe_logsubexp,
    xlog1py,
    xlogy,
)
from safeops._norms import (
    safe_cosine_similarity,
    safe_distance,
    safe_norm,
    safe_normalize,
    safe_rms,
    squared_norm,
)
from safeops._powers import safe_exp, safe_expm1, safe_pow, safe_rsqrt, safe_sqrt
from safeops._softmax import (
    safe_cross_entropy,
    safe_log_softmax,
    safe_logmeanexp,
    safe_logsumexp,
    safe_softmax,
)
from safeops._where import make_safe, safe_where, stop_gradient, vectorized_cond

__version__ = "0.1.0"

__all__ = [
    "entr",
    "make_safe",
    "rel_entr",
    "safe_acos",
    "safe_acosh",
    "safe_asin",
    "safe_atan2",
    "safe_atanh",
    "safe_cosine_similarity",
    "safe_cross_entropy",
    "safe_distance",
    "safe_div",
    "safe_exp",
    "safe_expm1",
    "safe_hypot",
    "safe_log",
    "safe_log1p",
    "safe_log2",
    "safe_log10",
    "safe_log_softmax",
    "safe_logaddexp",
    "safe_logit",
    "safe_logmeanexp",
    "safe_logsubexp",
    "safe_logsumexp",
    "safe_mul",
    "safe_norm",
    "safe_normalize",
    "safe_pow",
    "safe_reciprocal",
    "safe_rms",
    "safe_rsqrt",
    "safe_softmax",
    "safe_sqrt",
    "safe_where",
    "sinc",
    "squared_norm",
    "stop_gradient",
    "vectorized_cond",
    "xdivy",
    "xlog1py",
    "xlogy",
]
