"""moe.normalize_weight, bit for bit: the order of the sum is part of the result."""

import re
from typing import Any

import pytest
import torch

import monotile
from monotile.moe.normalize_weight import normalize_weight_kernel
from monotile.parity.tolerances import bound
from monotile.reference.moe.normalize_weight import normalize_weight as oracle
from monotile.targets.launch import launch


def weights(tokens: int, top_k: int, seed: int = 0) -> torch.Tensor:
    return torch.rand((tokens, top_k), generator=torch.Generator().manual_seed(seed))


def check(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    denominator, normalized = (t.cpu() for t in monotile.moe.normalize_weight(w.to(monotile.default_device())))
    expected = oracle(w)
    for got, want in zip((denominator, normalized), expected, strict=True):
        assert got.dtype == torch.float32 and got.shape == want.shape and got.is_contiguous()
        torch.testing.assert_close(got, want, **bound("moe.normalize_weight").rtol_atol, equal_nan=True)
    return denominator, normalized


@pytest.mark.parametrize("tokens", [0, 1, 2, 31, 33, 127, 129, 4001])
def test_token_counts(tokens: int) -> None:
    check(weights(tokens, 6))


@pytest.mark.parametrize("top_k", [1, 2, 3, 7, 8, 9, 16, 31, 32])
def test_numbers_of_choices(top_k: int) -> None:
    check(weights(130, top_k))


def test_order_of_the_sum() -> None:
    """Terms that swallow one another: every other order gives another sum."""
    w = torch.tensor([[1e8, 1.0, -1e8, 1.0, 3.0, 1e-9], [1.0, 1.0, 1e8, -1e8, 3.0, 1e-9]])
    denominator, _ = check(w)
    assert denominator.tolist() == [4.0, 3.0]
    magnitudes = 10.0 ** torch.randint(-12, 12, (300, 9), generator=torch.Generator().manual_seed(3))
    check(weights(300, 9, seed=4) * magnitudes)


def test_rows_of_zeros_and_tiny_numbers() -> None:
    w = torch.zeros(5, 6)
    w[1, 2], w[2, 0], w[3] = 1e-20, 1e-30, 1e-45
    denominator, normalized = check(w)
    assert denominator[0] == torch.tensor(1e-20) and bool((normalized[0] == 0).all())
    assert bool(normalized.isfinite().all())


def test_nan_and_inf_stay_in_their_row() -> None:
    w = weights(70, 6)
    w[3, 1], w[40, 5] = float("nan"), float("inf")
    denominator, normalized = check(w)
    others = [t for t in range(70) if t not in (3, 40)]
    assert bool(denominator[others].isfinite().all()) and bool(normalized[others].isfinite().all())
    assert bool(normalized[3].isnan().all()) and normalized[40].isnan().tolist() == [False] * 5 + [True]


def test_other_tiles_give_the_same() -> None:
    w = weights(300, 9)
    for tokens in (64, 256):
        with monotile.override_tiling("moe.normalize_weight", tokens=tokens, threads=64):
            check(w)


@pytest.mark.parametrize("tokens,top_k", [(33, 6), (129, 9), (1, 1)])
def test_nothing_is_written_beside_the_outputs(tokens: int, top_k: int) -> None:
    device = monotile.default_device()
    w = weights(tokens, top_k)
    first = torch.full((tokens + 64,), 77.0, device=device)
    second = torch.full((tokens * top_k + 64,), 77.0, device=device)
    launch(normalize_weight_kernel, w.to(device), first[32:-32], second[32:-32].view(tokens, top_k), top_k=top_k)
    for memory, want in zip((first, second), oracle(w), strict=True):
        assert bool((memory[:32] == 77).all()) and bool((memory[-32:] == 77).all())
        assert torch.equal(memory[32:-32].cpu(), want.flatten())


@pytest.mark.parametrize("w,words", [
    (lambda: torch.zeros(3, 33), "topk_weights must have 1 to 32 columns, got 33 columns"),
    (lambda: torch.zeros(3, 0), "topk_weights must have 1 to 32 columns, got 0 columns"),
    (lambda: torch.zeros(3, 4, dtype=torch.bfloat16), "topk_weights must be float32, got bfloat16"),
    (lambda: torch.zeros(3), "topk_weights must have 2 dimensions"),
    (lambda: torch.zeros(4, 3).T, "topk_weights must be contiguous"),
    (lambda: torch.zeros(4, 6)[:, ::2], "topk_weights must be contiguous"),
], ids=["wide", "empty", "dtype", "rank", "transposed", "stepped"])
def test_bad_input(w: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.moe.normalize_weight(w())
