"""The names of a file: which framework's function a call means, whatever its import name."""

import ast
from functools import cached_property
from typing import NamedTuple

from safeops._core.operations import OPERATIONS
from safeops._source.edits import Page
from safeops._source.names import NAMED

# The first word of a module's name, and the framework whose functions it has.
FRAMEWORKS = {
    "autograd": "jax",  # HIPS autograd, whose functions JAX took over
    "jax": "jax",
    "keras": "keras",
    "numpy": "numpy",
    "scipy": "numpy",
    "tensorflow": "tensorflow",
    "tf_keras": "tensorflow",
    "torch": "torch",
    "xp": "xp",
}
DIFFERENTIATED = frozenset({"jax", "keras", "tensorflow", "torch", "xp"})
# Usual names of a namespace that is passed in.
NAMESPACES = {"xp": "xp", "xnp": "xp"}
# The one word for each operation: those of `explain`, and those that only lint needs.
WORDS = {name: row.word for name, row in NAMED.items()} | {
    name: word for word, row in OPERATIONS.items() for name in row.names.split()
}
# Methods of arrays that mean the function of the same name.
METHODS = frozenset(
    """
    abs absolute acos acosh add all amax amin any arccos arcsin arctanh asin astype atan2 atanh bool
    byte clamp clamp_max clamp_min clip clone contiguous cos cosh cpu cuda cumsum detach digamma div
    divide double eq erfinv exp expand expand_as expm1 flatten float ge greater gt half int isfinite
    isinf isnan item le lgamma log log10 log1p log2 logical_and logical_not logical_or logit
    logsumexp long lt masked_fill masked_select max maximum mean min minimum mul multiply nan_to_num
    nansum ne neg new_full new_ones new_zeros norm numpy permute pow power prod ravel reciprocal
    relu repeat requires_grad reshape rsqrt sigmoid sign sin sinh softmax sqrt square squeeze std
    sub sum tanh to tolist transpose true_divide type type_as unsqueeze var view view_as where
    """.split()  # noqa: SIM905  (names read best in a row)
)
BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "pow", "range", "round"})


class Called(NamedTuple):
    """A call: the operation, its framework, and its arguments, first the array of a method."""

    operation: str
    framework: str
    args: tuple[ast.expr, ...]
    options: dict[str, ast.expr]


class Names(Page):
    """The modules and functions that a file imports, by their names in the file."""

    @cached_property
    def order(self) -> dict[ast.AST, int]:
        """The nodes, numbered in the order of the text; `parents` come with them."""
        found: dict[ast.AST, int] = {}
        self.parents = {}
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            found[node] = len(found)
            children = list(ast.iter_child_nodes(node))
            self.parents |= dict.fromkeys(children, node)
            stack += reversed(children)
        return found

    @cached_property
    def meant(self) -> dict[str, str]:
        """The full name of each imported name."""
        found = {}
        for node in self.order:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    found[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                module = f"{'.' if node.level else ''}{node.module or ''}"
                found |= {x.asname or x.name: f"{module}.{x.name}" for x in node.names}
        return found

    @cached_property
    def frameworks(self) -> set[str]:
        """The frameworks whose functions the file can call."""
        return {framework_of(name) for name in self.meant.values()} - {""}

    @cached_property
    def home(self) -> str:
        """The framework of array methods: the only one that the file imports, or PyTorch."""
        found = (self.frameworks & DIFFERENTIATED) or self.frameworks
        return "torch" if "torch" in found else min(found, default="xp")

    def full(self, node: ast.expr) -> str:
        """Return the full name of a module or function; "" if it is neither."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        name = node.id if isinstance(node, ast.Name) else ""
        first = self.meant.get(name) or NAMESPACES.get(name, "")
        return ".".join([first, *reversed(words)]) if first else ""

    def called(self, call: ast.Call) -> Called | None:
        """Return the operation that a call of a known framework means."""
        options = {k.arg: k.value for k in call.keywords if k.arg}
        is_open = any(isinstance(x, ast.Starred) for x in call.args)
        f, full = call.func, self.full(call.func)
        if is_open or len(options) < len(call.keywords):
            return None
        if framework := framework_of(full):
            return Called(word_of(full), framework, tuple(call.args), options)
        if isinstance(f, ast.Name) and not full and f.id in BUILTINS:
            return Called(f.id, "python", tuple(call.args), options)
        if isinstance(f, ast.Attribute) and not full and f.attr.removesuffix("_") in METHODS:
            return Called(word_of(f.attr), self.home, (f.value, *call.args), options)
        return None


def word_of(name: str) -> str:
    """Return the one word for an operation."""
    last = name.rpartition(".")[2]
    last = last.removesuffix("_") or last
    return WORDS.get(last, last)


def framework_of(full: str) -> str:
    """Return the framework of a full name; "" if it belongs to none."""
    return FRAMEWORKS.get(full.partition(".")[0], "")
