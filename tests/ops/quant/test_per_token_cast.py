"""per_token_cast and its two sisters against the oracle: to the bit, strides and padding included."""

import re
from typing import Any

import pytest
import torch

import monotile
from monotile.quant import scale_layout
from monotile.quant.per_token_cast import GROUPS, per_token_cast_kernel
from monotile.quant.scale_layout import COLUMN, PACKED, ROW, ScaleLayout
from monotile.reference.quant import per_token_cast as reference
from monotile.targets.launch import launch

NAN, INF = float("nan"), float("inf")
# use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0
LAYOUTS = {"row": (False, False, False), "row, rounded": (False, True, False), "column": (True, False, False),
           "column, rounded": (True, True, False), "packed": (True, True, True)}


def activations(tokens: int, hidden: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Normal values in rows of very different size, some of them zero."""
    generator = torch.Generator().manual_seed(1000 * tokens + hidden + seed)
    x = torch.randn(tokens, hidden, generator=generator)
    x *= torch.exp2(torch.randint(-12, 13, (tokens, 1), generator=generator).float())
    x[torch.rand(tokens, generator=generator) < 0.1] = 0.0
    return x.to(dtype)


def quantised(tokens: int, hidden: int, fmt: str, block: tuple[int, int],
              layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair as an earlier quantisation leaves it: any codes, scales in a layout."""
    generator = torch.Generator().manual_seed(7 * tokens + hidden)
    if fmt == "e4m3":
        codes = torch.randint(0, 256, (tokens, hidden), generator=generator, dtype=torch.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0x7E
        values = codes.view(torch.float8_e4m3fn)
    else:
        values = torch.randint(0, 256, (tokens, hidden // 2), generator=generator, dtype=torch.uint8).view(torch.int8)
    down, across = ScaleLayout(ROW, *block).grid(tokens, hidden)
    scale = torch.exp2(torch.randint(-20, 21, (down, across), generator=generator).float())
    if layout in ("row", "column"):
        scale *= 1 + torch.rand(down, across, generator=generator)
    column_major, _, packed = LAYOUTS[layout]
    return values, reference.lay_out(scale, column_major, packed)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    if got.dtype != torch.int32:
        got, expected = (t.flatten().contiguous().view(torch.uint8) for t in (got, expected))
    wrong = (got.cpu() != expected.cpu()).nonzero()
    assert len(wrong) == 0, f"{len(wrong)} of {got.numel()} bytes or words differ, first at {wrong[:4].tolist()}"


def to_device(x: Any) -> Any:
    """The input where the target's tensors live, strides kept."""
    if isinstance(x, tuple):
        return tuple(map(to_device, x))
    kept = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=monotile.default_device())
    return kept.copy_(x)


def check(x: Any, fmt: str, group: int, layout: str = "row", block: tuple[int, int] | None = None) -> None:
    flags = LAYOUTS[layout]
    out, sf = monotile.quant.per_token_cast(to_device(x), fmt, group, block, *flags)
    expected, expected_sf = reference.per_token_cast(x, fmt, group, block, *flags)
    same(sf, expected_sf)
    same(out, expected)
    if not isinstance(x, tuple) and x.numel():
        again = monotile.quant.per_token_cast_with_precomputed_sf(to_device(x), fmt, group, sf, None, *flags)
        same(again, reference.per_token_cast_with_precomputed_sf(x, fmt, group, expected_sf))


# ---------------------------------------------------------------------- sizes
@pytest.mark.parametrize("tokens", [0, 1, 2, 31, 33, 127, 129])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_tokens(tokens: int, fmt: str) -> None:
    check(activations(tokens, 192), fmt, 128)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("group", [*GROUPS, 576])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_groups_and_layouts(fmt: str, group: int, layout: str) -> None:
    """576 channels are four and a half groups of 128: the last takes its amax from 64 real ones."""
    check(activations(37, 576), fmt, group, layout)


@pytest.mark.parametrize("hidden", [64, 128, 1024, 1088, 2560])
@pytest.mark.parametrize("fmt,group,layout", [("e4m3", 128, "packed"), ("e2m1", 32, "row"), ("e4m3", 16, "packed"),
                                              ("e2m1", 64, "column, rounded")])
def test_hidden(hidden: int, fmt: str, group: int, layout: str) -> None:
    check(activations(9, hidden), fmt, group, layout)


@pytest.mark.parametrize("tokens,hidden,group", [(4001, 576, 128), (33, 7168, 128), (5, 7168, 7168), (3, 64, 64),
                                                 (130, 4096, 4096)])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_real_sizes(tokens: int, hidden: int, group: int, fmt: str) -> None:
    check(activations(tokens, hidden), fmt, group)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_whole_rows_that_no_chip_holds(fmt: str, layout: str) -> None:
    for tokens, hidden in ((5, 9280), (2, 16384)):
        x = activations(tokens, hidden)
        x[0, hidden - 1], x[1, 3] = 3e4, NAN
        check(x, fmt, hidden, layout)


def test_whole_rows_that_every_chip_holds() -> None:
    for fmt in ("e4m3", "e2m1"):
        check(activations(3, 8192, torch.float32), fmt, 8192)
        check(quantised(3, 7168, "e4m3", (1, 128), "row"), fmt, 7168, "row", (1, 128))
        check(quantised(3, 7168, "e2m1", (1, 32), "packed"), fmt, 7168, "packed", (1, 32))


def test_one_row_many_times() -> None:
    row = activations(1, 192)
    out, sf = monotile.quant.per_token_cast(to_device(row).expand(5, 192), "e4m3", 64)
    expected, expected_sf = reference.per_token_cast(row.expand(5, 192), "e4m3", 64)
    same(sf, expected_sf)
    same(out, expected)


@pytest.mark.parametrize("layout", ["row", "packed"])
@pytest.mark.parametrize("fmt,group", [("e4m3", 128), ("e2m1", 16), ("e4m3", 576)])
def test_float32_input(fmt: str, group: int, layout: str) -> None:
    check(activations(35, 576, torch.float32), fmt, group, layout)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("stride,offset", [(1152, 576), (577, 0), (600, 3), (1024, 8)])
def test_strided_rows(stride: int, offset: int, dtype: torch.dtype) -> None:
    rows = activations(21, stride, dtype)[:, offset:offset + 576]
    for fmt in ("e4m3", "e2m1"):
        x = to_device(activations(21, stride, dtype))[:, offset:offset + 576]
        assert x.stride(0) == stride
        out, sf = monotile.quant.per_token_cast(x, fmt, 64)
        expected, expected_sf = reference.per_token_cast(rows, fmt, 64)
        same(sf, expected_sf)
        same(out, expected)


# ---------------------------------------------------------------------- values
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_nan_and_infinity_stay_in_their_group(fmt: str) -> None:
    x = activations(8, 256)
    before = reference.per_token_cast(x, fmt, 64)[1]
    x[0, 3], x[1, 70], x[2, 130], x[3, 64:128] = NAN, INF, -INF, NAN
    x[4] = NAN
    check(x, fmt, 64)
    check(x, fmt, 64, "packed")
    after = monotile.quant.per_token_cast_with_sf_only(to_device(x), fmt, 64).cpu()
    kept = torch.ones(8, 4, dtype=torch.bool)
    kept[0, 0] = kept[1, 1] = kept[2, 2] = kept[3, 1] = kept[4] = False
    assert torch.equal(before[kept], after[kept])


def test_nan_in_is_nan_out() -> None:
    x = torch.ones(2, 64)
    x[0, 5], x[1, 6] = NAN, -NAN
    out, _ = monotile.quant.per_token_cast(to_device(x), "e4m3", 64)
    codes = out.view(torch.uint8).cpu()
    assert codes[0, 5] == 0x7F and codes[1, 6] == 0x7F and int((codes == 0x7F).sum()) == 2


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_scales_at_the_edges_of_powers_of_two(fmt: str, rounded: bool) -> None:
    """amax = largest * 2**k and its two neighbours, over the whole range of exponents."""
    largest = torch.tensor(reference.LARGEST[fmt])
    k = torch.arange(-132, 120)
    exact = (largest.double() * torch.exp2(k.double())).float()
    bits = exact.view(torch.int32)
    amax = torch.cat([bits - 1, bits, bits + 1]).clamp(min=0).view(torch.float32)
    x = torch.zeros(len(amax), 64)
    x[:, 17] = amax
    x[:, 40] = -amax / 3
    check(x, fmt, 64, "row, rounded" if rounded else "row")


@pytest.mark.parametrize("fmt,codes", [("e4m3", 0x7F), ("e2m1", 8)])
def test_every_midpoint_and_its_neighbours(fmt: str, codes: int) -> None:
    """Under a scale of one: every code, every middle between two, and the floats on either side of both."""
    every = torch.arange(codes, dtype=torch.uint8)
    value = (every.view(torch.float8_e4m3fn).float() if fmt == "e4m3" else torch.tensor(reference.E2M1_VALUES))
    points = torch.cat([value, (value[1:] + value[:-1]) / 2, value[1:2] / 4])
    bits = points.view(torch.int32)
    near = torch.cat([bits - 1, bits, bits + 1]).clamp(min=0).view(torch.float32)
    near = near[near <= reference.LARGEST[fmt]]
    values = torch.cat([near, -near])
    rows = torch.nn.functional.pad(values, (0, (-len(values)) % 63)).view(-1, 63)
    x = torch.cat([torch.full((len(rows), 1), reference.LARGEST[fmt]), rows], dim=1)   # makes the scale one
    check(x, fmt, 64)


def test_any_bit_pattern() -> None:
    """Includes subnormals, both zeros, infinities and NaN of every kind."""
    raw = torch.randint(-(1 << 31), 1 << 31, (40, 128), generator=torch.Generator().manual_seed(3), dtype=torch.int64)
    x = raw.to(torch.int32).view(torch.float32)
    for fmt in ("e4m3", "e2m1"):
        check(x, fmt, 32)
        check(x, fmt, 32, "packed")


# ---------------------------------------------------------------------- quantised input
BLOCKS = [(1, 16), (1, 32), (1, 128), (2, 64), (128, 128), (32, 32), (1, 1024), (1, None)]   # None: the whole row


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("source", ["e4m3", "e2m1"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_recast(source: str, fmt: str, block: tuple[int, int | None]) -> None:
    for hidden in (64, 576):
        rows, columns = block
        sizes = (rows, columns or hidden)
        x = quantised(13, hidden, source, sizes, "row")
        for group in (16, 128, hidden):
            check(x, fmt, group, "row", sizes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source_layout", ["row", "column", "packed"])
@pytest.mark.parametrize("source,fmt", [("e4m3", "e2m1"), ("e2m1", "e4m3")])
def test_recast_layouts(source: str, fmt: str, source_layout: str, layout: str) -> None:
    for block, tokens, hidden in (((1, 32), 11, 576), ((4, 128), 9, 320)):
        check(quantised(tokens, hidden, source, block, source_layout), fmt, 64, layout, block)


@pytest.mark.parametrize("tokens", [0, 1, 2, 33, 129])
def test_recast_tokens(tokens: int) -> None:
    check(quantised(tokens, 320, "e4m3", (1, 128), "row"), "e2m1", 32, "packed", (1, 128))
    check(quantised(tokens, 320, "e2m1", (1, 32), "packed"), "e4m3", 128, "row", (1, 32))


def test_recast_whole_rows_of_7168() -> None:
    check(quantised(3, 7168, "e4m3", (1, 128), "row"), "e2m1", 7168, "row", (1, 128))
    check(quantised(3, 7168, "e2m1", (1, 2048), "row"), "e4m3", 7168, "row", (1, 2048))


def test_recast_keeps_nan_in_its_place() -> None:
    values, sf = quantised(4, 128, "e4m3", (1, 64), "row")
    codes = values.view(torch.uint8)
    codes[1, 5], codes[2, 70] = 0x7F, 0xFF
    sf[3, 1] = NAN
    check((values, sf), "e4m3", 32, "row", (1, 64))
    check((values, sf), "e2m1", 64, "packed", (1, 64))


# ---------------------------------------------------------------------- memory and tiles
def test_only_scales_are_the_same_scales() -> None:
    x = to_device(activations(33, 320))
    for flags in LAYOUTS.values():
        only = monotile.quant.per_token_cast_with_sf_only(x, "e4m3", 64, None, *flags)
        same(only, monotile.quant.per_token_cast(x, "e4m3", 64, None, *flags)[1])


@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize("kind", [ROW, COLUMN, PACKED])
def test_nothing_is_written_beside_the_outputs(kind: str, tokens: int) -> None:
    """Neither beside the tensors nor into the padding of their columns."""
    hidden, group, device = 320, 64, monotile.default_device()
    x = to_device(activations(tokens, hidden))
    layout = ScaleLayout(kind, 1, group)
    shape = layout.storage_shape(tokens, hidden)
    memory = torch.full((tokens * hidden + 128,), 77, dtype=torch.uint8, device=device)
    scales = torch.full((shape[0] * shape[1] + 64,), 77, dtype=layout.dtype, device=device)
    out = memory[64:-64].view(tokens, hidden).view(torch.float8_e4m3fn)
    storage = scales[32:-32].view(shape)
    launch(per_token_cast_kernel, x, out, storage, hidden=hidden, row_stride=hidden, group=group, source="bfloat16",
           fmt="e4m3", scales=kind, rounded=True, values=True)
    for beside in (memory[:64], memory[-64:], scales[:32], scales[-32:]):
        assert bool((beside == 77).all())
    flags = LAYOUTS[{ROW: "row, rounded", COLUMN: "column, rounded", PACKED: "packed"}[kind]]
    expected, expected_sf = reference.per_token_cast(x.cpu(), "e4m3", group, None, *flags)
    same(out, expected)
    same(layout.user_view(storage, tokens, hidden), expected_sf)
    if kind != ROW:
        assert bool((storage[:, tokens:] == 77).all())


@pytest.mark.parametrize("tokens,width", [(1, 256), (8, 512), (2, 1024)])
def test_other_tiles_give_the_same(tokens: int, width: int) -> None:
    for kernel in ("quant.per_token_cast", "quant.per_token_cast_with_precomputed_sf", "quant.per_token_recast"):
        with monotile.override_tiling(kernel, tokens=tokens, width=width):
            if kernel == "quant.per_token_recast":
                check(quantised(19, 576, "e4m3", (1, 128), "row"), "e4m3", 64, "row", (1, 128))
            else:
                check(activations(19, 576), "e4m3", 64)
                check(activations(19, 576), "e2m1", 64, "packed")


def test_unused_bytes_are_cleared() -> None:
    layout = ScaleLayout(PACKED, 1, 128)
    words = torch.full((5, 2), -1, dtype=torch.int32)
    cleared = scale_layout.clear_unused(words, layout, 5, 576)
    assert cleared[:, 0].tolist() == [-1] * 5 and cleared[:, 1].tolist() == [255] * 5


# ---------------------------------------------------------------------- bad input
def _x() -> torch.Tensor:
    return torch.zeros(4, 128)


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4, 128).to(torch.float8_e4m3fn), torch.ones(4, 2)


@pytest.mark.parametrize("arguments,words", [
    (lambda: (_x()[0], "e4m3", 128), "x must have 2 dimensions"),
    (lambda: (_x().half(), "e4m3", 128), "x must be bfloat16 or float32, got float16"),
    (lambda: (_x().T, "e4m3", 128), "have stride 1 in its last dimension"),
    (lambda: (_x()[:, :72], "e4m3", 128), "hidden must be a multiple of 64, got 72"),
    (lambda: (_x()[:, :0], "e4m3", 128), "x must have at least one column"),
    (lambda: (_x(), "e4m3", 48), "num_per_channels must be 16, 32, 64, 128 or hidden (128), got 48"),
    (lambda: (_x(), "e4m3", "128"), "num_per_channels must be 16, 32, 64, 128 or hidden (128), got '128'"),
    (lambda: ((torch.zeros(2, 9280).to(torch.float8_e4m3fn), torch.ones(2, 145)), "e4m3", 9280, (1, 64)),
     "num_per_channels must be at most 7168 for quantised x, got 9280"),
    (lambda: (_x(), "fp8", 128), "fmt must be one of 'e4m3', 'e2m1', got 'fp8'"),
    (lambda: (_x(), "e4m3", 128, None, True, False, True), "use_packed_ue8m0 must go with"),
    (lambda: (_x(), "e4m3", 128, None, False, True, True), "use_packed_ue8m0 must go with"),
    (lambda: (_x(), "e4m3", 128, (1, 128)), "x_block_size must be None for a tensor without scales"),
    (lambda: (_pair(), "e4m3", 128), "x_block_size must be (rows, columns) for quantised x"),
    (lambda: (_pair(), "e4m3", 128, (1, 48)), "x_block_size must have a power of two of columns"),
    (lambda: (_pair(), "e4m3", 128, (3, 64)), "x_block_size must have a power of two of rows"),
    (lambda: (_pair(), "e4m3", 128, (1, 128)), "x scales must have shape (4, 1)"),
    (lambda: ((_pair()[0], torch.ones(4, 2).double()), "e4m3", 128, (1, 64)), "x scales must be float32"),
    (lambda: ((_pair()[0].float(), _pair()[1]), "e4m3", 128, (1, 64)),
     "x values must be float8_e4m3fn or int8, got float32"),
    (lambda: ((*_pair(), _x()), "e4m3", 128, (1, 64)), "be a tensor or a pair"),
])
def test_bad_input(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.quant.per_token_cast(*arguments())
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.quant.per_token_cast_with_sf_only(*arguments())


@pytest.mark.parametrize("sf,words", [
    (lambda: torch.ones(4, 2), "sf must have shape (4, 1)"),
    (lambda: torch.ones(4, 1).int(), "sf must be float32, got int32"),
    (lambda: torch.ones(4), "sf must have 2 dimensions"),
])
def test_bad_scales(sf: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.quant.per_token_cast_with_precomputed_sf(_x(), "e4m3", 128, sf())
