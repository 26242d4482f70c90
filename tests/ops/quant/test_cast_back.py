"""cast_back and per_token_cast_back against the oracle, and against the cast that they undo."""

from typing import Any

import pytest
import torch

import monotile
from monotile.quant.cast_back import cast_back_kernel
from monotile.quant.scale_layout import ROW, ScaleLayout
from monotile.reference.quant import cast_back as reference
from monotile.reference.quant import per_token_cast as casts
from monotile.targets.launch import launch

Pair = tuple[torch.Tensor, torch.Tensor]
NAN, INF = float("nan"), float("inf")
FORMATS = ["e4m3", "e2m1"]
BLOCKS = [(1, 16), (1, 32), (1, 128), (2, 64), (128, 128), (32, 32), (1, 1024), (1, None)]   # None: the whole row


def quantised(tokens: int, hidden: int, source: str, block: tuple[int, int], layout: str = "row") -> Pair:
    """Any codes, NaN of e4m3 among them, under scales of many sizes."""
    generator = torch.Generator().manual_seed(31 * tokens + hidden)
    columns = hidden if source == "e4m3" else hidden // 2
    codes = torch.randint(0, 256, (tokens, columns), generator=generator, dtype=torch.uint8)
    down, across = ScaleLayout(ROW, *block).grid(tokens, hidden)
    scale = torch.exp2(torch.randint(-20, 21, (down, across), generator=generator).float())
    if layout != "packed":
        scale *= 1 + torch.rand(down, across, generator=generator)
    values = codes.view(torch.float8_e4m3fn if source == "e4m3" else torch.int8)
    return values, casts.lay_out(scale, layout != "row", layout == "packed")


def to_device(x: torch.Tensor) -> torch.Tensor:
    kept = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=monotile.default_device())
    return kept.copy_(x)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal bits, but for the payloads of NaN."""
    got = got.cpu()
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    assert torch.equal(got.isnan(), want.isnan())
    bits = torch.int16 if got.dtype == torch.bfloat16 else torch.int32
    ours, theirs = (t.masked_fill(want.isnan(), 0).view(bits) for t in (got, want))
    wrong = (ours != theirs).nonzero()
    assert len(wrong) == 0, f"{len(wrong)} of {got.numel()} differ, first at {wrong[:4].tolist()}"


def check(x: Pair, fmt: str, block: tuple[int, int]) -> None:
    same(monotile.quant.cast_back((to_device(x[0]), to_device(x[1])), fmt, block), reference.cast_back(x, fmt, block))


@pytest.mark.parametrize("tokens", [0, 1, 2, 31, 33, 127, 129])
@pytest.mark.parametrize("source", FORMATS)
def test_tokens(source: str, tokens: int) -> None:
    check(quantised(tokens, 192, source, (1, 64)), "bf16", (1, 64))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("source", FORMATS)
def test_blocks(source: str, block: tuple[int, int | None]) -> None:
    """576 columns are four and a half blocks of 128."""
    rows, columns = block
    for hidden, fmt in ((64, "fp32"), (576, "bf16")):
        sizes = (rows, columns or hidden)
        check(quantised(13, hidden, source, sizes), fmt, sizes)


@pytest.mark.parametrize("fmt", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", ["row", "column", "packed"])
@pytest.mark.parametrize("source", FORMATS)
def test_layouts(source: str, layout: str, fmt: str) -> None:
    for block, tokens, hidden in (((1, 32), 11, 576), ((4, 128), 9, 320)):
        check(quantised(tokens, hidden, source, block, layout), fmt, block)


@pytest.mark.parametrize("tokens,hidden,source,block", [(4001, 64, "e4m3", (1, 64)), (5, 7168, "e4m3", (1, 128)),
                                                        (5, 7168, "e2m1", (1, 32)), (3, 2112, "e4m3", (1, 2112))])
def test_real_sizes(tokens: int, hidden: int, source: str, block: tuple[int, int]) -> None:
    check(quantised(tokens, hidden, source, block), "bf16", block)


@pytest.mark.parametrize("source", FORMATS)
def test_every_code_under_scales_that_round(source: str) -> None:
    """Every code, under scales whose products are halfway between two bfloat16, and beside."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(9, 1)
    values = codes.view(torch.float8_e4m3fn if source == "e4m3" else torch.int8)
    halfway = torch.tensor([0x3F808000]).int()
    bits = torch.cat([halfway + n for n in (-1, 0, 1)] + [halfway + 0x10000 + n for n in (-1, 0, 1)])
    scales = torch.cat([bits.view(torch.float32), torch.tensor([0.0, NAN, INF])])[:, None]
    columns = values.shape[1] * (2 if source == "e2m1" else 1)
    for fmt in ("bf16", "fp32"):
        check((values, scales), fmt, (1, columns))


