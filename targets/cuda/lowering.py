"""TileLang's own lowering to CUDA text, and how the result is launched.

The text ends with one comment line in JSON that says how to launch it, so that the text alone is enough to compile,
to cache and to call a kernel.

A kernel is lowered in one of two forms. ``aligned`` tells TileLang that every dynamic row stride is a multiple of 16
bytes, so that accesses become vectors of up to 16 bytes. ``unaligned`` promises nothing and has no vectors: it takes
any strides and any start address, slower. The values they compute are the same.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from monotile.compat.errors import LoweringError
from monotile.targets import sizes
from monotile.targets.backend import Source, signature
from monotile.targets.spec import Target

VECTOR_BYTES = 16   # CUDA's widest access to global memory
SHARED_LIMIT = 227 * 1024   # of one block, compute capability 9.0
THREADS_LIMIT = 1024

# Each with its reason. Part of the cache's key.
PASS_CONFIGS: dict[str, Any] = {
    # Every kernel here is bound by memory: dedicating warps to copies costs occupancy and gains nothing.
    "tl.disable_warp_specialized": True,
    # Descriptors for the copy engine would have to be encoded on the host for each call's addresses and sizes.
    "tl.disable_tma_lower": True,
    # Sources leave ragged tails of a tile to the bounds checks, on every target.
    "tl.disable_safe_memory_legalize": False,
    # Approximate division and square roots would break equality with the other targets.
    "tl.enable_fast_math": False,
}
_UNALIGNED_CONFIGS = {"tirx.disable_vectorize": True}
_MARK = "// launch: "
_TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_SHARED = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Launch:
    """How a lowered kernel is called. ``arguments``: ("tensor", i), or ("int32" or "int64", i) for scalar i."""

    kernel: str
    arguments: tuple[tuple[str, int], ...]
    grid: tuple[str, ...]            # expressions of the symbols, x first
    block: tuple[int, int, int]
    shared_bytes: int                # dynamic shared memory
    aligned: tuple[tuple[str, int], ...]   # symbol -> it must be a multiple of this many elements; () if unaligned
    vectors: bool                    # start addresses must be multiples of VECTOR_BYTES


def lower_to_text(func: Any, target: Target, op: str, vectors: bool = True) -> Source:
    """CUDA C++ of a PrimFunc. Raises LoweringError."""
    from tilelang import tvm
    from tilelang.engine.lower import lower

    tensors, scalars = signature(func)
    assumed, units = _assuming(func, _stride_symbols(func) if vectors else [])
    chip = tvm.target.Target({"kind": "cuda", "arch": target.arch})
    configs = PASS_CONFIGS if vectors else {**PASS_CONFIGS, **_UNALIGNED_CONFIGS}
    try:
        with chip, tvm.transform.PassContext(opt_level=3, config=configs):
            lowered = lower(assumed, target=chip, enable_device_compile=False)
    except Exception as error:   # TVM raises its own types; the reader needs the kernel's name and the last line
        raise LoweringError(op, target.name, "emit", _last_line(error)) from error
    refused = _Refusal(op, target)
    launch = _launch(lowered, [t.name for t in tensors], [s.name for s in scalars], units, vectors, refused)
    text = f"{str(lowered.kernel_source).rstrip()}\n{_MARK}{json.dumps(asdict(launch))}\n"
    return Source(text=text, suffix=".cu", name=launch.kernel, tensors=tensors, scalars=scalars)


def launch_of(text: str) -> Launch:
    """How to launch a text of :func:`lower_to_text`."""
    line = text.rstrip().rsplit("\n", 1)[-1]
    if not line.startswith(_MARK):
        raise ValueError("the text does not end with the line that says how to launch it")
    read = json.loads(line.removeprefix(_MARK))
    return Launch(kernel=read["kernel"], arguments=tuple((kind, index) for kind, index in read["arguments"]),
                  grid=tuple(read["grid"]), block=tuple(read["block"]), shared_bytes=read["shared_bytes"],
                  aligned=tuple((name, unit) for name, unit in read["aligned"]), vectors=read["vectors"])


class _Refusal:
    def __init__(self, op: str, target: Target) -> None:
        self.op, self.target = op, target

    def __call__(self, reason: str) -> LoweringError:
        return LoweringError(self.op, self.target.name, "emit", reason)


def _stride_symbols(func: Any) -> list[tuple[Any, int]]:
    """Each symbol in a stride (row-major strides have sizes in them), with the elements that make a vector."""
    from tilelang import tvm

    found: list[tuple[Any, int]] = []
    for parameter in func.params:
        buffer = func.buffer_map[parameter]
        elements = max(1, VECTOR_BYTES * 8 // int(buffer.dtype.bits))

        def visit(node: Any, elements: int = elements) -> None:
            if type(node).__name__ == "Var":
                found.append((node, elements))

        for stride in buffer.strides:
            tvm.tirx.stmt_functor.post_order_visit(stride, visit)
    return found


def _assuming(func: Any, symbols: list[tuple[Any, int]]) -> tuple[Any, dict[str, int]]:
    """The same function under the assumption that symbols are multiples of their units, and the units by name."""
    from tilelang import tvm

    tirx = tvm.tirx
    units: dict[str, int] = {}
    variables: dict[str, Any] = {}
    for symbol, elements in symbols:
        name = str(symbol.name)
        units[name] = math.lcm(units.get(name, 1), elements)
        variables[name] = symbol
    body = func.body
    for name, unit in units.items():
        dtype = variables[name].dtype
        remainder = tirx.FloorMod(variables[name], tirx.IntImm(dtype, unit))
        body = tirx.AttrStmt(tirx.EQ(remainder, tirx.IntImm(dtype, 0)), "tl.assume",
                             f"{name} is a multiple of {unit}", body)
    return (func.with_body(body) if units else func), units


def _launch(lowered: Any, tensors: list[str], scalars: list[str], units: dict[str, int], vectors: bool,
            refused: _Refusal) -> Launch:
    functions = list(lowered.device_mod.functions.items())
    if len(functions) != 1:
        raise refused(f"a kernel needs exactly one T.Kernel, this one has {len(functions)}")
    name, function = str(functions[0][0].name_hint), functions[0][1]
    attributes = function.attrs
    asked = [str(tag) for tag in attributes["tirx.kernel_launch_params"]]
    unknown = [tag for tag in asked if tag not in (*_TAGS, _SHARED)]
    for key in ("cluster_dims", "use_cooperative_groups"):
        if attributes.get(key):
            unknown.append(key)
    if unknown:
        raise refused(f"it must be launched with {', '.join(unknown)}, which is not built")
    extents = {str(tag): extent for tag, extent in attributes["thread_extent"].items()}
    try:
        block = tuple(int(sizes.expression(extents.get(tag, 1))) for tag in _TAGS[3:])
        grid = tuple(sizes.expression(extents[tag]) for tag in _TAGS[:3] if tag in extents)
    except ValueError as error:
        raise refused(f"its grid or block is not made of sizes: {error}") from error
    if math.prod(block) > THREADS_LIMIT:
        raise refused(f"a block of {block} threads is over CUDA's {THREADS_LIMIT}: choose a tiling with fewer")
    shared = int(attributes["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in attributes else 0
    if shared > SHARED_LIMIT:
        raise refused(f"it needs {shared} bytes of shared memory a block, and {refused.target} has {SHARED_LIMIT}: "
                      "choose a smaller tile")
    arguments: list[tuple[str, int]] = []
    for parameter in function.params:
        argument, dtype = str(parameter.name), str(parameter.dtype)
        if dtype == "handle" and argument in tensors:
            arguments.append(("tensor", tensors.index(argument)))
        elif dtype in ("int32", "int64") and argument in scalars:
            arguments.append((dtype, scalars.index(argument)))
        else:
            raise refused(f"the lowered kernel takes {argument} ({dtype}), which is neither a tensor nor a symbol")
    return Launch(name, tuple(arguments), grid, (block[0], block[1], block[2]), shared, tuple(units.items()), vectors)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:400]
