"""Cases of transposes."""

from __future__ import annotations

import torch

from monotile.parity.cases import Call, op
from monotile.parity.draw import Draw

DTYPES = {"e4m3": torch.float8_e4m3fn, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _oracle(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous()


@op("transpose.transpose", outputs=("out",), oracle=_oracle, cases=[
    {"rows": 0, "columns": 64, "dtype": "bfloat16"}, {"rows": 64, "columns": 64, "dtype": "bfloat16"},
    {"rows": 65, "columns": 127, "dtype": "bfloat16"}, {"rows": 192, "columns": 65, "dtype": "e4m3"},
    {"rows": 33, "columns": 40, "dtype": "float32"}, {"rows": 1, "columns": 96, "dtype": "bfloat16"},
])
def transpose(draw: Draw, rows: int, columns: int, dtype: str) -> Call:
    return Call((draw.bits((rows, columns), DTYPES[dtype]),))


@op("transpose.batched_transpose", outputs=("out",), oracle=_oracle, cases=[
    {"batches": 0, "rows": 64, "columns": 64, "dtype": "bfloat16"},
    {"batches": 2, "rows": 64, "columns": 64, "dtype": "bfloat16"},
    {"batches": 3, "rows": 65, "columns": 127, "dtype": "bfloat16"},
    {"batches": 2, "rows": 192, "columns": 65, "dtype": "e4m3"},
    {"batches": 5, "rows": 33, "columns": 40, "dtype": "float32"},
    {"batches": 7, "rows": 1, "columns": 96, "dtype": "bfloat16"},
])
def batched_transpose(draw: Draw, batches: int, rows: int, columns: int, dtype: str) -> Call:
    return Call((draw.bits((batches, rows, columns), DTYPES[dtype]),))
