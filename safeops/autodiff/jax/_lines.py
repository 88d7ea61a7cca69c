"""
Sites: the operation of the user's program, and its line, from which an equation of JAX comes.

A function runs under a trace that gives each operation a name scope of its own. JAX keeps scopes
through differentiation and transposition, also in the bodies of loops and calls, so each equation
of a backward pass names the operation whose derivative it is.
"""

import ast
import itertools
import linecache
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from types import CodeType, FrameType, MappingProxyType
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from safeops._backends.jax import private
from safeops._backends.jax.bodies import Program, bodies_in, closed, constants, opened
from safeops._backends.jax.private import Call, Passing, Shards
from safeops._core.types import Array
from safeops._source.locations import Location, is_library, location_of
from safeops._source.names import IN_JAX, OWN
from safeops.autodiff._explain.evidence import Site

# Functions of `shard_map` as maps over the axes of their mesh, whose operations can be looked at.
#
# A map with a name for its axis has the collectives that a mesh has, and runs on one device.


def as_map(shards: Shards, f: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return what a `shard_map` computes, by what it is and its function for one device."""
    sizes = dict(shards.mesh.shape)
    names = [name for name in sizes if name in shards.names]
    into = [names_in(spec) for spec in shards.into]
    out_of = [names_in(spec) for spec in shards.out_of]
    for name in reversed(names):
        places = tuple(0 if any(name in some for some in given) else None for given in into)
        f = jax.vmap(f, places, axis_name=name, axis_size=sizes[name])

    def run(*args: Any) -> list[Any]:
        parts = [split(x, given, names, sizes) for x, given in zip(args, into, strict=True)]
        outs = f(*parts)
        return [joined(y, given, names) for y, given in zip(outs, out_of, strict=True)]

    return run


def names_in(spec: Any) -> list[tuple[str, ...]]:
    """Return the names of the mesh by which each axis of an array is split."""
    return [() if x is None else (x,) if isinstance(x, str) else tuple(x) for x in spec]


def split(
    x: Array, given: Sequence[tuple[str, ...]], names: Sequence[str], sizes: Mapping[str, int]
) -> Array:
    """Return an array with a leading axis for each name by which it is split."""
    shape: list[int] = []
    at: dict[str, int] = {}
    for size, some in zip(x.shape, (*given, *[()] * x.ndim), strict=False):
        for name in some:
            at[name] = len(shape)
            shape.append(sizes[name])
            size //= sizes[name]  # noqa: PLW2901  (what is left of the axis)
        shape.append(size)
    first = [at[name] for name in names if name in at]
    rest = [i for i in range(len(shape)) if i not in first]
    return x.reshape(shape).transpose(*first, *rest)


def joined(x: Array, given: Sequence[tuple[str, ...]], names: Sequence[str]) -> Array:
    """Return a result without its leading axes; what is not split is the same on each device."""
    used = [name for some in given for name in some]
    x = x[tuple(slice(None) if name in used else 0 for name in names)]
    left = [name for name in names if name in used]
    order: list[int] = []
    shape: list[int] = []
    for i, size in enumerate(x.shape[len(left) :]):
        some = given[i] if i < len(given) else ()
        order += [*(left.index(name) for name in some), len(left) + i]
        for name in some:
            size *= x.shape[left.index(name)]  # noqa: PLW2901  (the axis as a whole)
        shape.append(size)
    return x.transpose(order).reshape(shape)


SCOPE = re.compile(r"safeops-site-(\d+)-(\d+)")
CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "eval_jaxpr")
RETYPED = ("pvary", "pcast", "reshard")  # they change types of `shard_map` alone

Code: TypeAlias = tuple[CodeType, int, int]  # code, byte offset, line


class Sites:
    """The sites of a program, by their numbers."""

    def __init__(self) -> None:
        self.every: list[Site] = []
        self.number: dict[Site, int] = {}
        self.runs = itertools.count()

    def scope(self, site: Site) -> Any:
        """Return the name scope of a site."""
        if site not in self.number:
            self.number[site] = len(self.every)
            self.every.append(site)
        return jax.named_scope(f"safeops-site-{self.number[site]}-{next(self.runs)}")

    def of(self, eqn: JaxprEqn, otherwise: tuple[Site, int]) -> tuple[Site, int]:
        """Return the site of an equation, and the number of its run."""
        found = SCOPE.findall(private.scope_of(eqn))
        return (self.every[int(found[-1][0])], int(found[-1][1])) if found else otherwise


# Where an operation ran that runs again, from a record.
PLACE: ContextVar[list[Code] | None] = ContextVar("place", default=None)
CALLER: ContextVar[str] = ContextVar("caller", default="")


@contextmanager
def replaying_at(codes: list[Code], caller: str = "") -> Iterator[None]:
    """Context in which operations have the lines that they had when they ran before."""
    tokens = PLACE.set(codes), CALLER.set(caller)
    try:
        yield
    finally:
        PLACE.reset(tokens[0])
        CALLER.reset(tokens[1])


def codes_here() -> list[Code]:
    """Return the running frames of the user's functions, the innermost first."""
    if (codes := PLACE.get()) is not None:
        return codes
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (its name, and documented)
    codes = []
    while frame is not None:
        codes.append((frame.f_code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return _of_user(codes)


def current_site(operation: str, params: Mapping[str, Any] = MappingProxyType({})) -> Site:
    """Return the site of the running line of Python."""
    return Site(operation, *_place(codes_here()), CALLER.get() or _called(params))


def site_in_body(eqn: JaxprEqn, body: Jaxpr, outer: Site) -> Site:
    """Return the site of an equation in the body of an operation."""
    own, name = _of_user(_of_body(private.codes_of(eqn), body)), eqn.primitive.name
    if not own:
        return Site(name, outer.where, outer.path, outer.caller or _called(eqn.params))
    return Site(name, *_place(own, outer.path), _called(eqn.params))


def _place(codes: list[Code], path: tuple[Any, ...] = ()) -> tuple[Location | None, Any]:
    """Return the line of the user's innermost function, and the path of calls to it."""
    return location_of(*codes[0]) if codes else None, (*path, *codes)


def _called(params: Mapping[str, Any]) -> str:
    """Return the name of the library function that an operation calls; "" for the user's."""
    bodies = bodies_in(params)
    file, _ = private.place_of(bodies[0]) if bodies else (None, 0)
    return private.name_of_call(params).strip("_") if file and is_library(file) else ""


def _of_user(codes: Sequence[Code]) -> list[Code]:
    """Return the frames of the user's functions, the innermost first."""
    return [code for code in codes if not is_library(code[0].co_filename)]


def _of_body(codes: list[Code], body: Jaxpr) -> list[Code]:
    """Return the frames that belong to a body."""
    # Before JAX 0.10 the frames of whoever traced the body follow, which may be another call.
    start = private.place_of(body)
    for i, (code, *_) in enumerate(codes):
        if (code.co_filename, code.co_firstlineno) == start:
            return codes[: i + 1]
    return codes


def word_for(f: Any) -> str:
    """Return the name of a function with a derivative rule of its own."""
    return getattr(f, "__name__", "custom").strip("_<>")


def eval_jaxpr_with(
    program: Program, args: Sequence[Any], run: Callable[[JaxprEqn, list[Any]], Sequence[Any]]
) -> list[Any]:
    """Return the results of a program, each of whose equations is run by a function."""
    jaxpr = opened(program)
    given = zip((*jaxpr.constvars, *jaxpr.invars), (*constants(program), *args), strict=True)
    known: dict[Any, Any] = dict(given)
    left = Counter(x for x in jaxpr.outvars if not isinstance(x, Literal))
    for eqn in jaxpr.eqns:
        for x in eqn.invars:
            if not isinstance(x, Literal):
                left[x] += 1

    def read(atoms: Sequence[Any]) -> list[Any]:
        found = []
        for x in atoms:
            if isinstance(x, Literal):
                found.append(x.val)
            else:
                left[x] -= 1  # what nothing reads any more is let go
                found.append(known[x] if left[x] else known.pop(x))
        return found

    for eqn in jaxpr.eqns:
        outs = run(eqn, read(eqn.invars))
        for x, y in zip(eqn.outvars, outs, strict=True):
            if left[x]:
                known[x] = y  # noqa: PERF403  (a comprehension is a call, here of each equation)
    return read(jaxpr.outvars)


def map_of(
    eqn: JaxprEqn, args: Sequence[Any], over: Callable[[Any], Passing]
) -> list[Array] | None:
    """Run a `shard_map` as a map, under a trace; return None if it cannot be one."""
    shards = private.shards_of(eqn.params)
    try:
        return private.traced(as_map(shards, _of_device(closed(shards.body))), over)(*args)
    except Exception:  # noqa: BLE001  (a collective that a map lacks, in words of its own)
        return None


def mapped(call: Call, args: Any, over: Callable[[Any], Passing], whole: Any) -> Any:
    """Run a `shard_map` that runs now as a map; return the results as JAX packs them."""
    again = call.without_types().again
    with suppress(Exception):  # what only runs with the types of its mesh
        program = jax.make_jaxpr(lambda *args: list(again(*args)))(*args)
        (eqn,) = (eqn for eqn in opened(program).eqns if eqn.primitive.name == "shard_map")
        outs = map_of(eqn, args, over)
        return whole if outs is None else private.repacked(whole, outs)
    return whole


def _of_device(
    program: Program, outer: Sequence[Code] = (), caller: str = ""
) -> Callable[..., list[Any]]:
    """Return the body of a `shard_map` as a function, each operation with its line."""

    def run(eqn: JaxprEqn, ins: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        codes = _of_user(_of_body(private.codes_of(eqn), opened(program))) or list(outer)
        # A number in the program has the mesh in its type.
        pairs = zip(ins, eqn.invars, strict=True)
        ins = [np.asarray(x) if isinstance(atom, Literal) else x for x, atom in pairs]
        if name in RETYPED:
            return ins
        if name in CALLS:
            body = private.body_of_call(eqn.params)
            return _of_device(body, codes, caller or _called(eqn.params))(*ins)
        with replaying_at(codes, caller):
            if name == "psum_invariant":
                return [lax.psum(x, private.axes_of_sum(eqn.params)) for x in ins]
            return _of_scan(eqn.params, ins, codes) if name == "scan" else private.plain(eqn, ins)

    return lambda *args: eval_jaxpr_with(program, args, run)


def _of_scan(params: Mapping[str, Any], ins: Sequence[Any], outer: Sequence[Code]) -> list[Any]:
    """Run a scan, whose body has no types of a mesh then; its operations have its line."""
    loop = private.scan_of(params)
    fixed, start, xs = loop.parts(ins)
    body = _of_device(loop.body, outer)

    def step(carry: Any, xs: Any) -> Any:
        outs = body(*fixed, *carry, *xs)
        return outs[: loop.carried], outs[loop.carried :]

    last, ys = lax.scan(step, start, xs, length=loop.length, reverse=loop.reverse)
    return [*last, *ys]


def count_of(jaxpr: Jaxpr) -> int:
    """Return the number of operations in a program and in its bodies."""
    return sum(1 + sum(map(count_of, bodies_in(eqn.params))) for eqn in jaxpr.eqns)


def numbers_of(x: Any) -> np.ndarray | None:
    """Return the numbers of a value; None if it cannot be infinite."""
    x = private.primal_of(x)
    dtype = getattr(x, "dtype", None) or np.result_type(x)
    return np.asarray(x) if jax.dtypes.issubdtype(dtype, np.inexact) else None


def named(site: Site) -> str:
    """Return the name of an operation, as in the array API standard."""
    word = word_of(site.where) or OWN.get(site.caller, "")
    return word or IN_JAX.get(site.operation, site.operation)


# What an operation is called: by the user's own expression if it says more than the framework.


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
