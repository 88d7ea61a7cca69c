"""The functions that frameworks have themselves, by the names of ours: what accuracy is beside."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np

QUANTILE = 0.3125  # a number of all dtypes, as its product with 100 is
# Written with `m`, the functions of a framework, where it has none of its own.
WRITTEN = {
    "safe_rsqrt": lambda m, x: 1 / m.sqrt(x),
    "safe_logit": lambda m, x: m.log(x / (1 - x)),
    "xlogy": lambda m, x, y: x * m.log(y),
    "xlog1py": lambda m, x, y: x * m.log1p(y),
    "entr": lambda m, p: -p * m.log(p),
    "rel_entr": lambda m, p, q: p * m.log(p / q),
    "safe_logsubexp": lambda m, x, y: x + m.log1p(-m.exp(y - x)),
    "safe_hypot": lambda m, x, y: m.sqrt(x * x + y * y),
    "sinc": lambda m, x: m.sin(np.pi * x) / (np.pi * x),
    "squared_norm": lambda m, x: m.sum(x * x),
    "safe_normalize": lambda m, x: x / m.norm(x)[:, None],
    "safe_distance": lambda m, x, y: m.norm(x - y),
    "safe_cosine_similarity": lambda m, x, y: m.sum(x * y) / (m.norm(x) * m.norm(y)),
    "safe_correlation": lambda m, x, y: (
        m.sum((x - m.mean(x)[:, None]) * (y - m.mean(y)[:, None]) / (m.std(x) * m.std(y))[:, None])
        / x.shape[1]
    ),
    "safe_rms": lambda m, x: m.sqrt(m.mean(x * x)),
    "safe_logmeanexp": lambda m, x: m.logsumexp(x) - m.log_of_count(x),
    "safe_cross_entropy": lambda m, x, y: -m.sum(y * m.log_softmax(x)),
    "log_ndtr": lambda m, x: m.log(0.5 * m.erfc(-x / np.sqrt(2))),
    "log_cosh": lambda m, x: m.log(m.cosh(x)),
    "log_sech2": lambda m, x: m.log(1 - m.tanh(x) ** 2),
    "log_sinhc": lambda m, x: m.log(m.sinh(x) / x),
    "log1mexp": lambda m, x: m.log(1 - m.exp(-x)),
    "log_expm1": lambda m, x: m.log(m.exp(x) - 1),
    "exprel": lambda m, x: m.expm1(x) / x,
    "sinhc": lambda m, x: m.sinh(x) / x,
    "boxcox": lambda m, x, p: (m.pow(x, p) - 1) / p,
    "inv_boxcox": lambda m, y, p: m.pow(1 + p * y, 1 / p),
    "logarithmic_mean": lambda m, x, y: (x - y) / (m.log(x) - m.log(y)),
    "radial": lambda m, x: 1 / (1 + m.norm(x) * m.norm(x)),
    "safe_binary_cross_entropy": lambda m, x, y: of_labels(m.log_sigmoid, x, y),
    "safe_focal_loss": lambda m, x, y: of_labels(
        lambda x: (1 - m.sigmoid(x)) ** 2 * m.log_sigmoid(x), x, y
    ),
    "safe_kl_divergence": lambda m, p, q: m.sum(p * m.log(p / q)),
    "safe_standardize": lambda m, x: (x - m.mean(x)[:, None]) / m.std(x)[:, None],
    "safe_clip_by_norm": lambda m, x, most: x * m.minimum(1 + 0 * most, most / m.norm(x)[:, None]),
    "safe_cdist": lambda m, x, y: m.norm(x[:, :, None] - y[:, None]),
    "safe_pdist": lambda m, x: m.norm(
        m.stack([x[:, 0], x[:, 0], x[:, 1]], 1) - m.stack([x[:, 1], x[:, 2], x[:, 2]], 1)
    ),
    "safe_attention": lambda m, query, key, value: (
        m.softmax(query @ m.transposed(key) / 2) @ value  # of four coordinates
    ),
}


def of_labels(log, x, y):
    """Return a binary loss of logits and labels, by a logarithm of the probability."""
    return -y * log(x) - (1 - y) * log(-x)


SHARED = {
    "safe_div": "divide",
    "xdivy": "divide",
    "safe_mul": "multiply",
    "safe_reciprocal": "reciprocal",
    "safe_sqrt": "sqrt",
    "safe_pow": "pow",
    "safe_exp": "exp",
    "safe_expm1": "expm1",
    "safe_log": "log",
    "safe_log1p": "log1p",
    "safe_asin": "asin",
    "safe_acos": "acos",
    "safe_acosh": "acosh",
    "safe_atanh": "atanh",
    "safe_atan2": "atan2",
    "sinc": "sinc",
    "safe_norm": "norm",
    "safe_softmax": "softmax",
    "safe_log_softmax": "log_softmax",
    "safe_logsumexp": "logsumexp",
    "safe_logaddexp": "logaddexp",
}
SHARED |= {f"safe_{name}": name for name in ("log2", "log10", "sum", "prod", "mean", "var", "std")}
SHARED |= {"safe_max": "max", "safe_min": "min"}
SHARED |= {f"safe_{name}": name for name in ("ndtri", "erfinv", "digamma")}
SHARED |= {"safe_lgamma": "gammaln", "safe_gammainc": "gammainc", "safe_gammaincc": "gammaincc"}
# Names, in other frameworks too.
OF_SCIPY = ("log_ndtr", "ndtri", "erfinv", "digamma", "gammaln", "gammainc", "gammaincc")
REDUCED = ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian")
ACCUMULATED = ("nancumsum", "nancumprod")


def plain(framework, name):
    """Return the function of the framework, one written with its functions, or None."""
    m = FUNCTIONS[framework]()
    own = getattr(m, SHARED.get(name, name), None)
    if own is None and name in WRITTEN:
        return lambda *args: WRITTEN[name](m, *args)
    return own


def is_own(framework, name):
    """Whether the framework has it as a function."""
    return hasattr(FUNCTIONS[framework](), SHARED.get(name, name))


def along_last(f, axis="axis", **options):
    """Return a function of slices."""
    return lambda *args: f(*args, **{axis: -1}, **options)


def of_numpy():
    """Return NumPy's and SciPy's functions."""
    import scipy.special as sp

    names = "divide multiply reciprocal sqrt pow exp expm1 log log2 log10 log1p asin acos acosh"
    names += " atanh atan2 sinc logaddexp sinh cosh tanh minimum stack"
    found = {name: getattr(np, name) for name in names.split()}
    names = "sum prod mean var std max min"
    found |= {name: along_last(getattr(np, name)) for name in names.split()}
    found |= {name: along_last(getattr(np, name)) for name in (*REDUCED, *ACCUMULATED)}
    found |= {name: getattr(sp, name) for name in ("xlogy", "xlog1py", "entr", "rel_entr")}
    found |= {
        name: along_last(getattr(sp, name)) for name in ("softmax", "log_softmax", "logsumexp")
    }
    found |= {name: getattr(sp, name) for name in (*OF_SCIPY, "exprel", "boxcox", "inv_boxcox")}
    return SimpleNamespace(
        **found,
        sigmoid=sp.expit,
        log_sigmoid=sp.log_expit,
        transposed=np.matrix_transpose,
        safe_interp=np.interp,
        safe_logcumsumexp=along_last(np.logaddexp.accumulate),
        nanquantile=lambda x: np.nanquantile(x, QUANTILE, axis=-1),
        nanpercentile=lambda x: np.nanpercentile(x, 100 * QUANTILE, axis=-1),
        safe_logit=sp.logit,
        safe_hypot=np.hypot,
        norm=along_last(np.linalg.norm),
        log_of_count=lambda x: np.log(x.dtype.type(x.shape[-1])),
    )


def of_torch():
    """Return PyTorch's functions."""
    import torch
    from torch.nn import functional

    names = "divide multiply reciprocal sqrt pow exp expm1 log log2 log10 log1p asin acos acosh"
    names += " atanh atan2 sinc logaddexp xlogy sinh cosh tanh minimum stack sigmoid"
    found = {name: getattr(torch, name) for name in names.split()}
    found |= {name: along_last(getattr(torch, name), "dim") for name in ("sum", "prod", "mean")}
    found |= {name: along_last(getattr(torch, name), "dim") for name in ("nansum", "nanmean")}
    found |= {
        name: along_last(getattr(torch, name), "dim", correction=0) for name in ("var", "std")
    }
    found |= {"max": along_last(torch.amax, "dim"), "min": along_last(torch.amin, "dim")}
    found |= {name: along_last(getattr(torch, name), "dim") for name in ("softmax", "log_softmax")}
    found |= {name: getattr(torch.special, name) for name in OF_SCIPY}
    return SimpleNamespace(
        **found,
        log_sigmoid=functional.logsigmoid,
        transposed=lambda x: x.mT,
        safe_binary_cross_entropy=lambda x, y: functional.binary_cross_entropy_with_logits(
            x, y, reduction="none"
        ),
        safe_standardize=lambda x: functional.layer_norm(x, x.shape[-1:], eps=0),
        safe_cdist=torch.cdist,
        safe_attention=functional.scaled_dot_product_attention,
        safe_logcumsumexp=along_last(torch.logcumsumexp, "dim"),
        nanquantile=lambda x: torch.nanquantile(x, QUANTILE, -1),
        safe_rsqrt=torch.rsqrt,
        safe_logit=torch.logit,
        xlog1py=torch.special.xlog1py,
        entr=torch.special.entr,
        safe_hypot=torch.hypot,
        norm=along_last(torch.linalg.vector_norm, "dim"),
        safe_normalize=functional.normalize,
        safe_cosine_similarity=functional.cosine_similarity,
        logsumexp=along_last(torch.logsumexp, "dim"),
        safe_cross_entropy=lambda x, y: functional.cross_entropy(x, y, reduction="none"),
        log_of_count=lambda x: torch.log(x.new_tensor(x.shape[-1])),
        nanmedian=lambda x: torch.nanquantile(x, 0.5, -1),
    )


