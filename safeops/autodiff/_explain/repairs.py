"""The repair of a line: which expression to replace, and by what."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from safeops._source.dataflow import decides
from safeops._source.edits import (
    Edits,
    Page,
    enclosing_wheres,
    expression_at,
    expressions_at,
    is_along_axis,
    page_of,
    span_of,
)
from safeops._source.locations import is_library, location
from safeops._source.patterns import whole_of
from safeops._source.rewrites import (
    LOGARITHMS,
    Refused,
    Rewrite,
    fill_of,
    product_with_log,
    rewrite_of,
    safe_where_of,
    softmax_of,
)
from safeops.autodiff._explain.finding import CAVEAT, Edit, Finding, Repair

if TYPE_CHECKING:
    import ast


# What to use where no edit of a line is known, if entries are dropped later.
MASKED = {
    "jax": "safeops.autodiff.jax.grad(f) in place of jax.grad(f)",
    "tensorflow": "safeops.autodiff.tensorflow.GradientTape in place of that of TensorFlow",
    "torch": "safeops.autodiff.torch.backward(loss) in place of loss.backward()",
}

# Likewise, where another package takes the gradient of the program, by the module that does so.
IN_FIT = 'GuardCallback(on_nan="mask") of safeops.integrations.{} among the callbacks'
AROUND = "{} around the step"
OF_OTHERS = {
    "accelerate": AROUND.format("safeops.autodiff.torch.masked_backward()"),
    "equinox": AROUND.format("safeops.autodiff.jax.masked_grad()"),
    "flax": AROUND.format("safeops.autodiff.jax.masked_grad()"),
    "keras": IN_FIT.format("keras"),
    "lightning.fabric": AROUND.format("safeops.autodiff.torch.masked_backward()"),
    "lightning.pytorch": IN_FIT.format("lightning"),
    "pytorch_lightning": IN_FIT.format("lightning"),
    "transformers": 'safeops.integrations.transformers.guard(trainer, on_nan="mask")',
}


def masked_by_others(frame: FrameType | None) -> str:
    """Return how to take a masked gradient where a frame takes one; "" if it is the user's."""
    found = ""
    while frame is not None:
        module = f"{frame.f_globals.get('__name__', '')}."
        known = [text for name, text in OF_OTHERS.items() if module.startswith(f"{name}.")]
        if not known and not is_library(frame.f_code.co_filename):
            break
        found, frame = known[0] if known else found, frame.f_back  # the outermost decides
    return found


@dataclass(frozen=True)
class Target:
    """The expression that a repair replaces."""

    file: str
    page: Page
    rewrite: Rewrite


def repairs_of(findings: Sequence[Finding], framework: str) -> list[Repair]:
    """Return the repair of each finding; an edit has all changes of its lines."""
    targets = [target_of(finding, framework) for finding in findings]
    every = [target for target in targets if isinstance(target, Target)]
    pairs = zip(findings, targets, strict=True)
    return [repair_of(finding, target, every, framework) for finding, target in pairs]


def target_of(finding: Finding, framework: str) -> Target | str:
    """Return what to replace, at the line of a finding or where its NaN came in, or why none."""
    target = target_at(finding, framework)
    if isinstance(target, Target) or not finding.entered_by:
        return target
    there = replace(finding, where=finding.entered_at, operation=finding.entered_by)
    return target_at(replace(there, nan_operand=False, value="nan"), framework) or target


def target_at(finding: Finding, framework: str) -> Target | str:
    """Return the expression to replace, a `where` or an operation, or why none; "" says nothing."""
    where = finding.where
    page = None if where is None else page_of(where.file)
    if page is None or where is None or finding.kind in ("UNKNOWN", "INTERIM"):
        return ""
    nodes = expressions_at(page, where, finding.operation)
    is_dropped = finding.kind == "BLOCKED"
    # Several operations of one name may be parts of one whole, such as a norm.
    wholes = {getattr(whole_of(page, x, is_dropped=is_dropped), "node", None) for x in nodes}
    if len(nodes) > 1 and (None in wholes or len(wholes) > 1):
        return SEVERAL
    if not nodes:
        return ""
    for call in enclosing_wheres(page, nodes[0]) if is_dropped else ():
        whole = safe_where_of(page, call) if is_selection(call, finding) else None
        if whole is not None:
            return Target(where.file, page, whole)
    try:
        rewrite = operation_rewrite(finding, page, nodes[0], framework)
    except Refused as reason:
        return str(reason)
    return "" if rewrite is None else Target(where.file, page, rewrite)


