"""The public operations, which `safeops` fetches when one of them is asked for."""

from safeops import _doors
from safeops._ops.angles import (
    safe_acos,
    safe_acosh,
    safe_asin,
    safe_atan2,
    safe_atanh,
    safe_hypot,
    sinc,
)
from safeops._ops.attention import safe_attention
from safeops._ops.composites import log1mexp, log_cosh, log_expm1, log_sech2, log_sinhc
from safeops._ops.distances import safe_cdist, safe_pdist
from safeops._ops.division import safe_div, safe_mul, safe_reciprocal, xdivy
from safeops._ops.gamma import safe_digamma, safe_lgamma
from safeops._ops.incomplete import safe_gammainc, safe_gammaincc
from safeops._ops.interpolation import safe_interp
from safeops._ops.logs import (
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
from safeops._ops.losses import (
    safe_binary_cross_entropy,
    safe_focal_loss,
    safe_kl_divergence,
    safe_nll,
)
from safeops._ops.normal import log_ndtr, safe_erfinv, safe_ndtri
from safeops._ops.norms import (
    safe_cosine_similarity,
    safe_distance,
    safe_norm,
    safe_normalize,
    safe_rms,
    squared_norm,
)
from safeops._ops.powers import safe_exp, safe_expm1, safe_pow, safe_rsqrt, safe_sqrt
from safeops._ops.radial import radial
from safeops._ops.reductions import (
    safe_argmax,
    safe_argmin,
    safe_max,
    safe_mean,
    safe_min,
    safe_prod,
    safe_std,
    safe_sum,
    safe_var,
)
from safeops._ops.rescaling import safe_clip_by_norm, safe_correlation, safe_standardize
from safeops._ops.smooth import boxcox, exprel, inv_boxcox, logarithmic_mean, sinhc
from safeops._ops.softmax import (
    safe_cross_entropy,
    safe_log_softmax,
    safe_logcumsumexp,
    safe_logmeanexp,
    safe_logsumexp,
    safe_softmax,
)
from safeops._ops.where import make_safe, safe_where, stop_gradient, vectorized_cond
from safeops.nan_reductions import (
    nanargmax,
    nanargmin,
    nancumprod,
    nancumsum,
    nanmax,
    nanmean,
    nanmedian,
    nanmin,
    nanpercentile,
    nanprod,
    nanquantile,
    nanstd,
    nansum,
    nanvar,
)

__all__ = [
    "boxcox", "entr", "exprel", "inv_boxcox", "log1mexp", "log_cosh", "log_expm1", "log_ndtr",
    "log_sech2", "log_sinhc", "logarithmic_mean", "make_safe", "nanargmax", "nanargmin",
    "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile",
    "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "radial", "rel_entr", "safe_acos",
    "safe_acosh", "safe_argmax", "safe_argmin", "safe_asin", "safe_atan2", "safe_atanh",
    "safe_attention", "safe_binary_cross_entropy", "safe_cdist", "safe_clip_by_norm",
    "safe_correlation", "safe_cosine_similarity", "safe_cross_entropy", "safe_digamma",
    "safe_distance", "safe_div", "safe_erfinv", "safe_exp", "safe_expm1", "safe_focal_loss",
    "safe_gammainc", "safe_gammaincc", "safe_hypot", "safe_interp", "safe_kl_divergence",
    "safe_lgamma", "safe_log", "safe_log1p", "safe_log2", "safe_log10", "safe_log_softmax",
    "safe_logaddexp", "safe_logcumsumexp", "safe_logit", "safe_logmeanexp", "safe_logsubexp",
    "safe_logsumexp", "safe_max", "safe_mean", "safe_min", "safe_mul", "safe_ndtri", "safe_nll",
    "safe_norm", "safe_normalize", "safe_pdist", "safe_pow", "safe_prod", "safe_reciprocal",
    "safe_rms", "safe_rsqrt", "safe_softmax", "safe_sqrt", "safe_standardize", "safe_std",
    "safe_sum", "safe_var", "safe_where", "sinc", "sinhc", "squared_norm", "stop_gradient",
    "vectorized_cond", "xdivy", "xlog1py", "xlogy",
]  # fmt: skip

_doors.show("safeops", __all__, globals())
