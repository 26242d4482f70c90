"""moe.expand_to_fused and expand_to_fused_with_sf, bit for bit."""

import re
from typing import Any

import pytest
import torch

import monotile
from monotile.moe.expand_to_fused import expand_to_fused_kernel
from monotile.reference.moe import expand_to_fused as oracle
from monotile.targets.launch import launch

DTYPES = [torch.int8, torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32, torch.int64]


def bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)


def mapping(tokens: int, top_k: int, experts: int = 5, alignment: int = 16, masked: float = 0.2,
            seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(token_topk_to_pos, pos_to_expert) of a random routing: experts one after the other, padded, shuffled inside."""
    generator = torch.Generator().manual_seed(seed)
    expert = torch.randint(0, experts, (tokens, top_k), generator=generator)
    expert[torch.rand((tokens, top_k), generator=generator) < masked] = -1
    if experts > 2:
        expert[expert == 1] = 0   # an empty expert
    positions = torch.full((tokens * top_k,), -1, dtype=torch.int32)
    owners: list[int] = []
    for e in range(experts):
        named = (expert.flatten() == e).nonzero().flatten()
        named = named[torch.randperm(len(named), generator=generator)]
        positions[named] = torch.arange(len(owners), len(owners) + len(named), dtype=torch.int32)
        owners += [e] * len(named) + [-1] * (-len(named) % alignment)
    return positions.view(tokens, top_k), torch.tensor(owners, dtype=torch.int32)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(
        a.flatten().contiguous().view(torch.uint8), b.flatten().contiguous().view(torch.uint8))


def check(x: torch.Tensor, positions: torch.Tensor, owners: torch.Tensor) -> None:
    device = monotile.default_device()
    out = monotile.moe.expand_to_fused(x.to(device), positions.to(device), owners.to(device)).cpu()
    assert out.is_contiguous() and same_bits(out, oracle.expand_to_fused(x, positions, owners))


def check_with_sf(x: torch.Tensor, sf: torch.Tensor, group: int, positions: torch.Tensor, owners: torch.Tensor,
                  column_major: bool) -> None:
    device = monotile.default_device()
    out, out_sf = monotile.moe.expand_to_fused_with_sf(
        (x.to(device), sf.to(device)), group, positions.to(device), owners.to(device), column_major)
    want, want_sf = oracle.expand_to_fused_with_sf((x, sf), positions, owners, column_major)
    assert same_bits(out.cpu(), want) and same_bits(out_sf.cpu(), want_sf)
    assert out.is_contiguous() and out_sf.stride() == want_sf.stride()


@pytest.mark.parametrize("tokens", [1, 2, 31, 33, 127, 129, 4001])
def test_token_counts(tokens: int) -> None:
    check(bits((tokens, 72), torch.int8), *mapping(tokens, 6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [72, 33])
def test_dtypes_and_rows_that_are_no_whole_blocks(dtype: torch.dtype, hidden: int) -> None:
    check(bits((33, hidden), dtype), *mapping(33, 6))


@pytest.mark.parametrize("hidden", [1, 576, 7168, 9001])
def test_hidden_sizes(hidden: int) -> None:
    check(bits((17, hidden), torch.bfloat16), *mapping(17, 8))


@pytest.mark.parametrize("top_k", [1, 2, 9])
def test_numbers_of_choices(top_k: int) -> None:
    check(bits((40, 72), torch.bfloat16), *mapping(40, top_k))


def test_a_start_between_words() -> None:
    x = bits((34 * 36 + 1,), torch.int8)[1:].view(34, 36)
    check(x, *mapping(34, 2))


@pytest.mark.parametrize("case", ["no tokens", "no choices", "all masked"])
def test_padding_is_zeroed_whatever_the_tokens(case: str) -> None:
    tokens, top_k = {"no tokens": (0, 6), "no choices": (5, 0), "all masked": (5, 6)}[case]
    positions = torch.full((tokens, top_k), -1, dtype=torch.int32)
    owners = torch.full((45,), -1, dtype=torch.int32)
    check(bits((tokens, 72), torch.bfloat16), positions, owners)
    values, scales = bits((tokens, 72), torch.float8_e4m3fn), bits((tokens, 3), torch.float32)
    check_with_sf(values, scales, 32, positions, owners, True)


def test_no_positions_and_no_channels() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    masked = torch.full((5, 6), -1, dtype=torch.int32)
    check(bits((5, 72), torch.bfloat16), masked, none)
    check(bits((5, 0), torch.bfloat16), *mapping(5, 6))
    check_with_sf(bits((5, 72), torch.int8), bits((5, 3), torch.float32), 32, masked, none, False)
    check_with_sf(bits((5, 72), torch.int8), bits((5, 3), torch.float32), 32, masked, none, True)


@pytest.mark.parametrize("column_major", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("hidden,group", [(72, 32), (576, 128), (576, 32), (7168, 128)])
def test_scales(hidden: int, group: int, column_major: bool) -> None:
    sf = bits((33, -(-hidden // group)), torch.float32)
    check_with_sf(bits((33, hidden), torch.float8_e4m3fn), sf, group, *mapping(33, 6), column_major)


@pytest.mark.parametrize("hidden,group", [(72, 32), (576, 128), (7168, 32)])
def test_packed_scales(hidden: int, group: int) -> None:
    sf = bits((31, (hidden + 4 * group - 1) // (4 * group)), torch.int32)
    check_with_sf(bits((31, hidden), torch.float8_e4m3fn), sf, group, *mapping(31, 6), True)


def test_scales_of_two_channels_a_byte() -> None:
    check_with_sf(bits((31, 288), torch.int8), bits((31, 5), torch.float32), 128, *mapping(31, 6), True)


@pytest.mark.parametrize("tokens", [1, 31, 129])
def test_scales_of_token_counts(tokens: int) -> None:
    check_with_sf(bits((tokens, 72), torch.int8), bits((tokens, 3), torch.float32), 32,
                  *mapping(tokens, 2, alignment=1), True)


def test_masked_tokens_leave_no_trace() -> None:
    positions, owners = mapping(33, 6)
    positions[[3, 17]] = -1   # their rows stay named by no position: compare the others
    x = bits((33, 72), torch.bfloat16)
    x[[3, 17]] = float("nan")
    device = monotile.default_device()
    out = monotile.moe.expand_to_fused(x.to(device), positions.to(device), owners.to(device)).cpu()
    known = torch.zeros(len(owners), dtype=torch.bool)
    known[positions[positions >= 0].long()] = True
    known[owners < 0] = True
    assert same_bits(out[known], oracle.expand_to_fused(x, positions, owners)[known])


@pytest.mark.parametrize("item_bytes", [1, 4])
def test_nothing_is_written_beside_the_outputs(item_bytes: int) -> None:
    dtype = {1: torch.int8, 4: torch.int32}[item_bytes]
    device = monotile.default_device()
    positions, owners = mapping(33, 6)
    x, sf = bits((33, 72), dtype), bits((33, 3), torch.int32)
    memory = torch.full((len(owners) * 72 + 128,), 77, dtype=dtype, device=device)
    memory_sf = torch.full((len(owners) * 3 + 64,), 77, dtype=torch.int32, device=device)
    launch(expand_to_fused_kernel, x.to(device), sf.to(device), positions.to(device), owners.to(device),
           memory[64:-64].view(-1, 72), memory_sf[32:-32].view(-1, 3), item_bytes=item_bytes, columns=72, sf_columns=3,
           top_k=6)
    want, want_sf = oracle.expand_to_fused_with_sf((x, sf), positions, owners)
    for made, edge, expected in ((memory, 64, want), (memory_sf, 32, want_sf)):
        assert bool((made[:edge] == 77).all()) and bool((made[-edge:] == 77).all())
        assert torch.equal(made[edge:-edge].cpu(), expected.flatten())


def test_other_tiles_give_the_same() -> None:
    x, maps = bits((33, 576), torch.bfloat16), mapping(33, 6)
    for tile in ({"row_bytes": 1024}, {"rows": 8}, {"lane_bytes": 512}):
        with monotile.override_tiling("moe.expand_to_fused", **tile):
            check(x, *maps)


def i32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.mark.parametrize("x,positions,owners,words", [
    (torch.zeros(3), i32(3, 2), i32(8), "x must have 2 dimensions"),
    (torch.zeros(6, 3).T, i32(3, 2), i32(8), "x must be contiguous"),
    (torch.zeros(3, 6), i32(4, 2), i32(8), "token_topk_to_pos must have shape (3, any), got (4, 2)"),
    (torch.zeros(3, 6), i32(3, 2).long(), i32(8), "token_topk_to_pos must be int32, got int64"),
    (torch.zeros(3, 6), i32(2, 3).T, i32(8), "token_topk_to_pos must be contiguous"),
    (torch.zeros(3, 6), i32(3, 2), i32(8, 1), "pos_to_expert must have 1 dimensions"),
    (torch.zeros(3, 6), i32(3, 2), i32(8).long(), "pos_to_expert must be int32, got int64"),
    (torch.zeros(3, 6), i32(3, 2), i32(8).to("meta"), "tensors must be on one device"),
], ids=["rank", "layout", "tokens", "positions dtype", "positions layout", "owners rank", "owners dtype", "device"])
def test_bad_input(x: torch.Tensor, positions: torch.Tensor, owners: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.moe.expand_to_fused(x, positions, owners)


@pytest.mark.parametrize("x,group,column_major,words", [
    ((torch.zeros(3, 64), torch.zeros(3, 2)), 16, False, "num_per_channels must be one of 32, 128, got 16"),
    ((torch.zeros(3, 64), torch.zeros(3, 3)), 32, False, "x[1] must have shape (3, 2), got shape (3, 3)"),
    ((torch.zeros(3, 64), torch.zeros(4, 2)), 32, False, "x[1] must have shape (3, 2), got shape (4, 2)"),
    ((torch.zeros(3, 64), torch.zeros(3, 2).half()), 32, False, "x[1] must be float32 or int32, got float16"),
    ((torch.zeros(3, 64), torch.zeros(2, 3).T), 32, False, "x[1] must be contiguous"),
    ((torch.zeros(3, 64), i32(3, 1)), 32, False, "use_tma_aligned_col_major_sf must be True for packed scales"),
    (torch.zeros(3, 64), 32, False, "x must be a pair (data, sf)"),
], ids=["group", "width", "tokens", "dtype", "layout", "packed rows", "no pair"])
def test_bad_scales(x: Any, group: int, column_major: bool, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.moe.expand_to_fused_with_sf(x, group, i32(3, 2), i32(8), column_major)
