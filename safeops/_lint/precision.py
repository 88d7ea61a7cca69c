"""SO011: an eps that is 0 in the dtype, or a number that is 1."""

import ast
import re
from collections.abc import Iterator

from safeops._lint.found import File, Found
from safeops._lint.probes import causes_of
from safeops._lint.scopes import Function, last_word
from safeops._lint.terms import Term, folded

# The smallest number above 0, and the distance from 1 to the next number below.
HALVES = {"float16": (2.0**-24, 2.0**-11), "bfloat16": (2.0**-133, 2.0**-8)}
WORDS = {"half": "float16", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
WORDS |= {name: name for name in HALVES}
WIDE = frozenset({"double", "float", "float32", "float64"})
# Calls that make, convert or choose a dtype; a dtype elsewhere may only be asked for.
SETTERS = re.compile(
    r"^(as_?tensor|asarray|array|astype|autocast|cast|constant|empty|full|normal|ones|Policy|rand\w*|"
    r"set_default_dtype|set_(global_)?policy|set_dtype_policy|tensor|to|type|uniform|Variable|"
    r"zeros)(_like)?$"
)
SINGULAR = (
    "acos", "asin", "atanh", "div", "log", "log10", "log1p", "log2", "logit", "pow", "reciprocal",
    "rsqrt", "sqrt",
)  # fmt: skip
# Operations whose result autocast of PyTorch leaves in float32.
IN_FLOAT32 = frozenset(
    """
    acos asin cdist cosine_similarity cosh cross_entropy cumsum div exp expm1 log log10 log1p log2
    log_softmax logsumexp norm pow prod reciprocal rsqrt sinh softmax sum tan
    """.split()  # noqa: SIM905  (names read best in a row)
)


def vanished(file: File) -> Iterator[Found]:
    """SO011: ``log(x + 1e-12)`` in float16; ``log(1 - clip(p, 1e-6, 1 - 1e-6))`` in bfloat16."""
    if not any(HALVES.keys() & set(words) for words in file_dtypes(file).values()):
        return
    for term in file.terms(*SINGULAR):
        framework = file.framework(term)
        operands = causes_of(term)
        dtype = dtype_at(file, term.node) if framework and operands else ""
        if not dtype or not file.is_live(term.node, term):
            continue
        for part, said in lost_in(operands[0], dtype):
            yield Found("SO011", part.node, said, part.node, framework, None, {}, cure=CURE)


CURE = "take an eps from finfo of the dtype, or a safe operation, which needs none"


def lost_in(term: Term, dtype: str) -> Iterator[tuple[Term, str]]:
    """Yield the numbers inside an operand that a dtype does not have, and what becomes of them."""
    smallest, below = HALVES[dtype]
    for outer in term.every:
        if outer.operation in {"maximum", "minimum", "clip"}:
            limits = outer.args
        elif outer.operation == "add" and not any(x.operation in IN_FLOAT32 for x in outer.args):
            limits = outer.args if outer is term else ()
        else:
            continue
        for part in limits:
            number = folded(part.node)
            if number is None:
                continue
            text = ast.unparse(part.node)
            if 0 < number <= smallest / 2:
                yield part, f"`{text}` is 0 in {dtype}, whose smallest number is {smallest:.1g}"
            elif outer.operation != "add" and 0 < 1 - number <= below / 2:
                last = f"{1 - below:.4g}"
                yield part, f"`{text}` is 1 in {dtype}, whose last number below 1 is {last}"


def file_dtypes(file: File) -> dict[ast.AST, set[str]]:
    """Return the dtypes that each function, and the module outside of them, sets."""
    if file.dtypes is None:
        file.dtypes = {}
        for node in file.scopes.order:
            if isinstance(node, ast.Call):
                home = next((x for x in file.scopes.around(node) if is_home(x)), file.tree)
                file.dtypes.setdefault(home, set()).update(dtypes_of(node))
    return file.dtypes


def is_home(node: ast.AST) -> bool:
    """Whether a node is a function with a name."""
    return isinstance(node, Function) and not isinstance(node, ast.Lambda)


def dtypes_of(call: ast.Call) -> Iterator[str]:
    """Yield the dtypes that a call sets."""
    word = last_word(call)
    if word in {"half", "bfloat16", "float", "double"} and isinstance(call.func, ast.Attribute):
        yield WORDS.get(word, word)
    if not SETTERS.search(word):
        return
    given = [*call.args, *(k.value for k in call.keywords)]
    words = [getattr(x, "attr", getattr(x, "value", "")) for x in given]
    words = [x for x in words if isinstance(x, str)]
    if word == "autocast" and not set(words) & (WORDS.keys() | WIDE):
        is_off = any(getattr(x, "value", True) is False for x in given)
        words.append("float32" if is_off else "float16")
    yield from (WORDS.get(x, x) for x in words if x in WORDS or x in WIDE)


def dtype_at(file: File, node: ast.AST) -> str:
    """Return the half precision of a place; "" if there is none, or float32 beside it."""
    homes = [x for x in file.scopes.around(node) if is_home(x)]
    every = file_dtypes(file)
    found = set().union(*(every.get(x, set()) for x in (*homes, file.tree)))
    halves = sorted(found & HALVES.keys())
    return halves[-1] if halves and not found & WIDE else ""
