"""Scripts in processes of their own, as devices and ranks are counted at start."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import safeops

SECONDS = 480  # for a script, quietly 120; a collective that waits for another rank gives up before
HERE = Path(__file__).parent


def checks_of(script):
    """Return the names of the checks of a script, which is not run for that."""
    tree = ast.parse((HERE / script).read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if "check" in map(ast.unparse, f.decorator_list)]


def run(script, *arguments, **environment):
    """Return what a script says of each of its checks: "right", or what is wrong."""
    return together(script, [arguments], **environment)[0]


def together(script, each, **environment):
    """Return what each of several processes of a script says of its checks."""
    # The package under test; a socket listens on the loopback address only.
    path = os.pathsep.join((str(Path(safeops.__file__).parents[1]), str(HERE.parent)))
    env = os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"} | environment
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / script, *map(str, arguments)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in each
    ]
    try:
        ends = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [said(out, err) for out, err in ends]


def said(out, err):
    """Return the lines that a script has written as a dict; what it wrote last if there is none."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"check"')]
    assert lines, err[-3000:]
    return {line["check"]: line["said"] for line in lines}


def say(check, said):
    """Say something of a check, from within a script."""
    sys.stdout.write(json.dumps({"check": check, "said": said}) + "\n")
    sys.stdout.flush()


def answer(check, function):
    """Run a check, and say "right" or what it raises."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  (whatever it is is the answer)
        say(check, f"{type(error).__name__}: {error}"[:2000])
    else:
        say(check, "right")
