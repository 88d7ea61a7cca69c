"""Lines of the user's program, and whether a frame belongs to the user."""

import linecache
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from sysconfig import get_path
from types import CodeType, FrameType
from typing import TypeAlias

# Frames in these folders are not the user's. `_cli/demo` is not among them: `explain` runs on it.
LIBRARIES = (
    "array_api_compat",
    "equinox",
    "flax",
    "haiku",
    "jax",
    "jaxlib",
    "keras",
    "numpy",
    "optax",
    "safeops",
    "tensorflow",
    "torch",
    "tf_keras",
)
PROGRAMS_OF_OURS = ("_cli/demo.py",)

Span: TypeAlias = tuple[int, int, int, int]  # line, end of line, column, end of column


@dataclass(frozen=True)
class Location:
    """A line of the user's program; `span` is the expression on it, if known."""

    file: str
    line: int
    source: str = ""
    span: Span | None = None

    def __str__(self) -> str:
        """Return file and line, or the cell of a notebook and the line."""
        in_notebook = any(part.startswith("ipykernel") for part in Path(self.file).parts)
        return f"{'cell' if in_notebook else Path(self.file).name}:{self.line}"


def location(file: str, line: int, span: Span | None = None) -> Location:
    """Return a line with its text; the text is empty if the file does not exist."""
    return Location(file, line, linecache.getline(file, line).strip(), span)


def path_of(file: str | Path) -> str:
    """Return the path of a file, relative to the working directory if it lies below."""
    path, here = Path(file), Path.cwd()
    inside = path.is_absolute() and path.is_relative_to(here)
    return (path.relative_to(here) if inside else path).as_posix()


def column_in(text: str, offset: int) -> int:
    """Return a column in characters, from 1, of an offset in bytes in a line."""
    return len(text.encode()[:offset].decode(errors="replace")) + 1


def definition(code: CodeType) -> Location:
    """Return the line at which a function is defined, below its decorators."""
    lines = range(code.co_firstlineno, code.co_firstlineno + 20)
    first = (location(code.co_filename, line) for line in lines)
    here = location(code.co_filename, code.co_firstlineno)
    return next((x for x in first if x.source.startswith(("def ", "async def "))), here)


@cache
def is_library(file: str) -> bool:
    """Whether a file belongs to a framework, to this package or to Python itself."""
    if file.startswith("<frozen"):
        return True
    path = Path(file)
    ours = _folder("safeops")
    if ours is not None and path in [ours / name for name in PROGRAMS_OF_OURS]:
        return False
    inside = path.parents
    if any(folder in inside for folder in map(_folder, LIBRARIES) if folder):
        return True
    of_python = Path(get_path("stdlib"))
    return of_python in inside and "site-packages" not in path.parts


@cache
def _folder(library: str) -> Path | None:
    module = sys.modules.get(library)
    found = getattr(module, "__spec__", None) or (find_spec(library) if module is None else None)
    return Path(found.origin).parent if found is not None and found.origin else None


def frame_of_user(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from this one outwards, that is in no library."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def location_of(code: CodeType, instruction: int, line: int) -> Location:
    """Return a line of code with the span of the running expression; `instruction` is f_lasti."""
    span = _span(code, instruction // 2)
    return location(code.co_filename, span[0] if span else line, span)


@lru_cache(maxsize=4096)
def _span(code: CodeType, instruction: int) -> Span | None:
    line, end, column, end_column = next(islice(code.co_positions(), instruction, None))
    if line is None or end is None or column is None or end_column is None:
        return None  # Python ran with -X no_debug_ranges
    return line, end, column, end_column
