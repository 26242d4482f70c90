"""Cases of the quantisation family."""

from __future__ import annotations

from typing import Any

import torch

from monotile.parity.cases import Call, op
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


_CASTS: list[dict[str, Any]] = [
    {"tokens": 0, "hidden": 576, "fmt": "e4m3", "group": 128, "layout": "row"},
    {"tokens": 1, "hidden": 64, "fmt": "e4m3", "group": 64, "layout": "row"},
    {"tokens": 33, "hidden": 576, "fmt": "e4m3", "group": 128, "layout": "row"},
    {"tokens": 37, "hidden": 576, "fmt": "e4m3", "group": 32, "layout": "packed"},
    {"tokens": 9, "hidden": 576, "fmt": "e4m3", "group": 576, "layout": "row"},
    {"tokens": 31, "hidden": 576, "fmt": "e2m1", "group": 32, "layout": "column-rounded"},
    {"tokens": 5, "hidden": 576, "fmt": "e2m1", "group": 128, "layout": "packed"},
    {"tokens": 12, "hidden": 192, "fmt": "e4m3", "group": 128, "layout": "row", "values": "special"},
    {"tokens": 12, "hidden": 192, "fmt": "e2m1", "group": 128, "layout": "row", "values": "special"},
]


@op("quant.per_token_cast", outputs=("out", "out_sf"), cases=[
    *_CASTS,
    {"tokens": 5, "hidden": 576, "fmt": "e4m3", "group": 128, "layout": "row", "dtype": "float32"},
    {"tokens": 7, "hidden": 576, "fmt": "e2m1", "group": 32, "layout": "row", "source": "e4m3", "down": 1,
     "across": 128},
    {"tokens": 7, "hidden": 576, "fmt": "e4m3", "group": 128, "layout": "row", "source": "e2m1", "down": 1,
     "across": 32},
])
def per_token_cast(draw: Draw, tokens: int, hidden: int, fmt: str, group: int, layout: str, values: str = "spread",
                   dtype: str = "bfloat16", source: str = "", down: int = 0, across: int = 0) -> Call:
    if source:
        x = quantised(draw, tokens, hidden, source, (down, across), layout)
        return Call((x, fmt, group, (down, across), *LAYOUTS[layout]))
    return Call((activations(draw, tokens, hidden, dtype, values), fmt, group, None, *LAYOUTS[layout]))


@op("quant.per_token_cast_with_sf_only", outputs=("out_sf",), cases=_CASTS,
    oracle=lambda *arguments: reference.per_token_cast(*arguments)[1])
def per_token_cast_with_sf_only(draw: Draw, tokens: int, hidden: int, fmt: str, group: int, layout: str,
                                values: str = "spread") -> Call:
    return Call((activations(draw, tokens, hidden, values=values), fmt, group, None, *LAYOUTS[layout]))


def _with_precomputed_sf(x: torch.Tensor, fmt: str, group: int, sf: torch.Tensor, *_: Any) -> torch.Tensor:
    return reference.per_token_cast_with_precomputed_sf(x, fmt, group, sf)


@op("quant.per_token_cast_with_precomputed_sf", outputs=("out",), cases=_CASTS, oracle=_with_precomputed_sf)
def per_token_cast_with_precomputed_sf(draw: Draw, tokens: int, hidden: int, fmt: str, group: int, layout: str,
                                       values: str = "spread") -> Call:
    """Scales of other rows than x's: some values overflow the format."""
    x = activations(draw, tokens, hidden, values=values)
    other = activations(draw, tokens, hidden)
    sf = reference.per_token_cast(other, fmt, group, None, *LAYOUTS[layout])[1]
    return Call((x, fmt, group, sf, None, *LAYOUTS[layout]))
