"""The launch: from a grid of one to three dimensions to one block a core that takes turns.

    for turn in range(ceil(total / cores)):
        block = turn * cores + core
        if block < total: the kernel, its indices taken apart from block

The turns are annotated for multi-buffering: loads of the next turn then overlap the work of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monotile.targets.ascendc.tir import Refused, flat, product, sequence, tirx

DEFAULT_THREADS = [128, 1, 1]
_THREADS = "tl.launch_threads"


@dataclass
class Launch:
    """What a PrimFunc's outer statements say. ``block`` is the kernel's own block, ``before`` runs ahead of it."""

    before: list[Any]
    grid: list[tuple[Any, Any]]      # (index variable, extent), the fastest first
    binding: Any
    block: Any
    threads: int
    annotations: dict[str, Any]


def read_launch(func: Any) -> Launch:
    """Take a PrimFunc apart. Raises Refused for launches that no kernel here makes."""
    root = func.body.block
    *before, node = flat(root.body)
    if not isinstance(node, tirx.For) or node.thread_binding is None:
        raise Refused("a kernel needs exactly one T.Kernel", node)
    binding, grid = node.thread_binding, []
    while isinstance(node, tirx.For) and node.kind == tirx.ForKind.THREAD_BINDING:
        grid.append((node.loop_var, node.extent))
        node = node.body
    *bindings, realize = flat(node)   # the bindings name thread indices, which tile-level sources do not use
    for each in bindings:
        if not isinstance(each, tirx.Bind):
            raise Refused("a statement outside of the kernel's block", each)
    annotations = dict(realize.block.annotations)
    threads = [int(n) for n in annotations.pop(_THREADS, DEFAULT_THREADS)]
    if any("cluster" in key for key in annotations):
        raise Refused("thread block clusters are not lowered")
    return Launch(before, grid, binding, realize.block, product(threads), annotations)


def write_launch(func: Any, launch: Launch, body: list[Any], buffers: list[Any], cores: int, stages: int) -> Any:
    """The PrimFunc with a new body; ``cores`` blocks, each taking turns with ``stages`` tiles in flight."""
    core, turn, zero = tirx.Var("core", "int32"), tirx.Var("turn", "int32"), tirx.IntImm("int32", 0)
    # A variable and no name: later passes would copy the sum into every index and condition, and prove things about it,
    # which took half of lowering's time.
    kept = tirx.decl_buffer((1,), "int32", "block", scope="local.var")
    block = tirx.BufferLoad(kept, [zero])
    total = product(extent for _, extent in launch.grid)
    indices = _indices(launch.grid, block)
    work = sequence([tirx.BufferStore(kept, turn * cores + core, [zero]),
                     tirx.IfThenElse(block < total, sequence([*indices, *body]), None)])
    turns = tirx.For(turn, 0, tirx.floordiv(total + (cores - 1), cores), tirx.ForKind.SERIAL, work,
                     annotations={"num_stages": tirx.IntImm("int32", stages)} if stages > 1 else {})
    inner = tirx.SBlock([], [], [], "tilelang_root", turns, None, [*buffers, kept], [], launch.annotations)
    outer = tirx.For(core, 0, tirx.IntImm("int32", cores), tirx.ForKind.THREAD_BINDING,
                     tirx.SBlockRealize([], True, inner), thread_binding=launch.binding)
    root = func.body.block
    new = tirx.SBlock(root.iter_vars, root.reads, root.writes, root.name_hint, sequence([*launch.before, outer]),
                      root.init, root.alloc_buffers, root.match_buffers, root.annotations)
    return tirx.PrimFunc(func.params, tirx.SBlockRealize([], True, new), func.ret_type, func.buffer_map, func.attrs)


def _indices(grid: list[tuple[Any, Any]], block: Any) -> list[Any]:
    """Each grid index from the flat block, the first fastest.

    Divisors known when lowering are divided with floor, others with truncation (equal here, as nothing is negative):
    only so does the bounds analysis keep up.
    """
    found, divisor, known = [], None, True
    for position, (variable, extent) in enumerate(grid):
        last = position == len(grid) - 1
        rest = block if divisor is None else (tirx.floordiv if known else tirx.truncdiv)(block, divisor)
        value = rest if last else (tirx.floormod if isinstance(extent, tirx.IntImm) else tirx.truncmod)(rest, extent)
        found.append(tirx.Bind(variable, value))
        divisor = extent if divisor is None else divisor * extent
        known = known and isinstance(extent, tirx.IntImm)
    return found