def of_jax():
    """Return JAX's functions."""
    import jax
    import jax.numpy as jnp
    import jax.scipy.special as sp

    names = "divide multiply reciprocal sqrt pow exp expm1 log log2 log10 log1p asin acos acosh"
    names += " atanh atan2 sinc logaddexp sinh cosh tanh minimum stack"
    found = {name: getattr(jnp, name) for name in names.split()}
    names = "sum prod mean var std max min"
    found |= {name: along_last(getattr(jnp, name)) for name in names.split()}
    found |= {name: along_last(getattr(jnp, name)) for name in (*REDUCED, *ACCUMULATED)}
    names = ("xlogy", "xlog1py", "entr", "rel_entr", *OF_SCIPY)
    found |= {name: getattr(sp, name) for name in names}
    return SimpleNamespace(
        **found,
        sigmoid=jax.nn.sigmoid,
        log_sigmoid=jax.nn.log_sigmoid,
        transposed=jnp.matrix_transpose,
        safe_standardize=lambda x: jax.nn.standardize(x, epsilon=0),
        safe_attention=lambda *args: jax.nn.dot_product_attention(
            *(x[:, :, None] for x in args)  # of one head
        )[:, :, 0],
        safe_interp=jnp.interp,
        safe_logcumsumexp=lambda x: jax.lax.cumlogsumexp(x, axis=1),
        nanquantile=lambda x: jnp.nanquantile(x, QUANTILE, axis=-1),
        nanpercentile=lambda x: jnp.nanpercentile(x, 100 * QUANTILE, axis=-1),
        safe_rsqrt=jax.lax.rsqrt,
        safe_logit=sp.logit,
        safe_hypot=jnp.hypot,
        norm=along_last(jnp.linalg.norm),
        softmax=jax.nn.softmax,
        log_softmax=jax.nn.log_softmax,
        logsumexp=along_last(sp.logsumexp),
        log_of_count=lambda x: jnp.log(jnp.asarray(x.shape[-1], x.dtype)),
    )


