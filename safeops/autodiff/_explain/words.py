"""What an operation is called: by the user's own expression if it says more than the framework."""

import ast
import linecache
import textwrap
from functools import lru_cache

from safeops._source.locations import Location
from safeops._source.names import OWN


@lru_cache(maxsize=1024)
def word_of(where: Location | None) -> str:
    """Return what the expression at a location calls its operation; "" if that says nothing."""
    node = None if where is None else _expression(where)
    if isinstance(node, ast.Call):
        function = node.func
        name = getattr(function, "attr", "") or getattr(function, "id", "")
        return OWN.get(str(name), "")
    if isinstance(node, ast.Subscript):
        return "slice" if _is_slice(node.slice) else "index"
    return ""


def _expression(where: Location) -> ast.expr | None:
    """Return the expression that stands at a location."""
    if where.span is None:
        return None
    first, last, start, end = where.span
    lines = [linecache.getline(where.file, i) for i in range(first, last + 1)]
    # Columns count bytes.
    lines[-1] = lines[-1].encode()[:end].decode(errors="replace")
    lines[0] = lines[0].encode()[start:].decode(errors="replace")
    try:
        return ast.parse(f"({textwrap.dedent(''.join(lines))})", mode="eval").body
    except SyntaxError:  # the file has changed since
        return None


def _is_slice(index: ast.expr) -> bool:
    """Whether an index takes a range along each axis that it names."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    ranges = [part for part in parts if isinstance(part, ast.Slice)]
    fixed = [part for part in parts if isinstance(part, ast.Constant) and part.value in (None, ...)]
    return bool(ranges) and len(ranges) + len(fixed) == len(parts)
