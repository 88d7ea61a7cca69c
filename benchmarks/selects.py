"""
What one select costs a compiled operation: ``python benchmarks/selects.py [FRAMEWORK ...]``.

No gradient is right unless something takes bad entries out of the argument. This is the least that
does it: one comparison and one select before the plain operation, and nothing after it, so that the
value of bad entries is still wrong. The columns are as in `ops.py`, with that in place of the safe
operation; a bar below its ratio to the plain operation is out of reach. A million entries, 1 % bad.
"""

import warnings
from functools import partial

import ops  # first: it sets the number of threads
from options import parsed

MODES = {"torch": ("compile",), "jax": ("jit",), "tensorflow": ("xla",)}
SELECTS = {
    "safe_div": lambda xp, x, y: x / xp.where(y != 0, y, 1.0),
    "safe_log": lambda xp, x: xp.log(xp.where(x > 0, x, 1.0)),
    "safe_sqrt": lambda xp, x: xp.sqrt(xp.where(x > 0, x, 1.0)),
    "safe_exp": lambda xp, x: xp.exp(xp.where(x < ops.LARGEST, x, 0.0)),
    "safe_pow": lambda xp, x, p: xp.where(x > 0, x, 1.0) ** p,
    "xlogy": lambda xp, x, y: x * xp.log(xp.where(x != 0, y, 1.0)),
    "safe_softmax": lambda xp, x, keep: xp.softmax(
        xp.where(xp.logical_or(keep, xp.logical_not(xp.any(keep, -1))), x, -ops.math.inf)
    ),
    "nansum": lambda xp, x: xp.sum(xp.where(x == x, x, 0.0), -1),  # noqa: PLR0124  (False for NaN)
    "nanmean": lambda xp, x: xp.mean(xp.where(x == x, x, 0.0), -1),  # noqa: PLR0124
    "nanstd": lambda xp, x: xp.std(xp.where(x == x, x, 0.0), -1),  # noqa: PLR0124
    "nanmax": lambda xp, x: xp.max(xp.where(x == x, x, -ops.math.inf), -1),  # noqa: PLR0124
}


def main():
    """Print the table."""
    print(ops.HEAD.strip())
    warnings.simplefilter("ignore")  # those of the unsafe operations
    names = {"nargs": "*", "choices": list(MODES), "default": list(MODES)}
    for framework in parsed(__doc__, quick=False, framework=names).framework:
        world = ops.SET_UP[framework]()
        for name, select in SELECTS.items():
            plain = ops.OPERATIONS[name]
            ops.OPERATIONS[name] = plain._replace(ours=partial(select, world[0]), peers={})
            for mode in MODES[framework]:
                for gradient in (False, True):
                    case = ops.Case(name, framework, mode, 10**6, 0.01, gradient=gradient)
                    print(ops.line(ops.measure(case, world, 21)), flush=True)
            ops.OPERATIONS[name] = plain


if __name__ == "__main__":
    main()
