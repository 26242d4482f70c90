"""Cases of per_token_cast and its two sisters."""

from __future__ import annotations

from typing import Any

import torch

from monotile.parity.cases import Call, op
from monotile.parity.cases.quant.inputs import LAYOUTS, activations, quantised
from monotile.parity.draw import Draw
from monotile.reference.quant import per_token_cast as reference

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
