"""The rows of the page of accuracy: what it has none of."""

COMBINATORS = ("make_safe", "safe_where", "vectorized_cond", "stop_gradient")
# What has no row, and why.
ABSENT = {
    ("safe_nll",): "which picks a number and turns its sign",
    ("nanargmax", "nanargmin", "safe_argmax", "safe_argmin"): "which are whole numbers",
    COMBINATORS: "which have no formula of their own",
}
