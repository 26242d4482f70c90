"""AscendC on an NPU: the binary that bisheng made, launched through acl as TileLang's own runtime launches it.

No NPU has run one yet. TileLang's runtime is not used itself: it lowers a PrimFunc once more, where this is to run the
very text that the emulator runs; the calls and their arguments are the same (see acl).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import LoweringError
from monotile.targets import acl, npu
from monotile.targets.ascendc.emulator.host import parameters
from monotile.targets.backend import Source
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch

_KINDS = {"int32_t": "int32", "int64_t": "int64"}


def runner(source: Source, target: Target, code: bytes, blocks: int, dynamic_ub: int,
           op: str) -> Callable[[Sequence[torch.Tensor]], None]:
    """What launches a binary on the current stream of the tensors' NPU.

    The entry's arguments are found by name: TileLang puts the tensors first, each group in an order of its own.
    """
    entry = parameters(source.text)
    unknown = sorted({p.kind for p in entry if not p.is_tensor} - _KINDS.keys())
    if unknown:
        raise LoweringError(op, target.name, "load", f"the entry takes numbers of type {', '.join(unknown)}, and "
                            f"{' and '.join(_KINDS)} are passed")
    function = acl.Function(code, source.name, op, target.name,
                            ["pointer" if p.is_tensor else _KINDS[p.kind] for p in entry], dynamic_ub=dynamic_ub)
    tensor_at = {t.name: position for position, t in enumerate(source.tensors)}
    number_of = {s.name: s for s in source.scalars}
    getters: list[Callable[[Sequence[Any]], int]] = [
        _pointer(tensor_at[p.name]) if p.is_tensor else number_of[p.name].value_from for p in entry]

    def run(tensors: Sequence[torch.Tensor]) -> None:
        values = [get(tensors) for get in getters]
        with npu.on_device_of(tensors, op) as (device, stream):
            function.launch(device, stream(), blocks, values)

    return run


def _pointer(position: int) -> Callable[[Sequence[Any]], int]:
    return lambda tensors: int(tensors[position].data_ptr())
