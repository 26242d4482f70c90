"""Cases of cast_back and per_token_cast_back."""

from __future__ import annotations

from typing import Any

import torch

from monotile.parity.cases import Call, op
from monotile.parity.cases.quant.inputs import quantised
from monotile.parity.draw import Draw
from monotile.reference.quant import cast_back as reference

Pair = tuple[torch.Tensor, torch.Tensor]


def with_nan(draw: Draw, x: Pair) -> Pair:
    """The same with NaN among the codes (e4m3 has them) and a NaN and an infinity among the scales."""
    values, scales = x
    if values.dtype == torch.float8_e4m3fn:
        codes = values.view(torch.uint8)
        codes[draw.happens(24, codes.shape)] = 0x7F
    scales[0, 0], scales[-1, -1] = float("nan"), float("inf")
    return values, scales


@op("quant.cast_back", outputs=("out",), cases=[
    {"tokens": 0, "hidden": 576, "source": "e4m3", "down": 1, "across": 128, "layout": "row", "fmt": "bf16"},
    {"tokens": 1, "hidden": 64, "source": "e4m3", "down": 1, "across": 64, "layout": "row", "fmt": "fp32"},
    {"tokens": 33, "hidden": 320, "source": "e4m3", "down": 32, "across": 128, "layout": "column", "fmt": "bf16"},
    {"tokens": 9, "hidden": 576, "source": "e4m3", "down": 1, "across": 576, "layout": "row", "fmt": "bf16"},
    {"tokens": 31, "hidden": 192, "source": "e2m1", "down": 1, "across": 32, "layout": "packed", "fmt": "bf16"},
    {"tokens": 5, "hidden": 576, "source": "e2m1", "down": 128, "across": 128, "layout": "row", "fmt": "fp32"},
    {"tokens": 7, "hidden": 192, "source": "e4m3", "down": 2, "across": 64, "layout": "row", "fmt": "bf16",
     "special": 1},
])
def cast_back(draw: Draw, tokens: int, hidden: int, source: str, down: int, across: int, layout: str, fmt: str,
              special: int = 0) -> Call:
    x = quantised(draw, tokens, hidden, source, (down, across), layout)
    return Call((with_nan(draw, x) if special else x, fmt, (down, across)))


def _oracle(*arguments: Any) -> torch.Tensor:
    return reference.per_token_cast_back(*arguments)


@op("quant.per_token_cast_back", outputs=("out",), oracle=_oracle, cases=[
    {"tokens": 0, "hidden": 64, "source": "e2m1", "group": 32, "layout": "row", "fmt": "bf16"},
    {"tokens": 1, "hidden": 128, "source": "e4m3", "group": 128, "layout": "packed", "fmt": "bf16"},
    {"tokens": 33, "hidden": 320, "source": "e4m3", "group": 128, "layout": "packed", "fmt": "fp32"},
    {"tokens": 2, "hidden": 576, "source": "e4m3", "group": 16, "layout": "column-rounded", "fmt": "bf16"},
    {"tokens": 31, "hidden": 192, "source": "e2m1", "group": 16, "layout": "row", "fmt": "bf16"},
    {"tokens": 6, "hidden": 192, "source": "e2m1", "group": 64, "layout": "row", "fmt": "fp32", "special": 1},
])
def per_token_cast_back(draw: Draw, tokens: int, hidden: int, source: str, group: int, layout: str, fmt: str,
                        special: int = 0) -> Call:
    x = quantised(draw, tokens, hidden, source, (1, group), layout)
    return Call((with_nan(draw, x) if special else x, fmt, group))