def test_per_token() -> None:
    for source, group in (("e4m3", 128), ("e2m1", 32)):
        x = quantised(9, 320, source, (1, group), "packed")
        got = monotile.quant.per_token_cast_back((to_device(x[0]), to_device(x[1])), "bf16", group)
        same(got, reference.per_token_cast_back(x, "bf16", group))


def test_strided_rows() -> None:
    for source, columns in (("e4m3", 320), ("e2m1", 160)):
        values, scales = quantised(9, 1024, source, (1, 64))
        device = monotile.default_device()
        for start in (0, 3, 64):
            narrow = values[:, start:start + columns]
            got = monotile.quant.cast_back((values.to(device)[:, start:start + columns], scales[:, :5].contiguous()
                                            .to(device)), "bf16", (1, 64))
            same(got, reference.cast_back((narrow.contiguous(), scales[:, :5]), "bf16", (1, 64)))


def test_strides_of_nothing_say_nothing() -> None:
    device = monotile.default_device()
    values = torch.empty(0, 64, dtype=torch.float8_e4m3fn, device=device).as_strided((0, 64), (0, 0))
    out = monotile.quant.cast_back((values, torch.empty(0, 1, device=device)), "bf16", (1, 64))
    assert out.shape == (0, 64)
    empty = torch.empty(0, 64, device=device).as_strided((0, 64), (0, 0))
    assert monotile.quant.per_token_cast(empty, "e4m3", 64)[0].shape == (0, 64)


def test_it_undoes_a_cast() -> None:
    """What e4m3 holds exactly comes back exactly."""
    x = torch.randint(-8, 9, (5, 256), generator=torch.Generator().manual_seed(0)).float()
    x[:, ::64] = 14.0   # of every group: under a rounded scale its codes are exact
    out, sf = monotile.quant.per_token_cast(to_device(x), "e4m3", 64, None, True, True, True)
    assert torch.equal(monotile.quant.per_token_cast_back((out, sf), "fp32", 64).cpu(), x)


def test_nothing_is_written_beside_the_output() -> None:
    device = monotile.default_device()
    for tokens in (1, 33):
        values, scales = quantised(tokens, 192, "e4m3", (1, 64))
        memory = torch.full((tokens * 192 + 128,), 77.0, dtype=torch.bfloat16, device=device)
        out = memory[64:-64].view(tokens, 192)
        launch(cast_back_kernel, to_device(values), to_device(scales), out, hidden=192, row_stride=192,
               source="float8_e4m3fn", source_rows=1, source_columns=64, source_scales=ROW, fmt="bf16")
        same(out, reference.cast_back((values, scales), "bf16", (1, 64)))
        assert bool((memory[:64] == 77).all()) and bool((memory[-64:] == 77).all())


@pytest.mark.parametrize("tokens,width", [(1, 256), (8, 512)])
def test_other_tiles_give_the_same(tokens: int, width: int) -> None:
    with monotile.override_tiling("quant.cast_back", tokens=tokens, width=width):
        check(quantised(19, 576, "e4m3", (1, 128)), "bf16", (1, 128))
        check(quantised(19, 576, "e2m1", (4, 32)), "bf16", (4, 32))


def _pair() -> Pair:
    return torch.zeros(4, 128).to(torch.float8_e4m3fn), torch.ones(4, 2)


@pytest.mark.parametrize("arguments,words", [
    (lambda: (_pair()[0], "bf16", (1, 64)), "x must be a pair"),
    (lambda: (_pair(), "fp16", (1, 64)), "fmt must be one of 'bf16', 'fp32', got 'fp16'"),
    (lambda: (_pair(), "bf16", (3, 64)), "x_block_size must have a power of two of rows"),
    (lambda: (_pair(), "bf16", (1, 48)), "x_block_size must have a power of two of columns"),
    (lambda: (_pair(), "bf16", 64), r"x_block_size must be \(rows, columns\)"),
    (lambda: (_pair(), "bf16", (1, 32)), r"x scales must have shape \(4, 4\)"),
    (lambda: ((_pair()[0].float(), _pair()[1]), "bf16", (1, 64)), "x values must be float8_e4m3fn or int8"),
    (lambda: ((_pair()[0], _pair()[1].double()), "bf16", (1, 64)), "x scales must be float32"),
    (lambda: ((_pair()[0].t(), torch.ones(128, 1)), "bf16", (1, 4)), "x_block_size must|stride 1"),
    (lambda: ((_pair()[0][:, :72], torch.ones(4, 1)), "bf16", (1, 128)), "hidden must be a multiple of 64"),
    (lambda: (_pair(), "bf16", (1, 64), "e5m6"), "x_special_fmt 'e5m6' is not built yet"),
    (lambda: (_pair(), "bf16", (1, 64), "e3m2"), "x_special_fmt must be one of"),
])
def test_bad_input(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        monotile.quant.cast_back(*arguments())
