"""All rules: each yields the places of a file that have its pattern."""

from collections.abc import Callable, Iterator

from safeops._lint import domains, emptiness, lengths, precision, selections
from safeops._lint.found import File, Found

Rule = Callable[[File], Iterator[Found]]
RULES: tuple[Rule, ...] = (
    selections.dropped,
    selections.overwritten,
    selections.replaced,
    selections.infinite,
    selections.multiplied,
    selections.weighed,
    lengths.padded,
    domains.clipped,
    lengths.rooted,
    lengths.normalised,
    emptiness.averaged,
    emptiness.emptied,
    emptiness.passed,
    precision.vanished,
)


def check(file: File) -> list[Found]:
    """Return the findings of the rules, one for each place, in the order of the text."""
    found: dict[tuple[int, int], Found] = {}
    for rule in RULES:
        for one in rule(file):
            found.setdefault((one.node.lineno, one.node.col_offset), one)
    return [found[key] for key in sorted(found)]
