"""Quantised arguments: a pair (values, scales) and the blocks that its scales are for, checked once for all ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from monotile import check
from monotile.quant import scale_layout
from monotile.quant.scale_layout import ScaleLayout

QuantTensor = tuple[torch.Tensor, torch.Tensor]

FEWEST_COLUMNS = 16   # of a block: a tile's pieces are whole vectors


@dataclass(frozen=True)
class Quantised:
    """``values`` (tokens, hidden) float8_e4m3fn or (tokens, hidden / 2) int8, rows strided as they like; ``scales`` in
    any layout of `scale_layout`, for blocks of ``block`` = (rows, columns)."""

    values: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]
    layout: ScaleLayout
    tokens: int
    hidden: int

    def storage(self) -> torch.Tensor:
        """The scales as a kernel takes them. Raises ValueError where shape or strides are not the layout's."""
        return self.layout.storage_of(self.scales, "x scales", self.tokens, self.hidden)

    def params(self) -> dict[str, Any]:
        """What a kernel's builder is told of the input. A block that covers the row may be wider: of powers of two."""
        return {"row_stride": row_stride(self.values), "source": str(self.values.dtype).removeprefix("torch."),
                "source_rows": self.layout.rows, "source_columns": power_of_two_from(self.layout.columns),
                "source_scales": self.layout.kind}


def quantised(x: Any, block: Any, *, values: tuple[torch.dtype, ...] = (torch.float8_e4m3fn, torch.int8),
              name: str = "x_block_size") -> Quantised:
    """The checked argument. Raises ValueError for what does not fit."""
    check.require(isinstance(x, tuple) and len(x) == 2, "x",
                  f"a tuple of {len(x)}" if isinstance(x, tuple) else type(x).__name__, "be a pair (values, scales)")
    data, scales = x
    check.tensor(data, "x values", rank=2, dtypes=values)
    check.require(isinstance(block, tuple) and len(block) == 2, name, block, "be (rows, columns) for quantised x")
    rows, columns = block
    hidden = data.shape[1] * (2 if data.dtype == torch.int8 else 1)
    check.require(is_power_of_two(rows), name, block, "have a power of two of rows")
    check.require(columns == hidden or (is_power_of_two(columns) and columns >= FEWEST_COLUMNS), name, block,
                  f"have a power of two of columns, {FEWEST_COLUMNS} or more, or {hidden} (the whole row)")
    check.unit_stride(data, "x")
    check.same_device(x_values=data, x_scales=scales)
    data = data.contiguous() if data.shape[0] > 1 and data.stride(0) == 0 else data   # NPUs read no row many times
    return Quantised(data, scales, block, scale_layout.layout_of(scales, block, "x scales"), data.shape[0], hidden)


def row_stride(x: torch.Tensor) -> int:
    """The distance between rows; of one row or none it does not matter."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


def is_power_of_two(value: object) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def power_of_two_from(value: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << (value - 1).bit_length()