def without(f, *dtypes):
    """Return a function that TensorFlow has no kernel of some dtypes for (2.21)."""

    def checked(*args):
        if args[0].dtype.name in dtypes:
            msg = "no kernel for this dtype"
            raise TypeError(msg)
        return f(*args)

    return checked


def of_tensorflow():
    """Return TensorFlow's functions."""
    tf = import_module("tensorflow")
    names = "divide multiply reciprocal sqrt pow exp expm1 log log1p asin acos acosh atanh atan2"
    names += " sin erfc sinh cosh tanh minimum sigmoid log_sigmoid"
    found = {name: getattr(tf.math, name) for name in names.split()}
    reduced = {"sum": "sum", "prod": "prod", "mean": "mean", "var": "variance", "std": "std"}
    reduced |= {"max": "max", "min": "min"}
    found |= {
        ours: along_last(getattr(tf.math, f"reduce_{name}")) for ours, name in reduced.items()
    }
    return SimpleNamespace(
        **found,
        log2=lambda x: tf.math.log(x) / tf.math.log(tf.cast(2, x.dtype)),
        log10=lambda x: tf.math.log(x) / tf.math.log(tf.cast(10, x.dtype)),
        digamma=without(tf.math.digamma, "float16", "bfloat16"),
        gammaln=without(tf.math.lgamma, "bfloat16"),
        ndtri=without(tf.math.ndtri, "float16", "bfloat16"),
        erfinv=without(tf.math.erfinv, "float16", "bfloat16"),
        safe_rsqrt=tf.math.rsqrt,
        stack=tf.stack,
        transposed=tf.linalg.matrix_transpose,
        gammainc=without(tf.math.igamma, "float16", "bfloat16"),
        gammaincc=without(tf.math.igammac, "float16", "bfloat16"),
        safe_binary_cross_entropy=lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(y, x),
        safe_clip_by_norm=lambda x, most: tf.clip_by_norm(x, most, axes=-1),
        safe_logcumsumexp=along_last(tf.math.cumulative_logsumexp),
        xlogy=tf.math.xlogy,
        xlog1py=tf.math.xlog1py,
        logaddexp=lambda x, y: tf.reduce_logsumexp(tf.stack([x, y]), axis=0),
        norm=along_last(tf.norm),
        safe_normalize=along_last(tf.math.l2_normalize),
        softmax=tf.nn.softmax,
        log_softmax=tf.nn.log_softmax,
        logsumexp=along_last(tf.reduce_logsumexp),
        safe_cross_entropy=lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x),
        log_of_count=lambda x: tf.math.log(tf.cast(x.shape[-1], x.dtype)),
    )


FUNCTIONS = {"numpy": of_numpy, "torch": of_torch, "jax": of_jax, "tensorflow": of_tensorflow}
