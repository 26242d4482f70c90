"""Cases of routing."""

from __future__ import annotations

import torch

from monotile.parity.cases import Call, op
from monotile.parity.draw import Draw

NAN, INF = float("nan"), float("inf")
DTYPES = {"int8": torch.int8, "bfloat16": torch.bfloat16, "float32": torch.float32, "e4m3": torch.float8_e4m3fn}


@op("moe.topk_gate", outputs=("chosen",), cases=[
    {"tokens": 0, "experts": 72, "k": 6, "values": "distinct"},
    {"tokens": 1, "experts": 72, "k": 6, "values": "distinct"},
    {"tokens": 129, "experts": 72, "k": 6, "values": "ties"},
    {"tokens": 37, "experts": 256, "k": 8, "values": "distinct"},
    {"tokens": 37, "experts": 33, "k": 1, "values": "ties"},
    {"tokens": 40, "experts": 72, "k": 9, "values": "special"},
    {"tokens": 5, "experts": 8, "k": 8, "values": "equal"},
])
def topk_gate(draw: Draw, tokens: int, experts: int, k: int, values: str) -> Call:
    """``ties``: five different values; ``special``: NaN, infinities and zeros of both signs among few values."""
    few = torch.tensor([-1.0, 0.0, -0.0, 1.0, 2.0] + ([NAN, INF, -INF] if values == "special" else []))
    scores = {"distinct": draw.bell((tokens, experts)), "equal": torch.ones(tokens, experts)}.get(
        values, few[draw.integers(0, len(few), (tokens, experts))])
    return Call((scores, k))


@op("moe.normalize_weight", outputs=("denominator", "normalized"), cases=[
    {"tokens": 0, "k": 6}, {"tokens": 1, "k": 8}, {"tokens": 33, "k": 6}, {"tokens": 130, "k": 9},
    {"tokens": 130, "k": 1}, {"tokens": 45, "k": 8, "values": "wide"}, {"tokens": 9, "k": 6, "values": "zeros"},
])
def normalize_weight(draw: Draw, tokens: int, k: int, values: str = "plain") -> Call:
    """``wide``: terms that swallow one another, so that the order of the sum shows."""
    weights = draw.uniform((tokens, k))
    if values == "wide":
        weights = weights * draw.powers(-40, 40, (tokens, k))
    elif values == "zeros":
        weights = weights.masked_fill(draw.happens(2, (tokens, 1)), 0.0)
    return Call((weights,))


def mapping(draw: Draw, tokens: int, top_k: int,
            holes: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(token_topk_to_pos, pos_to_expert, which rows are defined): an eighth of the pairs masked, padding between
    experts; with ``holes`` some rows have an expert and no token."""
    pairs = tokens * top_k
    rows = pairs + pairs // 8 + 16
    to_pos = draw.order(rows)[:pairs].int()
    masked = draw.happens(8, (pairs,))
    to_expert = torch.full((rows,), -1, dtype=torch.int32)
    taken = to_pos[~masked].long()
    to_expert[taken] = draw.integers(0, 64, (len(taken),)).int()
    defined = torch.ones(rows, dtype=torch.bool)
    if holes:
        empty = (to_expert < 0) & draw.happens(4, (rows,))
        to_expert[empty], defined[empty] = 3, False
    return to_pos.masked_fill(masked, -1).view(tokens, top_k), to_expert, defined


@op("moe.expand_to_fused", outputs=("out",), cases=[
    {"tokens": 1, "hidden": 72, "k": 6, "dtype": "int8"},
    {"tokens": 33, "hidden": 72, "k": 6, "dtype": "int8"},
    {"tokens": 7, "hidden": 576, "k": 8, "dtype": "bfloat16"},
    {"tokens": 17, "hidden": 33, "k": 6, "dtype": "float32"},
    {"tokens": 31, "hidden": 576, "k": 1, "dtype": "e4m3"},
    {"tokens": 9, "hidden": 576, "k": 8, "dtype": "bfloat16", "holes": True},
])
def expand_to_fused(draw: Draw, tokens: int, hidden: int, k: int, dtype: str, holes: bool = False) -> Call:
    to_pos, to_expert, defined = mapping(draw, tokens, k, holes)
    return Call((draw.bits((tokens, hidden), DTYPES[dtype]), to_pos, to_expert), {"out": defined[:, None]})


def _with_sf(x: tuple[torch.Tensor, torch.Tensor], _: int, to_pos: torch.Tensor, to_expert: torch.Tensor,
             column_major: bool) -> tuple[torch.Tensor, torch.Tensor]:
    from monotile.reference.moe.expand_to_fused import expand_to_fused_with_sf

    return expand_to_fused_with_sf(x, to_pos, to_expert, column_major)


@op("moe.expand_to_fused_with_sf", outputs=("out", "out_sf"), oracle=_with_sf, cases=[
    {"tokens": 1, "hidden": 576, "group": 128, "k": 8, "column_major": False},
    {"tokens": 11, "hidden": 576, "group": 128, "k": 8, "column_major": False},
    {"tokens": 11, "hidden": 576, "group": 128, "k": 8, "column_major": True},
    {"tokens": 7, "hidden": 576, "group": 32, "k": 6, "column_major": False},
    {"tokens": 17, "hidden": 576, "group": 32, "k": 1, "column_major": True},
    {"tokens": 9, "hidden": 576, "group": 128, "k": 8, "column_major": False, "holes": True},
])
def expand_to_fused_with_sf(draw: Draw, tokens: int, hidden: int, group: int, k: int, column_major: bool,
                            holes: bool = False) -> Call:
    to_pos, to_expert, defined = mapping(draw, tokens, k, holes)
    x = draw.bits((tokens, hidden), torch.float8_e4m3fn)
    sf = draw.powers(-20, 21, (tokens, -(-hidden // group)))
    mask = defined[:, None]
    return Call(((x, sf), group, to_pos, to_expert, column_major), {"out": mask, "out_sf": mask})
