"""
What names say: words that tell a mask, a constant or a metric from what is differentiated.

Each has above it the false alarm that it was made for, or the finding that it allows; without a
word for it, source does not show which of the two a name is.
"""

import re

# SO001 in `where(ok, f(x), jnp.nan)`: who fills in NaN marks what is missing, and knows of it.
NAN = re.compile(r"\bnan\b", re.IGNORECASE)

# SO001 in `where(x > 0, y / safe_x, 0.0)`, where safe_x comes from another function.
SAFE = re.compile(r"(^|_|\.)safe(_|$)")

# SO001 in `where(inside, (x - low) / (high - low), 0.0)`: the ends of an interval differ.
ENDS = re.compile(r"(^|[^a-z])(high|low|max|min)([^a-z]|$)")

# SO001 in `where(x > 0, log(x + eps), 0.0)`, where eps is a parameter.
SMALL = re.compile(r"(^|_)(eps|epsilon|tol|tolerance)(_|$|\d)", re.IGNORECASE)

# SO008 in `grid = helper(h, w); sqrt((grid * grid).sum(-1))`: sizes are plain numbers; so are
# counts (`where(x > 0, x / n, 0.0)`); advantages, which weigh a gradient, and labels have none.
PLAIN_NAMES = re.compile(
    r"(^|_)(height|width|size|counts?|n|H|W|index|degree|adv|advantages|one_hot)(_t)?$|^(num|max|len)_"
)

# SO008 in `h, w = x.shape[-2:]; sqrt(h * h + w * w)`: unpacked shapes are plain numbers.
SHAPE = re.compile(r"(size|shape)s?(\(\))?(\[.*\])?$")

# SO008 in `(dists**2 + inv_eta**2).sqrt()`, `sqrt(sigma**2 + noise_level**2)`: what is added is a
# constant that is not 0.
CONSTANTS = re.compile(r"(^|_|\.)(eta|sigma|scale|std)s?(_\w+)?$", re.IGNORECASE)

# SO008 in `x / sqrt(sum(window**2))`: a window is made of numbers, and not 0 throughout.
WINDOW = re.compile(r"(^|_|\.)windows?$")

# SO003 in `sqrt(clamp(sigma_next**2 - sigma_down**2, min=0))`: a schedule has no gradient.
SCHEDULE = re.compile(r"(^|_|\.)(alpha|sigma)s?(_|$)", re.IGNORECASE)

# SO005 and SO006 in `weights * log(x)`, `x.sum() / weights.sum()`: only a mask is 0 on purpose.
MASK = re.compile(r"(^|_)masks?$", re.IGNORECASE)

# SO006 in `(w * x).sum() / w.sum()`: weights are not all 0; events and what is kept may be.
EVENTS = re.compile(r"(^|_)(event|indicators|keep|positive)$", re.IGNORECASE)

# SO005 in `n * log(n)`, `sigma * log(sigma)`: only a probability is 0 as a rule.
PROBABILITIES = re.compile(r"(^|_)(p|q|prob|probs|probability|probabilities|posterior)$")

# SO005 in `exp(sum(log(diag_part(cholesky))))`: the diagonal of a Cholesky factor is positive.
DIAGONAL = re.compile(r"diag", re.IGNORECASE)

# SO006 and SO007 in `softmax(masked_fill(x, triu(y), -inf))`, `x.sum() / sequence_mask(y).sum()`:
# triangles, lengths and what is sorted keep something in each row.
NEVER_EMPTY = (
    "arange", "eye", "length", "lens", "pad_mask", "sequence_mask", "sort", "threshold", "tril",
    "triu",
)  # fmt: skip

# SO002 in `def init_weights(w): w / (sqrt((w * w).sum()) + 1e-4)`: what fills weights before
# training, draws (`rsample` is what is differentiated), fits, or keeps running numbers.
FIRST = re.compile(
    r"^_?(init(ialize)?_weight\w*|sample$|quantize|diagnos|fit(_|$)|maximum_likelihood|"
    r"update_(running|moving)_)|(_init|_initializer)_?$"
)

# SO003 in `class A(torch.optim.Optimizer)`, `class A(Constraint)`: classes that prepare data,
# measure, step or draw, and autograd functions, whose backward is their own.
DATA = re.compile(
    r"(BaseTransform|FeatureExtractor|Processor|Metrics?|Stats|Function|Constraint|Initializer|Miner|"
    r"Optimizer|Pipeline|Quantizer|Sampler)$"
)

# SO001 in `f_fwd`, `f_bwd` beside `f.defvjp(f_fwd, f_bwd)`: they are the derivative.
OF_RULE = re.compile(r"_(fwd|bwd|jvp|vjp)$")

# SO001 in `metrics/iou.py`, `optim/adam.py`, `preprocessing/mix.py`: modules and packages that
# measure, step, draw or prepare data.
APART = re.compile(
    r"(^|_)(adaptation|augmentations?|constraints?|data|diagnostics?|evaluation|metrics?|"
    r"optim(izers?)?|preprocessing|quantizers?|root_search|schedulers?)$"
)
