"""Oracle of quant.per_token_cast in plain PyTorch, float32 throughout."""

from __future__ import annotations

import torch

LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
SMALLEST_AMAX = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """float32 to float8_e4m3fn: nearest even, saturating, NaN to 0x7F."""
    codes = x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(x.isnan(), 0x7F, codes).to(torch.uint8).view(torch.float8_e4m3fn)


def e2m1_codes(x: torch.Tensor) -> torch.Tensor:
    """float32 to e2m1 codes 0 .. 15 (uint8): nearest, a tie to the even code, saturating, NaN to +6."""
    size = x.abs()
    code = torch.zeros_like(x, dtype=torch.uint8)
    for lower in range(7):
        middle = (E2M1_VALUES[lower] + E2M1_VALUES[lower + 1]) / 2
        up = size > middle if lower % 2 == 0 else size >= middle
        code += up.to(torch.uint8)
    code = code | (torch.signbit(x).to(torch.uint8) << 3)
    return torch.where(x.isnan(), 7, code).to(torch.uint8)


def pack_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """(rows, columns) codes to (rows, columns / 2) int8, the even column in the low nibble."""
    return (codes[:, ::2] | (codes[:, 1::2] << 4)).view(torch.int8)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """(rows, columns / 2) int8 to (rows, columns) float32."""
    byte = packed.view(torch.uint8).to(torch.int64)
    codes = torch.stack([byte & 15, byte >> 4], dim=-1).flatten(1)
    values = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), device=packed.device)
    return values[codes]


def scales_as_float(scales: torch.Tensor, across: int) -> torch.Tensor:
    """float32 (rows, across) of scales in any layout; int32 words hold four ue8m0 bytes."""
    if scales.dtype == torch.float32:
        return scales
    shifts = torch.arange(4, device=scales.device) * 8
    exponents = (scales.unsqueeze(-1) >> shifts) & 255
    exponents = exponents.flatten(1)[:, :across]
    return (exponents << 23).to(torch.int32).view(torch.float32)


def dequantised(x: tuple[torch.Tensor, torch.Tensor], block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(values as float32, their scales spread over the elements)."""
    data, scales = x
    values = unpack_e2m1(data) if data.dtype == torch.int8 else data.to(torch.float32)
    rows, columns = values.shape
    spread = scales_as_float(scales, -(-columns // block[1]))
    spread = spread.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :columns]
    return values, spread


def per_token_cast(x: torch.Tensor | tuple[torch.Tensor, torch.Tensor], fmt: str, num_per_channels: int,
                   x_block_size: tuple[int, int] | None = None, use_tma_aligned_col_major_sf: bool = False,
                   round_sf: bool = False, use_packed_ue8m0: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, scales); column-major scales in freshly made storage, padding and unused bytes zero."""
    if isinstance(x, tuple):
        assert x_block_size is not None
        values, source_scale = dequantised(x, x_block_size)
    else:
        values, source_scale = x.to(torch.float32), torch.ones((), device=x.device)
    tokens, hidden = values.shape
    groups = -(-hidden // num_per_channels)
    largest = torch.tensor(LARGEST[fmt], device=values.device)
    padded = torch.nn.functional.pad((values * source_scale).nan_to_num(0.0, float("inf"), float("-inf")),
                                     (0, groups * num_per_channels - hidden))
    amax = padded.reshape(tokens, groups, num_per_channels).abs().amax(-1) if tokens else values.new_zeros(0, groups)
    clamped = amax.clamp(min=SMALLEST_AMAX[fmt])
    scale = clamped / largest
    inverse = largest / clamped
    if round_sf:
        exponent = ((scale.view(torch.int32) - 1) >> 23) + 1
        scale = (exponent << 23).view(torch.float32)
        inverse = ((254 - exponent).clamp(min=0) << 23).view(torch.float32)
    spread = inverse.repeat_interleave(num_per_channels, 1)[:, :hidden]
    if isinstance(x, tuple):
        scaled = values * (source_scale * spread)
    else:
        scaled = values * spread
    out = e4m3(scaled) if fmt == "e4m3" else pack_e2m1(e2m1_codes(scaled))
    return out, lay_out(scale, use_tma_aligned_col_major_sf, use_packed_ue8m0)


def per_token_cast_with_precomputed_sf(x: torch.Tensor, fmt: str, num_per_channels: int,
                                       sf: torch.Tensor) -> torch.Tensor:
    """The values under given scales (any layout)."""
    hidden = x.shape[1]
    scale = scales_as_float(sf, -(-hidden // num_per_channels))
    inverse = torch.ones((), device=x.device) / scale
    scaled = x.to(torch.float32) * inverse.repeat_interleave(num_per_channels, 1)[:, :hidden]
    return e4m3(scaled) if fmt == "e4m3" else pack_e2m1(e2m1_codes(scaled))


def lay_out(scale: torch.Tensor, column_major: bool, packed: bool) -> torch.Tensor:
    """(tokens, groups) float32 scales in the layout asked for."""
    tokens, groups = scale.shape
    if not column_major:
        return scale.new_empty(scale.shape).copy_(scale)
    pitch = -(-tokens // 4) * 4
    if packed:
        exponent = torch.nn.functional.pad((scale.view(torch.int32) >> 23) & 255, (0, (-groups) % 4))
        words = exponent.reshape(tokens, -(-groups // 4), 4).to(torch.int64)
        word = (words << (torch.arange(4, device=scale.device) * 8)).sum(-1)
        scale = torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)
    storage = torch.zeros((scale.shape[1], pitch), dtype=scale.dtype, device=scale.device)
    storage[:, :tokens] = scale.T
    return storage.T[:tokens]
