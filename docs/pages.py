"""The pages that are made: recipes, the reference, the table of what is tested."""

import inspect
from pathlib import Path
from types import ModuleType

import accuracy_page
import collectives_table
import error_tables
import lint_pages
import masked_classes
import real_table

import derivatives
import private_names
import safeops
import specs
from safeops import _recipes, linalg, rotations, segments
from safeops._cli.recipe import FAMILIES, family_of, functions_of, path_of

DIFFERENTIATED = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
RECIPES = """# Recipes

Each page has one bug, and its cure as code to copy, which runs without safeops.
The tests run every recipe on PyTorch, JAX, TensorFlow and NumPy, and compare it with the function
of the same name in safeops.

Their licence is MIT-0: copy them without asking, and without a notice.

The command line prints the same texts, `--only` the function alone, and several names one module:

```console
python -m safeops recipe --list
python -m safeops recipe safe_log --framework jax
python -m safeops recipe safe_norm safe_log -f jax > _safe.py
```

`safeops.linalg` and `safeops.segments` have no recipes: each framework needs code of its own for
them, which is too long to copy.
Of any other function without a recipe, `python -m safeops recipe NAME` says why it has none."""
SUPPORT = """# What is tested

This page is made from the case tables that the tests run through.
Behind each row and each tick stands a test.

A tick means that these derivatives are exact in that mode: {orders}.
In `fwd-rev`, forward mode runs over reverse mode.
A number points to a note: what is left out, and why, or what only `nox -s exhaustive` tests.
Plain `nox` tests each row in one mode of one framework, drawn by its name.
All modes are tested in seven shares, a share with each change.
On NumPy and on array-api-strict, which have no derivatives, the value is tested in each row.
Each row also runs in float64, float32, float16 and bfloat16, and under the detectors of NaN."""
RETURNS = "For all functions: [what comes back, and errors](returns.md)."
WITHOUT = """## Without a row

These have no formula of their own, or no derivative, and other tests: {names}."""
# The families whose pages show errors of derivatives, and what stands beside them.
MEASURED = {
    "rotations": "",
    "smooth": "`where` over the formula, with the limit at the singular point",
    "radial": "the function over the root of the sum of squares",
}
IN_MODES = """
`rotvec_to_matrix` and `quaternion_to_rotvec` are tested in every mode: eager, compiled,
mapped, as a graph and under XLA.
The others are tested so in PyTorch's eager modes and `vmap`, in `jax.jit` and in eager TensorFlow;
in the other modes only `nox -s exhaustive` tests them.

Vectors at small angles lie along an axis in these tables, so that their directions are not rounded.
In general position [the slopes of angles](../explain/limits.md) have larger errors."""
SPECTRAL = ("the same by the framework's `eigh` or `svd`", error_tables.SPECTRAL, "spectral")
TABLES = (*specs.ROWS, *specs.SLICE_ROWS, *specs.REDUCTION_ROWS)


