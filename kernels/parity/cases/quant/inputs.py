"""What the cases of the quantisation family are called with."""

from __future__ import annotations

import torch

from monotile.parity.draw import Draw
from monotile.quant.scale_layout import ROW, ScaleLayout
from monotile.reference.quant import per_token_cast as reference

# use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0
LAYOUTS = {"row": (False, False, False), "rounded": (False, True, False), "column": (True, False, False),
           "column-rounded": (True, True, False), "packed": (True, True, True)}
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
NAN, INF, SMALLEST = float("nan"), float("inf"), 2.0**-133   # a subnormal of bfloat16
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, SMALLEST, -SMALLEST, 448.0, -449.0, 6.0, 0.25, 1.0)


def activations(draw: Draw, tokens: int, hidden: int, dtype: str = "bfloat16", values: str = "spread") -> torch.Tensor:
    """(tokens, hidden). ``spread``: rows of very different size, some of zeros; ``special``: NaN, infinities,
    subnormals and zeros of both signs among numbers."""
    x = draw.bell((tokens, hidden))
    if values == "spread":
        x = (x * draw.powers(-12, 13, (tokens, 1))).masked_fill(draw.happens(8, (tokens, 1)), 0.0)
    elif values == "special":
        drawn = torch.tensor(SPECIAL)[draw.integers(0, len(SPECIAL), (tokens, hidden))]
        few = draw.happens(24, (tokens, hidden)) & draw.happens(2, (tokens, 1))
        x = torch.where(few, drawn, x)
    else:
        raise ValueError(f"values must be spread or special, got {values!r}")
    return x.to(DTYPES[dtype])


def quantised(draw: Draw, tokens: int, hidden: int, fmt: str, block: tuple[int, int],
              layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Values as an earlier quantisation leaves them: any finite codes, scales in a layout."""
    if fmt == "e4m3":
        codes = draw.integers(0, 256, (tokens, hidden)).to(torch.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0x7E
        values = codes.view(torch.float8_e4m3fn)
    else:
        values = draw.integers(0, 256, (tokens, hidden // 2)).to(torch.uint8).view(torch.int8)
    column_major, _, packed = LAYOUTS[layout]
    scale = draw.powers(-20, 21, ScaleLayout(ROW, *block).grid(tokens, hidden))
    return values, reference.lay_out(scale, column_major, packed)
