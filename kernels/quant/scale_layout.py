"""How scale factors lie in memory: the one place that sources, oracles and checks take it from.

For a (tokens, hidden) tensor scaled in blocks of (rows, columns) there are M = ceil(tokens / rows) by
K = ceil(hidden / columns) scales. Three layouts:

    row      float32, shape (M, K), contiguous
    column   float32, shape (M, K), strides (1, M rounded up to 4): a column begins on 16 bytes, as TMA wants it
    packed   ue8m0 bytes, four neighbouring columns in one int32, the first in the lowest byte: shape
             (M, ceil(K / 4)), strides (1, M rounded up to 4); bytes past K are 0

A kernel works on the *storage*: a contiguous tensor, which for column and packed is the transpose, padding included.
Padding is never written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ROW, COLUMN, PACKED = "row", "column", "packed"
ALIGN_TOKENS = 4    # 16 bytes of float32 or of int32 words
PACK = 4            # ue8m0 bytes in a word


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def align(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


@dataclass(frozen=True)
class ScaleLayout:
    """A layout of scales for blocks of ``rows`` x ``columns`` elements."""

    kind: str
    rows: int
    columns: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.int32 if self.kind == PACKED else torch.float32

    def grid(self, tokens: int, hidden: int) -> tuple[int, int]:
        """(M, K): scales down and across."""
        return ceil_div(tokens, self.rows), ceil_div(hidden, self.columns)

    def storage_shape(self, tokens: int, hidden: int) -> tuple[int, int]:
        """The shape of the contiguous tensor that a kernel works on."""
        down, across = self.grid(tokens, hidden)
        if self.kind == ROW:
            return down, across
        return (ceil_div(across, PACK) if self.kind == PACKED else across), align(down, ALIGN_TOKENS)

    def allocate(self, tokens: int, hidden: int, device: torch.device) -> torch.Tensor:
        """An uninitialised storage."""
        return torch.empty(self.storage_shape(tokens, hidden), dtype=self.dtype, device=device)

    def user_view(self, storage: torch.Tensor, tokens: int, hidden: int) -> torch.Tensor:
        """What the user sees of a storage: (M, K) or (M, ceil(K / 4))."""
        down, _ = self.grid(tokens, hidden)
        return storage if self.kind == ROW else storage.T[:down]

    def storage_of(self, scales: torch.Tensor, name: str, tokens: int, hidden: int) -> torch.Tensor:
        """The storage behind a user's scales. Raises ValueError where shape or strides are not this layout's."""
        down, across = self.grid(tokens, hidden)
        width = ceil_div(across, PACK) if self.kind == PACKED else across
        if tuple(scales.shape) != (down, width):
            raise ValueError(f"{name} must have shape {(down, width)} for {tokens} x {hidden} in blocks of "
                             f"{self.rows} x {self.columns}, got {tuple(scales.shape)}")
        if self.kind == ROW:
            return scales
        if scales.numel() == 0:   # its strides say nothing
            return scales.new_empty((width, down))
        pitch = scales.stride(1) if width > 1 else align(down, ALIGN_TOKENS)
        reaches = scales.untyped_storage().nbytes() // scales.element_size() - scales.storage_offset()
        if (down > 1 and scales.stride(0) != 1) or pitch < down:
            raise ValueError(f"{name} must be column-major (strides (1, at least {down})), got {scales.stride()}")
        # a last column without its padding is still readable: only its first `down` elements are used
        extent = (width - 1) * pitch + down
        if reaches < extent:
            raise ValueError(f"{name} has strides {scales.stride()} that reach past its storage")
        return scales.as_strided((width, down), (pitch, 1))


def layout_of(scales: torch.Tensor, block: tuple[int, int], name: str = "x_sf") -> ScaleLayout:
    """The layout of scales that come with a quantised tensor, told by dtype and strides."""
    if scales.dim() != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(scales.shape)}")
    if scales.dtype == torch.int32:
        kind = PACKED
    elif scales.dtype != torch.float32:
        raise ValueError(f"{name} must be float32, or int32 (packed ue8m0), got {scales.dtype}")
    else:
        kind = COLUMN if scales.shape[1] > 1 and scales.stride(0) == 1 and scales.stride(1) != 1 else ROW
    if kind == ROW and scales.shape[1] > 1 and scales.stride(1) != 1:
        raise ValueError(f"{name} must be row-major or column-major, got strides {scales.stride()}")
    return ScaleLayout(kind, *block)


def clear_unused(scales: torch.Tensor, layout: ScaleLayout, tokens: int, hidden: int) -> torch.Tensor:
    """Packed scales with the bytes past the last column zeroed, for comparison with a peer that leaves them alone."""
    if layout.kind != PACKED:
        return scales
    _, across = layout.grid(tokens, hidden)
    spare = (-across) % PACK
    if not spare or scales.shape[1] == 0:
        return scales
    cleared = scales.clone()
    cleared[:, -1] &= (1 << (8 * (PACK - spare))) - 1
    return cleared
