"""The repair of a line: which expression to replace, and by what."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from safeops._source.dataflow import decides
from safeops._source.edits import (
    Page,
    Rewriting,
    enclosing_wheres,
    expression_at,
    expressions_at,
    page_of,
    rewritten,
    span_of,
)
from safeops._source.locations import Location, location
from safeops._source.rewrites import (
    is_along_axis,
    product_with_log,
    safe_operation,
    safe_where_of,
    softmax_of,
)

if TYPE_CHECKING:
    import ast

    from safeops.autodiff._explain.report import Finding

LOGARITHMS = ("log", "log10", "log1p", "log2")
# What to use where no edit of a line is known, if entries are dropped later.
MASKED = {
    "jax": "safeops.autodiff.jax.grad(f) in place of jax.grad(f)",
    "tensorflow": "safeops.autodiff.tensorflow.GradientTape in place of that of TensorFlow",
    "torch": "safeops.autodiff.torch.backward(loss) in place of loss.backward()",
}


@dataclass(frozen=True)
class Edit:
    """A change of some lines of a program."""

    where: Location
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source of the file after the change."""
        lines = source.splitlines(keepends=True)
        start = self.where.line - 1
        end = start + len(self.old.splitlines())
        if "".join(lines[start:end]).rstrip("\n") != self.old:
            msg = f"expected a source with these lines at {self.where}, got another: {self.old}"
            raise ValueError(msg)
        return "".join([*lines[:start], f"{self.new}\n", *lines[end:]])


@dataclass(frozen=True)
class Repair:
    """What to do: an edit, the import that it needs, and a sentence."""

    edit: Edit | None = None
    imports: str = ""
    text: str = ""


NOTHING = Repair()


@dataclass
class Target:
    """The expression that a repair replaces."""

    file: str
    page: Page
    node: "ast.expr"
    name: str  # the safe function that replaces it
    change: Rewriting
    caveat: str = ""  # what the edit assumes


def repairs_of(findings: Sequence["Finding"], framework: str) -> list[Repair]:
    """Return the repair of each finding; an edit has all changes of its lines."""
    targets = [target_of(finding, framework) for finding in findings]
    every = [target for target in targets if target is not None]
    pairs = zip(findings, targets, strict=True)
    return [repair_of(finding, target, every, framework) for finding, target in pairs]


def target_of(finding: "Finding", framework: str) -> Target | None:
    """Return the expression to replace: at the line of a finding, or where its NaN came in."""
    target = target_at(finding, framework)
    if target is not None or not finding.entered_by:
        return target
    there = replace(finding, where=finding.entered_at, operation=finding.entered_by)
    return target_at(replace(there, nan_operand=False, value="nan"), framework)


def target_at(finding: "Finding", framework: str) -> Target | None:
    """Return the expression to replace: the `where` around an operation, or the operation."""
    where = finding.where
    page = None if where is None else page_of(where.file)
    if page is None or where is None or finding.kind in ("UNKNOWN", "INTERIM"):
        return None
    node = expression_at(page, where, finding.operation)
    if node is None:
        return None
    if finding.kind == "BLOCKED":
        for call in enclosing_wheres(page, node):
            change = safe_where_of(page, call) if is_selection(call, finding) else None
            if change is not None:
                return Target(where.file, page, call, "safe_where", change)
    return operation_target(finding, where.file, page, node, framework)


def is_selection(call: "ast.Call", finding: "Finding") -> bool:
    """Whether a `where` may have dropped the entries, as far as is known."""
    if finding.selection not in ("where", ""):
        return False
    at = finding.selected_at
    if at is None or at.span is None:
        return at is None or call.lineno <= at.line <= span_of(call)[1]
    return at.span == span_of(call)


