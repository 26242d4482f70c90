"""Random calls of every op against its oracle: sizes, dtypes, strides and special values.

    FUZZ_CASES=2000 FUZZ_SEED=0 KERNEL_TARGET=ascend pytest -m fuzz tests/fuzz          (make fuzz CASES=2000)

The cases are shared out among the ops. Equal seeds make equal cases; a failure prints the smallest call that hypothesis
finds. What a kernel is compiled for is drawn first and seldom, a few builds an op, because each costs seconds; sizes
and values are drawn anew for every call.
"""

import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import monotile
from monotile.parity.difference import difference
from monotile.parity.tolerances import bound
from monotile.quant import scale_layout
from monotile.quant.per_token_cast import GROUPS
from monotile.reference.mhc import sinkhorn
from monotile.reference.moe import expand_to_fused, normalize_weight, topk_gate
from monotile.reference.quant import cast_back, per_token_cast
from monotile.reference.transpose import batched_transpose

CASES = int(os.environ.get("FUZZ_CASES", "2000"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
CASES_PER_BUILD = 10     # a build costs as much as some tens of calls
FEWEST_BUILDS = 4
MOST_ELEMENTS = 200_000   # of an input: a second in the emulator

Build = dict[str, Any]


# ---------------------------------------------------------------------- what is drawn
class Draw:
    """One call's numbers, from hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def of(self, label: str, choices: Sequence[Any]) -> Any:
        return self.data.draw(st.sampled_from(choices), label=label)

    def size(self, label: str, largest: int) -> int:
        """0 to ``largest``, the edges of tiles more often than others."""
        edges = [n for n in (0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257) if n <= largest]
        return int(self.data.draw(st.sampled_from(edges) | st.integers(0, largest), label=label))

    def generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(self.data.draw(st.integers(0, 2**32 - 1), label="values' seed")))

    def numbers(self, *shape: int) -> torch.Tensor:
        """float32 of one of several kinds."""
        kind = self.of("values", list(NUMBERS))
        return torch.from_numpy(NUMBERS[kind](self.generator(), shape).astype(np.float32))

    def bits(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Any bit pattern of a dtype."""
        if dtype == torch.bool:
            return torch.from_numpy(self.generator().integers(0, 2, shape)).bool()
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        raw = self.generator().integers(0, 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype).reshape(shape)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 448.0, -448.0, 6.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38,
                    2.0**-9, 2.5, np.inf, -np.inf, np.nan, 1e-4, 6 * 2.0**-126], dtype=np.float32)