def is_selection(call: "ast.Call", finding: Finding) -> bool:
    """Whether a `where` may have dropped the entries, as far as is known."""
    if finding.selection not in ("where", ""):
        return False
    at = finding.selected_at
    if at is None or at.span is None:
        return at is None or call.lineno <= at.line <= span_of(call)[1]
    return at.span == span_of(call)


def operation_rewrite(
    finding: Finding, page: Page, node: "ast.expr", framework: str
) -> Rewrite | None:
    """Return the safe operation, if the program selects the same entries afterwards."""
    caveat = options = ""
    # Of a negative number the logarithm is NaN in the product too.
    of_zero = finding.operation == "mul" or finding.what != "nan"
    is_dropped = finding.kind == "BLOCKED" or not of_zero
    if not is_dropped and (product := product_with_log(page, node)) is not None:
        return product
    if finding.nan_operand:  # a safe operation propagates NaN
        if framework == "torch" or not is_along_axis(node):
            return None
        caveat = NO_NAN
    if finding.kind == "BLOCKED" and finding.value != "finite":
        by_value = decides(page, node, finding.selection, finding.selected_at)
        caveat = UNSURE if by_value is None else caveat
        filled = option_for(finding, page, node) if by_value else ""
        if filled is None:
            return None
        options = filled
    found = rewrite_of(page, node, options, is_dropped=is_dropped)
    if finding.kind == "FORWARD" and found.name in ("safe_exp", "safe_expm1"):
        raise Refused(OVERFLOW)
    if found.name in OVERFLOWING and finding.value in ("", "finite"):
        # A quotient is not finite at 0, a norm is.
        if finding.value and found.name != "safe_pow" and finding.operation != "norm":
            return None
        caveat += BESIDE
    return replace(found, note=caveat)


def option_for(finding: Finding, page: Page, node: "ast.expr") -> str | None:
    """Return the option by which a selection by value drops the same; None if there is none."""
    if finding.value == "-inf" and finding.operation in LOGARITHMS:
        return ', fill_value=float("-inf")'
    at = finding.selected_at
    selection = None if at is None else expression_at(page, at, finding.selection)
    return fill_of(page, node, selection)


SEVERAL = "several operations of this name stand on the line"
# Of a quotient of two exponentials it would make 0, or 1.
OVERFLOW = (
    "the exponential overflows, and the largest number in its place would be wrong: subtract the "
    "maximum first, as safe_softmax and safe_logsumexp do, or compute in a wider dtype"
)
# At a tiny denominator or a huge base the slope overflows, in these safe functions too.
OVERFLOWING = ("safe_div", "safe_normalize", "safe_pow", "safe_reciprocal")
BESIDE = f"{CAVEAT}a singular point, not for a slope that overflows beside it"
UNSURE = f"{CAVEAT}a selection that does not look at this value"
# JAX and TensorFlow run a softmax as several operations, which make NaN of a row of -inf.
NO_NAN = f"{CAVEAT}rows without NaN in the input"


def repair_of(
    finding: Finding, target: Target | str, every: Sequence[Target], framework: str
) -> Repair:
    """Return the repair of one finding."""
    text = WAYS_OUT.get(finding.reason, TEXTS[finding.kind]).format(masked=MASKED[framework])
    if isinstance(target, str) and target:
        text += f"; no edit: {target}"
    if finding.kind == "BLOCKED" and finding.nan_operand:
        where = f"at {finding.entered_at}" if finding.entered_at else "before this line"
        text = f"leave the NaN out {where}, or {text}"
    if not isinstance(target, Target):
        return Repair(text=softmax_at(finding) or text)
    rewrites = [x.rewrite for x in every]
    edits = Edits(target.page, {id(x.node): x.change for x in rewrites})
    line, old, new = edits.of(target.rewrite.node)
    names = sorted({x.name for x in rewrites if f"{x.name}(" in new})
    edit = Edit(location(target.file, line), old, new)
    return Repair(edit, f"from safeops import {', '.join(names)}", text + target.rewrite.note)


def softmax_at(finding: Finding) -> str:
    """Return a call of safe_softmax for one written out as exponential, sum and division."""
    page = None if finding.where is None else page_of(finding.where.file)
    if page is None or finding.where is None or finding.operation != "sub":
        return ""
    call = softmax_of(page, expression_at(page, finding.where, "sub"))
    return (
        call
        and f"{call} in place of exponential, sum and division; from safeops import safe_softmax"
    )


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
