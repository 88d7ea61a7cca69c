"""Run one of the measurements: ``python benchmarks NAME [OPTIONS]``; without a name, list them."""

import ast
import sys
from pathlib import Path
from runpy import run_path

PROGRAMS = {
    file.stem: file
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py"))
    if 'if __name__ == "__main__":' in file.read_text()
}


def listed():
    """Return a line for each measurement: its name, and what it says of itself."""
    for name, file in PROGRAMS.items():
        text = ast.get_docstring(ast.parse(file.read_text()))
        yield f"{name:24}{text.splitlines()[0].partition(':')[0].rstrip('.')}"


def main():
    """Run what is asked for, with the options that follow."""
    name = sys.argv[1] if len(sys.argv) > 1 else None
    if name not in PROGRAMS:
        print("\n".join(listed()))
        return 0 if name in {None, "-h", "--help"} else f"expected one of these, got {name}"
    sys.argv[:2] = [str(PROGRAMS[name])]
    run_path(str(PROGRAMS[name]), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
