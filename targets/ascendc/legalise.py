"""The passes in order: a PrimFunc as every backend gets it, made fit for TileLang's Ascend backend.

    grid        one dimension, a block a core that takes turns
    staging     copies through UB by DMA, masks after short loads
    regions     vector functions, and what stays on the scalar core
    simd        regions, or runs of their statements, on vector registers; the others stay SIMT
    placement   registers inside their function, or kept in UB between two

Mode ``simd`` does all of this. Two more are for comparison: ``dma`` has SIMT functions only; ``simt`` makes the whole
body one SIMT function whose threads reach global memory themselves, slow and simple.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from monotile.targets.ascendc.grid import read_launch, write_launch
from monotile.targets.ascendc.placement import Placement
from monotile.targets.ascendc.regions import Regions, Vector, rebuilt, specialised, vectors
from monotile.targets.ascendc.simd import NoSimd, simd_statements
from monotile.targets.ascendc.staging import Staging, in_ub
from monotile.targets.ascendc.tir import Refused, accesses, buffer_bytes, flat, is_call, is_local, renamed, tirx

MODES = ("simd", "dma", "simt")
STAGES = 2             # tiles in flight: the next load, this turn's work
SCRATCH = 8 * 1024     # bytes that lowering takes later, for reductions across warps
TILE_OPERATOR = "tl.tileop."
ASSUME = tirx.op.Op.get("tirx.assume")
TAKEN = ("copy", "fill", "reduce")


@dataclass
class Legal:
    """The PrimFunc, and what became of it."""

    func: Any
    threads: int
    ub_bytes: int                  # of all tiles in flight
    stages: int
    regions: list[str] = field(default_factory=list)   # one line a vector function
    spilled: list[str] = field(default_factory=list)   # registers kept in UB


def legalise(func: Any, cores: int, ub_limit: int, mode: str = "simd", threads: int | None = None) -> Legal:
    """Raises Refused, which names the statement, for what cannot be brought into this form."""
    refuse_operators(func)
    launch = read_launch(func)
    for attempt in (mode, "dma") if mode == "simd" else (mode,):   # SIMD keeps more tiles in UB
        for stages in (STAGES, 1):
            # a tile in flight has its own copy of every buffer; what is left over is for staging
            room = (ub_limit - SCRATCH) // stages
            made = _attempt(func, launch, cores, room, attempt, threads or launch.threads, stages)
            if made is not None:
                return made
    own = sum(buffer_bytes(b) for b in launch.block.alloc_buffers if not is_local(b))
    raise Refused(f"its buffers take {own} bytes of UB and {SCRATCH} are needed beside them, of {ub_limit}; choose a "
                  "smaller tile")


def refuse_operators(func: Any) -> None:
    """Raises Refused for a tile operator that no pass here prepares: T.gemm wants the cube unit's own memories."""
    found = []

    def visit(node: Any) -> None:   # what is raised in here would come out as another type
        if isinstance(node, tirx.Evaluate) and isinstance(node.value, tirx.Call):
            name = str(getattr(node.value.op, "name", ""))
            if name.startswith(TILE_OPERATOR) and name.removeprefix(TILE_OPERATOR) not in TAKEN:
                found.append((name.removeprefix(TILE_OPERATOR), node))

    tirx.stmt_functor.post_order_visit(func.body, visit)
    for name, node in found:
        raise Refused(f"tile operator {name} is not lowered", node)


def _attempt(func: Any, launch: Any, cores: int, room: int, mode: str, threads: int, stages: int) -> Legal | None:
    block = launch.block
    locals_ = {b.data: b for b in block.alloc_buffers if is_local(b)}
    shared = [b for b in block.alloc_buffers if not is_local(b)]
    statements = [s for s in flat(block.body) if not is_call(s, ASSUME)]   # a region of nothing else is refused
    if mode != "simt":
        moved = in_ub(statements, locals_, computed=mode == "simd")
        statements = renamed(statements, moved)
        shared += moved.values()
        locals_ = {data: b for data, b in locals_.items() if b not in moved}
    regions = Regions(locals_, use_dma=mode != "simt")
    for statement in statements:
        if isinstance(statement, tirx.Bind) and not regions.is_uniform(statement.value):
            regions.varying.add(statement.var)
    regions.find_scalars(statements)
    staging = Staging(room - sum(map(buffer_bytes, shared)), regions.is_uniform, launch, statements,
                      use_dma=mode != "simt")
    if staging.room < 0:
        return None
    statements = staging.statements(statements)
    parts = regions.divide(statements)
    if mode == "simd":
        parts = specialised(parts, lambda run: _why_not_simd(run, regions))
    placement = Placement(locals_, regions.scalars, parts, regions.is_uniform)
    buffers = [*shared, *staging.buffers, *placement.spilled]
    used = sum(map(buffer_bytes, buffers))
    if used > room:
        return None
    functions = vectors(parts)
    numbers = {id(each): number for number, each in enumerate(functions)}
    body = rebuilt(parts, lambda each: placement.vector_function(each, threads, numbers[id(each)]))
    # only what is declared in the turn's block exists: the fragments went into their functions
    legal = write_launch(func, launch, body, [*buffers, *placement.outside], cores, stages)
    return Legal(legal, threads, used * stages, stages, [_described(each) for each in functions],
                 [b.name for b in placement.spilled])


def _why_not_simd(statements: list[Any], regions: Regions) -> str | None:
    try:
        simd_statements(statements, regions.is_uniform)
    except NoSimd as reason:
        return str(reason)
    return None


def _described(each: Vector) -> str:
    written = sorted({str(b.name) for b in accesses(list(each.statements)).writes.values()})
    why = f" ({each.why})" if each.why else ""
    return f"{'SIMD' if each.simd else 'SIMT'}: {len(each.statements)} statements, writes " \
           f"{', '.join(written) or 'nothing'}{why}"
