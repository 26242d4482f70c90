"""torch_npu's side of a launch: the device, the stream, device memory. Imported where an NPU tensor is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monotile.compat.errors import TargetMismatch, ToolchainMissing
from monotile.targets import select
from monotile.targets.spec import Target

if TYPE_CHECKING:
    import torch


def torch_npu() -> Any:
    """The module ``torch_npu.npu``. Raises ToolchainMissing."""
    try:
        import torch_npu
    except ImportError as error:
        raise ToolchainMissing(f"launching on an NPU needs torch_npu, which cannot be imported ({error}): "
                               "pip install 'monotile[npu]' and source CANN's set_env.sh") from error
    return torch_npu.npu


@contextmanager
def on_device_of(tensors: Sequence[torch.Tensor], op: str) -> Iterator[tuple[int, Callable[[], int]]]:
    """(device number, its current stream as asked for); the device is torch_npu's current one inside.

    The stream is a function, to be called last: torch_npu hands operators to a queue of its own, and reading
    ``npu_stream`` waits until that queue has given them all to the stream, so that a launch comes after them.
    Raises TargetMismatch for tensors that are not on an NPU.
    """
    device = tensors[0].device
    if device.type != "npu":
        raise TargetMismatch(f"{op}: a launch on the NPU takes tensors on npu, these are on {device}")
    npu = torch_npu()
    number = npu.current_device() if device.index is None else device.index

    def stream() -> int:
        return int(npu.current_stream().npu_stream)

    if number == npu.current_device():
        yield number, stream
        return
    with npu.device(number):
        yield number, stream


def blocks_of(target: Target, device: int) -> int:
    """Vector cores of the part that a device is, over which a persistent grid is spread."""
    return target.parts.get(select.npu_name(device) or "", target.vector_cores)
