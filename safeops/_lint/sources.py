"""The source files: Python and notebooks, with lines as Python counts them."""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from safeops._lint.heuristics import APART

STDIN = Path("-")
SUFFIXES = (".py", ".pyi", ".ipynb")
SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"})
CELL = "# safeops: cell "  # between two cells of a notebook
MAGIC = "pass  # safeops: magic "  # before a line of IPython
UNREAD = "# safeops: unread "  # before each line of a cell that is not Python
OF_PYTHON = re.compile(r"%%(capture|prun|time|timeit)\b")  # cells with these magics are Python
IS_MAGIC = re.compile(r"^\s*([%!?]|\S+\s*=\s*[%!]|.*\?\s*$)")
INDENTS = (1, 2, 4, None)


class UnreadableError(Exception):
    """A file is no text, or a notebook is no notebook."""


@dataclass
class Source:
    """The text of a file, and its original form."""

    path: Path
    text: str
    encoding: str = "utf-8"
    notebook: Any = None  # the cells, as JSON has them
    layout: tuple[int | None, bool] | None = None  # indent, ASCII alone; None: unknown
    end: str = ""  # behind the JSON

    @property
    def is_writable(self) -> bool:
        """Whether the file can be written without other changes than the edits."""
        return self.notebook is None or self.layout is not None

    def place(self, line: int) -> tuple[str, int]:
        """Return the cell of a notebook, and the line in that cell."""
        if self.notebook is None:
            return "", line
        before = lines_of(self.text)[:line]
        start = max(i for i, text in enumerate(before) if text.startswith(CELL))
        return f"cell {before[start].removeprefix(CELL).strip()}", line - start - 1

    def write(self, text: str) -> None:
        """Write a new text into the file; the text of the standard input goes to the output."""
        raw = (text if self.notebook is None else self._as_notebook(text)).encode(self.encoding)
        if self.path == STDIN:
            sys.stdout.buffer.write(raw)
        else:
            self.path.write_bytes(raw)

    def _as_notebook(self, text: str) -> str:
        """Return the JSON of a notebook with other cells."""
        _, *cells = re.split(rf"^{CELL}(\d+)\n", text, flags=re.MULTILINE)
        for number, code in zip(cells[::2], cells[1::2], strict=True):
            cell = self.notebook["cells"][int(number) - 1]
            source = code.removesuffix("\n").replace(MAGIC, "").replace(UNREAD, "")
            cell["source"] = list(lines_of(source)) if isinstance(cell["source"], list) else source
        return as_json(self.notebook, *(self.layout or (1, False))) + self.end


def as_json(notebook: Any, indent: int | None, ascii_only: bool) -> str:  # noqa: FBT001  (a layout)
    """Return the JSON of a notebook in a layout."""
    return json.dumps(notebook, indent=indent, ensure_ascii=ascii_only)


def is_apart(path: Path) -> bool:
    """Whether a module, or a package that contains it, is by its name not differentiated."""
    names, folder = [path.stem], path.absolute().parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return any(APART.search(name) for name in names)


@lru_cache(maxsize=4)  # for the same text with each finding
def lines_of(text: str) -> tuple[str, ...]:
    """Return the lines of a text as Python counts them, with line ends."""
    return tuple(io.StringIO(text, newline="").readlines())


def read(path: Path) -> Source:
    """Return the source of a file."""
    if path != STDIN and not path.is_file():  # a named pipe never ends
        msg = "it is neither a file nor a folder"
        raise UnreadableError(msg)
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        msg = f"no text: {error}"
        raise UnreadableError(msg) from error
    return read_notebook(path, text) if path.suffix == ".ipynb" else Source(path, text, encoding)


def read_notebook(path: Path, text: str) -> Source:
    """Return the code cells of a notebook as one program."""
    try:
        notebook = json.loads(text)
        cells = [(i, x) for i, x in enumerate(notebook["cells"], 1) if x["cell_type"] == "code"]
        code = "".join(f"{CELL}{i}\n{as_python(''.join(x['source']))}\n" for i, x in cells)
    except (ValueError, KeyError, TypeError) as error:
        msg = f"no notebook of format 4: {type(error).__name__} {error}"
        raise UnreadableError(msg) from error
    end = text[len(text.rstrip()) :]
    same = (x for x in product(INDENTS, (False, True)) if text == as_json(notebook, *x) + end)
    return Source(path, code, "utf-8", notebook, next(same, None), end)


def as_python(code: str) -> str:
    """Return the code of a cell, IPython's lines behind `pass`; comments if it is not Python."""
    first, _, rest = code.partition("\n")
    if OF_PYTHON.match(first):
        return f"{commented(first)}\n{as_python(rest)}" if rest else commented(first)
    passed = "\n".join(map(without_magic, code.split("\n")))
    readable = (x for x in (code, passed) if is_python(x) and not first.startswith("%%"))
    return next(readable, commented(code))


def without_magic(line: str) -> str:
    """Return a line of IPython as a `pass` at its place."""
    if not IS_MAGIC.match(line):
        return line
    code = line.lstrip()
    return f"{line.removesuffix(code)}{MAGIC}{code}"


def commented(code: str) -> str:
    return "\n".join(UNREAD + line for line in code.split("\n"))


def is_python(code: str) -> bool:
    if any(line.startswith(CELL) for line in code.split("\n")):
        return False  # it would look like the beginning of another cell
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def files_in(paths: Sequence[Path], exclude: Sequence[str]) -> Iterator[Path]:
    """Yield the files to read, each once: those named, and those in folders of source."""
    seen: set[Path] = set()
    for path in paths:
        inside = (x for x in sorted(path.rglob("*")) if x.suffix in SUFFIXES and x.is_file())
        of_folder = (x for x in inside if not is_of_others(x.relative_to(path)))
        for file in of_folder if path.is_dir() else [path]:
            if file.resolve() not in seen and not is_excluded(file, exclude):
                seen.add(file.resolve())
                yield file


def is_of_others(inside: Path) -> bool:
    """Whether a file is in a folder of generated or installed files."""
    return any(part in SKIPPED or part.startswith(".") for part in inside.parts[:-1])


def is_excluded(file: Path, exclude: Sequence[str]) -> bool:
    """Whether a pattern matches a file, a folder that contains it, or their last names."""
    full = file.absolute()
    here = full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else file
    names = {x.as_posix() for one in (file, full, here) for x in (one, *one.parents)}
    names |= set(here.parts)
    return any(fnmatch(name, pattern.rstrip("/")) for pattern in exclude for name in names)