def operation_target(
    finding: "Finding", file: str, page: Page, node: "ast.expr", framework: str
) -> Target | None:
    """Return the operation as the target, if the program selects the same entries afterwards."""
    caveat, options = "", ""
    whole = product_with_log(page, node)
    # Of a negative number the logarithm is NaN in the product too.
    of_zero = finding.operation == "mul" or finding.what != "nan"
    if whole is not None and of_zero and finding.kind != "BLOCKED":
        return Target(file, page, *whole)
    if finding.nan_operand:  # a safe operation propagates NaN
        if framework == "torch" or not is_along_axis(node):
            return None
        caveat = NO_NAN
    if finding.kind == "BLOCKED" and finding.value != "finite":
        by_value = decides(page, node, finding.selection, finding.selected_at)
        if by_value and (finding.value != "-inf" or finding.operation not in LOGARITHMS):
            return None
        caveat = UNSURE if by_value is None else caveat
        options = ', fill_value=float("-inf")' if by_value else ""
    found = safe_operation(page, node, options)
    if found is None:
        return None
    if found[0] in OVERFLOWING and finding.value in ("", "finite"):
        if finding.value and found[0] != "safe_pow":  # a quotient is not finite at 0
            return None
        caveat += BESIDE
    return Target(file, page, node, *found, caveat)


# At a tiny denominator or a huge base the slope overflows, in these safe functions too.
OVERFLOWING = ("safe_div", "safe_pow", "safe_reciprocal")
BESIDE = "; the edit is for a singular point, not for a slope that overflows beside it"
UNSURE = "; the edit is for a selection that does not look at this value"
# JAX and TensorFlow run a softmax as several operations, which make NaN of a row of -inf.
NO_NAN = "; the edit is for rows without NaN in the input"


def repair_of(
    finding: "Finding", target: Target | None, every: Sequence[Target], framework: str
) -> Repair:
    """Return the repair of one finding."""
    text = WAYS_OUT.get(finding.reason, TEXTS[finding.kind]).format(masked=MASKED[framework])
    if is_one_of_several(finding):
        text += "; no edit, as several operations of this name stand on the line"
    if finding.kind == "BLOCKED" and finding.nan_operand:
        where = f"at {finding.entered_at}" if finding.entered_at else "before this line"
        text = f"leave the NaN out {where}, or {text}"
    if target is None or finding.where is None:
        return Repair(text=softmax_at(finding) or text)
    changes = {id(t.node): t.change for t in every}
    line, old, new = rewritten(target.page, changes, target.node)
    text += target.caveat
    names = sorted({t.name for t in every if f"{t.name}(" in new})
    edit = Edit(location(target.file, line), old, new)
    return Repair(edit, f"from safeops import {', '.join(names)}", text)


def softmax_at(finding: "Finding") -> str:
    """Return a call of safe_softmax for one written out as exponential, sum and division."""
    page = None if finding.where is None else page_of(finding.where.file)
    if page is None or finding.where is None or finding.operation != "sub":
        return ""
    call = softmax_of(page, expression_at(page, finding.where, "sub"))
    return (
        call
        and f"{call} in place of exponential, sum and division; from safeops import safe_softmax"
    )


def is_one_of_several(finding: "Finding") -> bool:
    """Whether it is unknown which of equal operations on a line is meant."""
    page = None if finding.where is None else page_of(finding.where.file)
    if page is None or finding.where is None or finding.kind in ("UNKNOWN", "INTERIM"):
        return False
    return len(expressions_at(page, finding.where, finding.operation)) > 1


TEXTS = {
    "BLOCKED": "{masked}",
    "GENUINE": "keep these entries out: this operation has no finite derivative here; "
    "at a singular point a safe one chooses it",
    "FORWARD": "keep these entries out, by safe_where or before the program",
    "INTERIM": "",
    "UNKNOWN": "drop the entries before this operation, or write it with others",
}
# The sentence of a reason that has one of its own.
WAYS_OUT = {
    "backward": "mend its backward pass, or call safe operations in its place",
    "again": "make the step a function of its arguments and of these random states",
    "kernel": "write its backward pass with operations of PyTorch",
    "apart": "take collectives and callbacks out of the loss, and explain what is left",
    "loop": "make the loop shorter, or pass a larger limit",
    "mkldnn": "run it in torch.backends.mkldnn.flags(enabled=False)",
    "lost": "explain a part of it, or report the program: it should have been found",
    "once": "use checkpoints with use_reentrant=False, and functions that keep what they save",
    "shards": "run the step in one process, with the batch and the parameters of this one",
    "rank": "read the report of that rank",
    "scale": "pass scaler=scaler to guard, which leaves such steps to the scaler",
    "script": "run it in torch.jit.optimized_execution(False)",
    "tape": "put the step into a tf.function, in which a tape leaves a graph",
    "sparse": "run it on dense tensors, by to_dense()",
}