def write(docs: Path) -> None:
    """Write all pages that are made, each only if it changed."""
    made = {f"recipes/{name}.md": recipe_page(_recipes.read(name)) for name in _recipes.names()}
    made["recipes/index.md"] = recipe_index()
    for module, (page, title) in FAMILIES.items():
        made[f"reference/{page}.md"] = family_page(module, title)
    made["reference/rotations.md"] = module_page(rotations, "Rotations")
    for name, naive in MEASURED.items():
        tables = "\n\n".join(error_tables.sections(functions_of(name), naive))
        made[f"reference/{name}.md"] += f"\n{tables}\n"
    made["reference/rotations.md"] += f"{IN_MODES}\n"
    tables = "\n\n".join(error_tables.sections(linalg.__all__, *SPECTRAL))
    made["reference/linalg.md"] = f"{module_page(linalg, 'Linear algebra')}\n{tables}\n"
    made["reference/segments.md"] = module_page(segments, "Segments")
    made["reference/support.md"] = support_page()
    made |= lint_pages.pages()
    made["reference/masked-classes.md"] = masked_classes.page()
    made["reference/private-names.md"] = private_names.page()
    made["reference/real-models.md"] = real_table.page()
    made["reference/collectives.md"] = collectives_table.page()
    titles = {name: FAMILIES[family_of(name)][1] for name in safeops.__all__}
    made["reference/accuracy.md"] = accuracy_page.write(docs / "reference", titles)
    for name, text in made.items():
        file = docs / name
        file.parent.mkdir(exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def code_block(code: str) -> str:
    """Return code as Markdown."""
    return f"```python\n{code}\n```"


def tabs(code: str, frameworks: list[str]) -> str:
    """Return code in the spelling of each framework, one behind the other."""
    items = []
    for name in frameworks:
        spelled = _recipes.spell(code, name)
        imports = _recipes.imports_of(spelled)
        text = f"{imports}\n\n\n{spelled}" if imports else spelled
        title = _recipes.TITLES[name]
        items.append(f":::{{tab-item}} {title}\n:sync: {name}\n\n{code_block(text)}\n:::")
    body = "\n\n".join(items)
    return f"::::{{tab-set}}\n:sync-group: framework\n\n{body}\n::::"


def recipe_page(recipe: _recipes.Recipe) -> str:
    """Return the page of a recipe."""
    page, _ = FAMILIES[family_of(recipe.name)]
    head = (
        f"# {recipe.name}\n\n{recipe.summary}\n\n"
        f"In the library it is {{py:func}}`{path_of(recipe.name)}`, with more options; "
        f"see [its family](../reference/{page}.md). "
        f"`python -m safeops recipe {recipe.name} -f torch` prints this page as a program, "
        f"`--only` the function alone. {_recipes.LICENCE}"
    )
    parts = [head, *(section(recipe.name, *item) for item in recipe.sections.items())]
    return "\n\n".join(parts) + "\n"


def section(name: str, title: str, part: _recipes.Section) -> str:
    """Return a section of a recipe."""
    lines = [f"## {title}", part.text]
    if title == _recipes.AGREEMENT:
        said = f"The tests compare value and gradient with `{path_of(name)}` in these calls."
        lines += [said, code_block(part.code), "`xp` stands for each of the four frameworks."]
    elif part.code:
        spelled = list(_recipes.TITLES) if title != "The bug" else list(DIFFERENTIATED)
        lines.append(tabs(part.code, spelled))
        if title == "The bug":
            lines.append("NumPy has no gradients to show it with.")
    return "\n\n".join(line for line in lines if line)


def recipe_index() -> str:
    """Return the page that lists the recipes by family."""
    parts = [RECIPES]
    for module, (_, title) in FAMILIES.items():
        rows = [f"- [{n}]({n}.md): {_recipes.read(n).summary}" for n in recipes_of(module)]
        toctree = "\n".join(["```{toctree}", ":hidden:", "", *recipes_of(module), "```"])
        parts.append(f"## {title}\n\n" + "\n".join(rows) + f"\n\n{toctree}")
    return "\n\n".join(parts) + "\n"


def recipes_of(module: str) -> list[str]:
    """Return the names of the recipes of a family."""
    return [name for name in functions_of(module) if name in _recipes.names()]


def family_page(module: str, title: str) -> str:
    """Return the reference of a family, made from docstrings."""
    parts = [f"# {title}", RETURNS]
    for name in functions_of(module):
        if name in specs.SYNONYMS:
            said = "\n".join(f"   single: {word}" for word in specs.SYNONYMS[name].split(", "))
            parts.append(f"```{{eval-rst}}\n.. index::\n{said}\n```")
        parts.append(f"```{{eval-rst}}\n.. autofunction:: {path_of(name)}\n```")
        parts += to_copy(name)
    return "\n\n".join(parts) + "\n"


def to_copy(name: str) -> list[str]:
    """Return the line that leads to a recipe, if there is one."""
    there = name in _recipes.names()
    return [f"To copy: [the recipe of {name}](../recipes/{name}.md)."] if there else []


def module_page(module: ModuleType, title: str) -> str:
    """Return the reference of a public module, made from docstrings."""
    names = sorted(module.__all__, key=lambda name: inspect.getsourcelines(vars(module)[name])[1])
    parts = [f"# {title}", inspect.getdoc(module) or "", RETURNS]
    for name in names:
        parts.append(f"```{{eval-rst}}\n.. autofunction:: {module.__name__}.{name}\n```")
        parts += to_copy(name)
    return "\n\n".join(parts) + "\n"


def support_page() -> str:
    """Return the table of what is tested, made from the tables that the tests run through."""
    orders = ", ".join(f"`{order}`" for order in derivatives.ORDERS)
    with_a_row = {row.name.replace(",", "").split()[0] for row in TABLES}
    without = ", ".join(f"`{name}`" for name in sorted(set(safeops.__all__) - with_a_row))
    tables = [support_of(framework, title) for framework, title in DIFFERENTIATED.items()]
    parts = [SUPPORT.format(orders=orders), *tables, WITHOUT.format(names=without)]
    return "\n\n".join(parts) + "\n"


def support_of(framework: str, title: str) -> str:
    """Return the table of one framework, and its exceptions."""
    modes = derivatives.MODES[framework]
    notes: dict[str, int] = {}
    rows = [
        f"| `{row.name}` | {' | '.join(tick(row, framework, mode, notes) for mode in modes)} |"
        for row in TABLES
    ]
    head = f"| operation | {' | '.join(modes)} |\n|{' --- |' * (len(modes) + 1)}"
    table = "\n".join([":::{table}", ":class: support", "", head, *rows, ":::"])
    listed = "\n".join(f"{number}. {note}" for note, number in notes.items())
    return f"## {title}\n\n{table}\n\n{listed}"


def tick(row: object, framework: str, mode: str, notes: dict[str, int]) -> str:
    """Return the mark of an operation in a mode, with the numbers of its exceptions."""
    unsupported = row.unsupported | derivatives.UNSUPPORTED
    found = []
    if (framework, mode) in unsupported:
        skipped, fact = unsupported[framework, mode]
        found.append(f"Without {', '.join(f'`{order}`' for order in skipped)}: {fact}.")
    if derivatives.is_left(row, (framework, mode)):
        fact = derivatives.REPEATED[framework, mode]
        found.append(f"Second derivatives in `nox -s exhaustive` only: {fact}.")
    numbers = [str(notes.setdefault(note, len(notes) + 1)) for note in found]
    return f"✓ ({', '.join(numbers)})" if numbers else "✓"
