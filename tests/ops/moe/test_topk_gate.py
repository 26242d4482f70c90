"""moe.topk_gate: one right answer for every row, ties, NaN and -inf included."""

import re
from typing import Any

import pytest
import torch

import monotile
from monotile.moe.topk_gate import topk_gate_kernel
from monotile.reference.moe.topk_gate import topk_gate as oracle
from monotile.targets.launch import launch

INF, NAN = float("inf"), float("nan")


def normal(tokens: int, experts: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((tokens, experts), generator=torch.Generator().manual_seed(seed))


def check(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    chosen: torch.Tensor = monotile.moe.topk_gate(scores.to(monotile.default_device()), top_k).cpu()
    assert chosen.dtype == torch.int64 and chosen.shape == (scores.shape[0], top_k) and chosen.is_contiguous()
    assert torch.equal(chosen, oracle(scores, top_k))
    ordered = chosen.sort(dim=1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all())   # distinct
    assert chosen.numel() == 0 or (int(chosen.min()) >= 0 and int(chosen.max()) < scores.shape[1])
    return chosen


@pytest.mark.parametrize("tokens", [0, 1, 2, 31, 33, 127, 129, 4001])
def test_token_counts(tokens: int) -> None:
    check(normal(tokens, 72), 6)


@pytest.mark.parametrize("experts,top_k", [(1, 1), (2, 2), (5, 3), (8, 8), (33, 1), (64, 32), (256, 8), (288, 9),
                                           (384, 7), (512, 10), (1024, 8)])
def test_experts(experts: int, top_k: int) -> None:
    check(normal(37, experts), top_k)


def test_rows_with_ties() -> None:
    scores = torch.randint(-2, 3, (257, 72), generator=torch.Generator().manual_seed(1)).float()
    check(scores, 9)


SPECIAL = {
    "all equal": [1.0] * 40,
    "all zero, signs mixed": [0.0, -0.0] * 20,
    "all -inf": [-INF] * 40,
    "all inf": [INF] * 40,
    "all NaN": [NAN] * 40,
    "three above -inf": [-INF] * 17 + [3.0, -1e38, 2.0] + [-INF] * 20,
    "NaN first": [NAN, NAN, -INF, -3.4e38, NAN, 5.0] + [NAN] * 34,
    "NaN and -inf": [NAN, -INF] * 20,
    "NaN among numbers": [1.0, NAN, 2.0, NAN, 2.0, INF, -INF, 0.5] * 5,
    "zeros of both signs among small numbers": [-0.0, 1e-45, 0.0, -1e-45, -0.0, 1.1754944e-38, 0.0, -1.1754944e-38] * 5,
    "largest and smallest": [3.4028235e38, -3.4028235e38, INF, -INF, 1e-45, -1e-45, 0.0, 1.0] * 5,
    "neighbours": [1.0, 1.0000001, 0.99999994, -1.0, -1.0000001, -0.99999994, 2.0, -2.0] * 5,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_rows(name: str) -> None:
    row = torch.tensor(SPECIAL[name])
    scores = torch.stack([row, row.flip(0), normal(1, 40)[0]])
    check(scores, 8)


def test_the_answers_in_words() -> None:
    """Against the rule itself, so that oracle and kernel cannot share a mistake."""
    rows = torch.tensor([[-INF] * 6, [NAN] * 6, [NAN, -INF, 0.0, -0.0, -INF, NAN], [0.0, -0.0, 0.0, -1.0, NAN, 7.0]])
    expected = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [2, 3, 1, 4, 0, 5], [5, 0, 1, 2, 3, 4]]
    assert check(rows, 6).tolist() == expected


def test_nan_of_any_sign_and_payload() -> None:
    patterns = torch.tensor([0x7FC00000, -0x400000, 0x7F800001, -0x7FFFFF, 0x7FFFFFFF, -1], dtype=torch.int32)
    scores = torch.cat([patterns.view(torch.float32), torch.tensor([-INF, 1.0])])[None].repeat(3, 1)
    assert check(scores, 8).tolist() == [[7, 6, 0, 1, 2, 3, 4, 5]] * 3


def test_any_bit_pattern() -> None:
    raw = torch.randint(-(1 << 31), 1 << 31, (129, 72), generator=torch.Generator().manual_seed(2), dtype=torch.int64)
    check(raw.to(torch.int32).view(torch.float32), 9)


def test_a_row_does_not_touch_its_neighbours() -> None:
    scores = normal(33, 64)
    before = check(scores, 6)
    scores[7], scores[20] = NAN, -INF
    after = check(scores, 6)
    kept = [t for t in range(33) if t not in (7, 20)]
    assert torch.equal(before[kept], after[kept])


def test_other_tiles_give_the_same() -> None:
    scores = normal(45, 72)
    # TileLang finds no layout on a GPU for 72 experts of many tokens over many threads
    tiles = [(8, 128), (32, 128)] if monotile.resolve().target.is_ascend else [(1, 32), (2, 32)]
    for tokens, threads in tiles:
        with monotile.override_tiling("moe.topk_gate", tokens=tokens, threads=threads):
            check(scores, 6)


@pytest.mark.parametrize("tokens,top_k", [(33, 6), (1, 3)])
def test_nothing_is_written_beside_the_output(tokens: int, top_k: int) -> None:
    device = monotile.default_device()
    scores = normal(tokens, 72).to(device)
    memory = torch.full((tokens * top_k + 64,), 77, dtype=torch.int64, device=device)
    launch(topk_gate_kernel, scores, memory[32:-32].view(tokens, top_k), num_experts=72, top_k=top_k)
    assert bool((memory[:32] == 77).all()) and bool((memory[-32:] == 77).all())
    assert torch.equal(memory[32:-32].view(tokens, top_k).cpu(), oracle(scores.cpu(), top_k))


@pytest.mark.parametrize("scores,top_k,words", [
    (lambda: torch.zeros(3, 8), 9, "num_topk must be 1 to the number of experts, 8, got 9"),
    (lambda: torch.zeros(3, 8), 2.0, "num_topk must be an int, got 2.0"),
    (lambda: torch.zeros(3, 8), 0, "num_topk must be 1 to the number of experts, 8, got 0"),
    (lambda: torch.zeros(3, 8, dtype=torch.float16), 2, "scores must be float32, got float16"),
    (lambda: torch.zeros(24), 2, "scores must have 2 dimensions"),
    (lambda: torch.zeros(8, 3).T, 2, "scores must be contiguous"),
], ids=["k over E", "k no int", "k zero", "dtype", "rank", "layout"])
def test_bad_input(scores: Any, top_k: int, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.moe.topk_gate(scores(), top_k)
