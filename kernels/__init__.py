"""TileKernels from one TileLang source per kernel, on CUDA and Ascend.

    import monotile
    quantised, scales = monotile.quant.per_token_cast(x, "e4m3", num_per_channels=128)

Where a call runs follows its tensors, ``KERNEL_TARGET`` and :func:`use_target`. Importing probes no device and does
not import TileLang.
"""

from monotile import errors, mhc, modeling, moe, quant, transpose
from monotile.targets.select import Selection, default_device, resolve, use_target
from monotile.targets.tiling import override_tiling

__all__ = [
    "Selection",
    "default_device",
    "errors",
    "mhc",
    "modeling",
    "moe",
    "override_tiling",
    "quant",
    "resolve",
    "transpose",
    "use_target",
]
