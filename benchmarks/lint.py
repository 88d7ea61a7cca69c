"""
How long `safeops lint` takes: ``python benchmarks/lint.py FOLDER``.

Runs lint on 1,000 files of Python in a folder, in one process on one core, and prints its CPU time
beside the CPU time of ruff and flake8, if they are installed. Exit code 1 above 20 s.
"""

import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from options import parsed

BAR = 20.0  # seconds of one core
COUNT = 1000
COMMANDS = {
    "safeops lint": ("safeops", "lint"),
    "ruff check": ("ruff", "check", "--no-cache", "--isolated", "--quiet"),
    "flake8": ("flake8", "--jobs=1", "--isolated", "--quiet"),
}


def files_in(folder):
    """Return files of Python, evenly drawn from all that a folder has."""
    every = sorted(str(file) for file in Path(folder).rglob("*.py"))
    step = max(1, len(every) // COUNT)
    return every[::step][:COUNT]


def seconds(command, files):
    """Return the processor time of a command on files."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(  # noqa: S603  (commands of ours)
        [sys.executable, "-m", *command, *files],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        env=os.environ | {"RAYON_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    """Print the table."""
    files = files_in(parsed(__doc__, quick=False, folder={}).folder)
    lines = sum(Path(file).read_bytes().count(b"\n") for file in files)
    print(f"{len(files)} files, {lines} lines\n\n| command | seconds |\n| --- | --- |")
    ours = 0.0
    for name, command in COMMANDS.items():
        if find_spec(command[0]) is None:
            continue
        taken = seconds(command, files)
        ours = taken if command[0] == "safeops" else ours
        print(f"| {name} | {taken:.1f} |")
    return int(ours > BAR)


if __name__ == "__main__":
    sys.exit(main())
