"""SO011: an eps that is 0 in the dtype, or a number that is 1."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from safeops._core.operations import ENDS
from safeops._lint.found import File, Found
from safeops._lint.probes import causes_of
from safeops._lint.terms import Term
from safeops._source.edits import last_word

# The smallest number above 0, and the distance from 1 to the next number below.
HALVES = {"float16": (2.0**-24, 2.0**-11), "bfloat16": (2.0**-133, 2.0**-8)}
WORDS = {"half": "float16", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
WORDS |= {x: x for x in (*HALVES, "double", "float", "float32", "float64")}
# Calls that make, convert or choose a dtype; a dtype elsewhere may only be asked for.
SETTERS = re.compile(
    r"^(as_?tensor|asarray|array|astype|autocast|cast|constant|empty|full|normal|ones|Policy|rand\w*|"
    r"set_default_dtype|set_(global_)?policy|set_dtype_policy|tensor|to|type|uniform|Variable|"
    r"zeros)(_like)?$"
)
SINGULAR = (*ENDS, "div", "pow", "reciprocal")
# Operations whose result autocast of PyTorch leaves in float32.
IN_FLOAT32 = frozenset(
    """
    acos asin cdist cosine_similarity cosh cross_entropy cumsum div exp expm1 log log10 log1p log2
    log_softmax logsumexp norm pow prod reciprocal rsqrt sinh softmax sum tan
    """.split()  # noqa: SIM905  (names read best in a row)
)
CURE = "take an eps from finfo of the dtype, or a safe operation, which needs none"


def vanished(file: File) -> Iterator[Found]:
    """SO011: ``log(x + 1e-12)`` in float16; ``log(1 - clip(p, 1e-6, 1 - 1e-6))`` in bfloat16."""
    dtypes = dtypes_of(file)
    if set().union(*dtypes.values()).isdisjoint(HALVES):
        return
    for term in file.terms(*SINGULAR):
        homes = [file.tree, *filter(is_home, file.above(term.node))]
        named = set().union(*(dtypes.get(x, ()) for x in homes))
        # Where a float32 stands beside it, which of the two is meant is unknown.
        dtype = max(named) if named and named <= HALVES.keys() else ""
        if dtype and file.is_live(term.node, term):
            for part, said in lost_in(causes_of(term)[0], dtype):
                yield Found("SO011", part.node, said, part.node, cure=CURE)


def lost_in(term: Term, dtype: str) -> Iterator[tuple[Term, str]]:
    """Yield the numbers inside an operand that a dtype does not have, and what becomes of them."""
    smallest, below = HALVES[dtype]
    for outer in term.every:
        is_sum = outer.operation == "add"
        is_wide = any(x.operation in IN_FLOAT32 for x in outer.args)
        if outer.operation not in {"maximum", "minimum", "clip"} and not (
            is_sum and outer is term and not is_wide
        ):
            continue
        for part in outer.args:
            is_guess = any(isinstance(x, ast.Name) for x in ast.walk(part.node))
            number, text = None if is_guess else part.value, ast.unparse(part.node)
            if number is not None and 0 < number <= smallest / 2:
                yield part, f"`{text}` is 0 in {dtype}, whose smallest number is {smallest:.1g}"
            elif number is not None and not is_sum and 0 < 1 - number <= below / 2:
                last = f"{1 - below:.4g}"
                yield part, f"`{text}` is 1 in {dtype}, whose last number below 1 is {last}"


def is_home(node: ast.AST) -> bool:
    """Whether a node is a function with a name."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def dtypes_of(file: File) -> dict[ast.AST, set[str]]:
    """Return the dtypes that each function, and the module outside of them, sets."""
    found: dict[ast.AST, set[str]] = defaultdict(set)
    for node in file.order:
        if isinstance(node, ast.Call) and (set_here := dtypes_set(node)):
            found[next(filter(is_home, file.above(node)), file.tree)] |= set_here
    return found


def dtypes_set(call: ast.Call) -> set[str]:
    """Return the dtypes that a call sets."""
    word = last_word(call)
    if word in {"half", "bfloat16", "float", "double"} and isinstance(call.func, ast.Attribute):
        return {WORDS[word]}
    if not SETTERS.search(word):
        return set()
    given = [*call.args, *(k.value for k in call.keywords)]
    words = [getattr(x, "attr", getattr(x, "value", "")) for x in given]
    found = {WORDS[x] for x in words if isinstance(x, str) and x in WORDS}
    if word == "autocast" and not found:
        is_off = any(getattr(x, "value", True) is False for x in given)
        return {"float32" if is_off else "float16"}
    return found