def _sized(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of very different size, some of them zero."""
    rows = (*shape[:1], *[1] * (len(shape) - 1))
    return rng.standard_normal(shape) * np.exp2(rng.integers(-20, 21, rows)) * (rng.random(rows) > 0.1)


def _sprinkled(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.where(rng.random(shape) < 0.02, rng.choice(SPECIAL, shape), rng.standard_normal(shape))


def _any_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)


NUMBERS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "rows of many sizes": _sized,
    "ties": lambda rng, shape: rng.integers(-2, 3, shape),
    "some special": _sprinkled,
    "all special": lambda rng, shape: rng.choice(SPECIAL, shape),
    "any bits": _any_bits,
}


# ---------------------------------------------------------------------- what is compared
def to_device(x: torch.Tensor) -> torch.Tensor:
    """The tensor where the target's tensors live: the same strides, at the same distance from its storage's start."""
    device = monotile.default_device()
    room = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype, device=device)
    return room.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


def agree(op: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Shape, dtype, strides; then every element within the op's bound."""
    got = got.cpu()
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.numel() == 0:
        return
    strides = [(a, b) for size, a, b in zip(got.shape, got.stride(), want.stride()) if size > 1]
    assert all(a == b for a, b in strides), f"strides {got.stride()}, not {want.stride()}"
    # copied first: of a single element any strides are contiguous, and not all can be viewed as bytes
    ours, theirs = (torch.empty(t.shape, dtype=t.dtype).copy_(t) for t in (got, want))
    found = difference(ours, theirs, bound(op))
    assert found.holds, f"{found.missed} of {found.elements} differ, the first {found.first}"


def rows_apart(draw: Draw, x: torch.Tensor, stride: int) -> torch.Tensor:
    """The matrix as a view with rows ``stride`` apart, at some start."""
    tokens, columns = x.shape
    start = draw.of("start", [0, 0, 1, 8, 16])
    storage = torch.zeros(start + tokens * stride, dtype=x.dtype)
    return storage.as_strided((tokens, columns), (stride, 1), start).copy_(x)


# ---------------------------------------------------------------------- quant
LAYOUTS = {"row": (False, False, False), "row, rounded": (False, True, False), "column": (True, False, False),
           "column, rounded": (True, True, False), "packed": (True, True, True)}


def cast_build(rng: random.Random) -> Build:
    hidden = rng.choice([64, 128, 192, 320, 576, 1024, 1088, 2048])
    return {"dtype": rng.choice([torch.bfloat16, torch.float32]), "hidden": hidden,
            "group": rng.choice([*GROUPS, hidden]), "fmt": rng.choice(["e4m3", "e2m1"]),
            "layout": rng.choice(list(LAYOUTS)), "stride": hidden + rng.choice([0, 0, 0, 1, 8, 64])}


def _float_input(draw: Draw, build: Build) -> torch.Tensor:
    tokens = draw.size("tokens", min(300, MOST_ELEMENTS // build["hidden"]))
    return rows_apart(draw, draw.numbers(tokens, build["hidden"]).to(build["dtype"]), build["stride"])


def cast_call(draw: Draw, build: Build) -> None:
    x, flags = _float_input(draw, build), LAYOUTS[build["layout"]]
    out, sf = monotile.quant.per_token_cast(to_device(x), build["fmt"], build["group"], None, *flags)
    want, want_sf = per_token_cast.per_token_cast(x, build["fmt"], build["group"], None, *flags)
    agree("quant.per_token_cast", sf, want_sf)
    agree("quant.per_token_cast", out, want)


def scales_call(draw: Draw, build: Build) -> None:
    x, flags = _float_input(draw, build), LAYOUTS[build["layout"]]
    sf = monotile.quant.per_token_cast_with_sf_only(to_device(x), build["fmt"], build["group"], None, *flags)
    _, want = per_token_cast.per_token_cast(x, build["fmt"], build["group"], None, *flags)
    agree("quant.per_token_cast_with_sf_only", sf, want)


def precomputed_call(draw: Draw, build: Build) -> None:
    """Under scales that need not be those of the values."""
    x, flags = _float_input(draw, build), LAYOUTS[build["layout"]]
    column_major, rounded, packed = flags
    shape = (x.shape[0], -(-build["hidden"] // build["group"]))
    sf = per_token_cast.lay_out(_scales(draw, shape, rounded), column_major, packed)
    out = monotile.quant.per_token_cast_with_precomputed_sf(to_device(x), build["fmt"], build["group"], to_device(sf),
                                                            None, *flags)
    want = per_token_cast.per_token_cast_with_precomputed_sf(x, build["fmt"], build["group"], sf)
    agree("quant.per_token_cast_with_precomputed_sf", out, want)


def _scales(draw: Draw, shape: tuple[int, int], power_of_two: bool) -> torch.Tensor:
    """Scales as a quantisation makes them: positive and normal."""
    largest = draw.of("largest exponent of a scale", [0, 8, 30, 100])
    rng = draw.generator()
    exponent = torch.from_numpy(rng.integers(-largest, largest + 1, shape))
    return torch.exp2(exponent.float()) * (1.0 if power_of_two else torch.from_numpy(1 + rng.random(shape)).float())


def recast_build(rng: random.Random) -> Build:
    hidden = rng.choice([64, 128, 192, 320, 576, 1088])
    columns = rng.choice([16, 32, 64, 128, 1024, hidden])
    return {"source": rng.choice(["e4m3", "e2m1"]), "hidden": hidden, "block": (rng.choice([1, 1, 1, 2, 32]), columns),
            "source layout": rng.choice(["row", "column", "packed"]), "group": rng.choice([*GROUPS, hidden]),
            "fmt": rng.choice(["e4m3", "e2m1"]), "layout": rng.choice(list(LAYOUTS))}


def recast_call(draw: Draw, build: Build) -> None:
    hidden, block, flags = build["hidden"], build["block"], LAYOUTS[build["layout"]]
    tokens = draw.size("tokens", min(300, MOST_ELEMENTS // hidden))
    codes = draw.bits(torch.uint8, tokens, hidden if build["source"] == "e4m3" else hidden // 2)
    if build["source"] == "e4m3" and not draw.of("NaN among the codes", [False, True]):
        codes[(codes & 0x7F) == 0x7F] = 0x7E
    values = codes.view(torch.float8_e4m3fn if build["source"] == "e4m3" else torch.int8)
    column_major, _, packed = LAYOUTS[build["source layout"]]
    grid = scale_layout.ScaleLayout(scale_layout.ROW, *block).grid(tokens, hidden)
    sf = per_token_cast.lay_out(_scales(draw, grid, packed), column_major, packed)
    out, out_sf = monotile.quant.per_token_cast((to_device(values), to_device(sf)), build["fmt"], build["group"],
                                                block, *flags)
    want, want_sf = per_token_cast.per_token_cast((values, sf), build["fmt"], build["group"], block, *flags)
    agree("quant.per_token_cast", out_sf, want_sf)
    agree("quant.per_token_cast", out, want)


# ---------------------------------------------------------------------- moe
def topk_build(rng: random.Random) -> Build:
    experts = rng.choice([1, 2, 5, 8, 31, 33, 64, 72, 100, 256, 384])
    return {"experts": experts, "top_k": rng.randint(1, min(experts, 10))}


def topk_call(draw: Draw, build: Build) -> None:
    scores = draw.numbers(draw.size("tokens", 300), build["experts"])
    agree("moe.topk_gate", monotile.moe.topk_gate(to_device(scores), build["top_k"]),
          topk_gate.topk_gate(scores, build["top_k"]).contiguous())


def weights_build(rng: random.Random) -> Build:
    return {"top_k": rng.randint(1, 32)}


def weights_call(draw: Draw, build: Build) -> None:
    weights = draw.numbers(draw.size("tokens", 700), build["top_k"])
    for got, want in zip(monotile.moe.normalize_weight(to_device(weights)), normalize_weight.normalize_weight(weights)):
        agree("moe.normalize_weight", got, want)


MOVED = [torch.int8, torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32, torch.int64]


def expand_build(rng: random.Random) -> Build:
    return {"dtype": rng.choice(MOVED), "hidden": rng.choice([1, 7, 33, 64, 72, 576, 1000, 4100]),
            "top_k": rng.choice([1, 2, 6, 9]), "start": rng.choice([0, 0, 1])}


def _routing(draw: Draw, tokens: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(token_topk_to_pos, pos_to_expert): experts one after the other, each padded, tokens in any order inside."""
    experts, alignment = draw.of("experts", [1, 2, 5, 40]), draw.of("alignment", [1, 4, 16, 64])
    masked = draw.of("share of masked choices", [0.0, 0.2, 0.9, 1.0])
    rng = draw.generator()
    expert = np.where(rng.random(tokens * top_k) < masked, -1, rng.integers(0, experts, tokens * top_k))
    positions, owners = np.full(tokens * top_k, -1, dtype=np.int32), list[int]()
    for e in range(experts):
        named = rng.permutation(np.flatnonzero(expert == e))
        positions[named] = np.arange(len(owners), len(owners) + len(named))
        owners += [e] * len(named) + [-1] * (-len(named) % alignment)
    return torch.from_numpy(positions).view(tokens, top_k), torch.tensor(owners, dtype=torch.int32)


def expand_call(draw: Draw, build: Build) -> None:
    tokens = draw.size("tokens", min(150, MOST_ELEMENTS // build["hidden"] // build["top_k"]))
    start, hidden = build["start"], build["hidden"]
    x = draw.bits(build["dtype"], start + tokens * hidden)[start:].view(tokens, hidden)
    maps = _routing(draw, tokens, build["top_k"])
    agree("moe.expand_to_fused", monotile.moe.expand_to_fused(to_device(x), *map(to_device, maps)),
          expand_to_fused.expand_to_fused(x, *maps))


def expand_with_scales_build(rng: random.Random) -> Build:
    packed = rng.choice([False, True])
    return {"dtype": rng.choice([torch.int8, torch.float8_e4m3fn]), "hidden": rng.choice([64, 72, 576, 1000]),
            "group": rng.choice([32, 128]), "packed": packed, "column_major": packed or rng.choice([False, True]),
            "top_k": rng.choice([1, 2, 6, 9])}


def expand_with_scales_call(draw: Draw, build: Build) -> None:
    hidden = build["hidden"]
    tokens = draw.size("tokens", min(150, MOST_ELEMENTS // hidden // build["top_k"]))
    columns = -(-hidden // build["group"])
    columns = -(-columns // 4) if build["packed"] else columns
    x = draw.bits(build["dtype"], tokens, hidden)
    sf = draw.bits(torch.int32 if build["packed"] else torch.float32, tokens, columns)
    maps = _routing(draw, tokens, build["top_k"])
    got = monotile.moe.expand_to_fused_with_sf((to_device(x), to_device(sf)), build["group"], *map(to_device, maps),
                                               build["column_major"])
    for ours, theirs in zip(got, expand_to_fused.expand_to_fused_with_sf((x, sf), *maps, build["column_major"])):
        agree("moe.expand_to_fused_with_sf", ours, theirs)


# ---------------------------------------------------------------------- transpose
TURNED = [torch.int8, torch.bool, torch.float8_e4m3fn, torch.int16, torch.bfloat16, torch.int32, torch.float32]


def transpose_build(rng: random.Random) -> Build:
    return {"dtype": rng.choice(TURNED), "rows": rng.choice([1, 128, 256]), "columns": rng.choice([1, 128, 256])}


def _matrices(draw: Draw, build: Build, batches: int) -> torch.Tensor:
    """(batches, rows, columns) as a view with rows and batches apart; sizes whole multiples of the build's."""
    rows = build["rows"] * draw.size("rows", 400 // build["rows"])
    most = max(1, min(400, MOST_ELEMENTS // max(1, rows * batches)))
    columns = build["columns"] * draw.size("columns", max(1, most // build["columns"]))
    below, start = draw.of("rows below", [0, 0, 1]), draw.of("start", [0, 1, 16])
    pitch = columns + draw.of("columns beside", [0, 0, 1, 3, 64])
    storage = draw.bits(build["dtype"], start + batches * (rows + below) * pitch)
    return storage.as_strided((batches, rows, columns), ((rows + below) * pitch, pitch, 1), start)


def batched_transpose_call(draw: Draw, build: Build) -> None:
    x = _matrices(draw, build, draw.size("batches", 4))
    got, want = monotile.transpose.batched_transpose(to_device(x)), batched_transpose.batched_transpose(x)
    agree("transpose.batched_transpose", got, want)


def transpose_call(draw: Draw, build: Build) -> None:
    x = _matrices(draw, build, 1)[0]
    got, want = monotile.transpose.transpose(to_device(x)), batched_transpose.batched_transpose(x)
    agree("transpose.transpose", got, want)


# ---------------------------------------------------------------------- mhc
def sinkhorn_build(rng: random.Random) -> Build:
    return {"mult": rng.choice([1, 2, 3, 4, 4, 4, 5, 8]), "repeat": rng.choice([1, 2, 3, 10, 20]),
            "eps": rng.choice([1e-6, 1e-3])}


def _logits(draw: Draw, build: Build) -> torch.Tensor:
    lead = draw.of("leading dimensions", [1, 1, 2, 3])
    tokens, mult = draw.size("matrices", 300), build["mult"]
    scale = draw.of("scale", [0.0, 1e-3, 1.0, 10.0, 100.0])
    rng = draw.generator()
    x = scale * rng.standard_normal((lead, tokens, mult, mult))
    if draw.of("special values", [False, False, True]):
        x = np.where(rng.random(x.shape) < 0.01, rng.choice([np.nan, np.inf, 0.0, -0.0, 3e38, -3e38], x.shape), x)
    x = torch.from_numpy(x.astype(np.float32))
    return x[0] if lead == 1 else x


def sinkhorn_forward_call(draw: Draw, build: Build) -> None:
    x, repeat, eps = _logits(draw, build), build["repeat"], build["eps"]
    agree("mhc.mhc_sinkhorn_fwd", monotile.mhc.mhc_sinkhorn_fwd(to_device(x), repeat, eps),
          sinkhorn.sinkhorn_normalize(x.double(), repeat, eps).float())


def sinkhorn_backward_call(draw: Draw, build: Build) -> None:
    x, repeat, eps = _logits(draw, build), build["repeat"], build["eps"]
    grad = torch.from_numpy(draw.generator().standard_normal(x.shape).astype(np.float32))
    agree("mhc.mhc_sinkhorn_bwd", monotile.mhc.mhc_sinkhorn_bwd(to_device(grad), to_device(x), repeat, eps),
          sinkhorn.sinkhorn_normalize_backward(grad.double(), x.double(), repeat, eps).float())


def cast_back_build(rng: random.Random) -> Build:
    hidden = rng.choice([64, 128, 192, 320, 576, 1088])
    return {"source": rng.choice(["e4m3", "e2m1"]), "hidden": hidden, "fmt": rng.choice(["bf16", "fp32"]),
            "block": (rng.choice([1, 1, 2, 32, 128]), rng.choice([16, 32, 64, 128, 1024, hidden])),
            "layout": rng.choice(["row", "column", "packed"])}


def token_cast_back_build(rng: random.Random) -> Build:
    build = cast_back_build(rng)
    return {**build, "block": (1, build["block"][1])}


def _cast_back_input(draw: Draw, build: Build) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, (rows, columns) = build["hidden"], build["block"]
    tokens = draw.size("tokens", min(300, MOST_ELEMENTS // hidden))
    e4m3 = build["source"] == "e4m3"
    codes = draw.bits(torch.uint8, tokens, hidden if e4m3 else hidden // 2)
    column_major, _, packed = LAYOUTS[build["layout"]]
    scales = _scales(draw, (-(-tokens // rows), -(-hidden // columns)), packed)
    return codes.view(torch.float8_e4m3fn if e4m3 else torch.int8), per_token_cast.lay_out(scales, column_major, packed)


def cast_back_call(draw: Draw, build: Build) -> None:
    x = _cast_back_input(draw, build)
    out = monotile.quant.cast_back((to_device(x[0]), to_device(x[1])), build["fmt"], build["block"])
    agree("quant.cast_back", out, cast_back.cast_back(x, build["fmt"], build["block"]))


def token_cast_back_call(draw: Draw, build: Build) -> None:
    x, group = _cast_back_input(draw, build), build["block"][1]
    out = monotile.quant.per_token_cast_back((to_device(x[0]), to_device(x[1])), build["fmt"], group)
    agree("quant.per_token_cast_back", out, cast_back.per_token_cast_back(x, build["fmt"], group))


# ---------------------------------------------------------------------- the runs
@dataclass(frozen=True)
class Fuzzed:
    """``op``: the public function. ``build``: draws what is compiled for; ``call``: the rest, calls and compares."""

    op: str
    build: Callable[[random.Random], Build]
    call: Callable[[Draw, Build], None]


FUZZED = {
    "per_token_cast": Fuzzed("quant.per_token_cast", cast_build, cast_call),
    "per_token_cast of quantised": Fuzzed("quant.per_token_cast", recast_build, recast_call),
    "per_token_cast_with_sf_only": Fuzzed("quant.per_token_cast_with_sf_only", cast_build, scales_call),
    "per_token_cast_with_precomputed_sf": Fuzzed("quant.per_token_cast_with_precomputed_sf", cast_build,
                                                 precomputed_call),
    "cast_back": Fuzzed("quant.cast_back", cast_back_build, cast_back_call),
    "per_token_cast_back": Fuzzed("quant.per_token_cast_back", token_cast_back_build, token_cast_back_call),
    "topk_gate": Fuzzed("moe.topk_gate", topk_build, topk_call),
    "normalize_weight": Fuzzed("moe.normalize_weight", weights_build, weights_call),
    "expand_to_fused": Fuzzed("moe.expand_to_fused", expand_build, expand_call),
    "expand_to_fused_with_sf": Fuzzed("moe.expand_to_fused_with_sf", expand_with_scales_build, expand_with_scales_call),
    "transpose": Fuzzed("transpose.transpose", transpose_build, transpose_call),
    "batched_transpose": Fuzzed("transpose.batched_transpose", transpose_build, batched_transpose_call),
    "mhc_sinkhorn_fwd": Fuzzed("mhc.mhc_sinkhorn_fwd", sinkhorn_build, sinkhorn_forward_call),
    "mhc_sinkhorn_bwd": Fuzzed("mhc.mhc_sinkhorn_bwd", sinkhorn_build, sinkhorn_backward_call),
}


def test_every_op_is_fuzzed() -> None:
    public = {f"{part}.{name}" for part in ("quant", "moe", "transpose", "mhc")
              for name in getattr(monotile, part).__all__ if callable(getattr(getattr(monotile, part), name))}
    assert {fuzzed.op for fuzzed in FUZZED.values()} == public


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FUZZED)
def test_random_calls(name: str) -> None:
    fuzzed, cases = FUZZED[name], -(-CASES // len(FUZZED))
    rng = random.Random(f"{SEED} {name}")
    builds = [fuzzed.build(rng) for _ in range(max(FEWEST_BUILDS, cases // CASES_PER_BUILD))]
    made = 0

    @seed(SEED)
    @settings(max_examples=cases, deadline=None, database=None, report_multiple_bugs=False,
              suppress_health_check=list(HealthCheck))
    @given(st.data())
    def call(data: st.DataObject) -> None:
        nonlocal made
        draw = Draw(data)
        fuzzed.call(draw, draw.of("build", builds))
        made += 1

    print(f"{name}: FUZZ_SEED={SEED}, {cases} cases, {len(builds)} builds")
    call()
    assert made >= cases, f"{made} of {cases} cases ran: the choices are too few"
