"""Where scales lie: shapes, strides and storage of the three layouts; what is refused."""

import re
from typing import Any

import pytest
import torch

from monotile import check
from monotile.quant.scale_layout import COLUMN, PACKED, ROW, ScaleLayout, layout_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind,shape,strides,dtype", [
    (ROW, (5, 5), (5, 1), torch.float32), (COLUMN, (5, 5), (1, 8), torch.float32),
    (PACKED, (5, 2), (1, 8), torch.int32)])
def test_five_tokens_of_576_in_groups_of_128(kind: str, shape: tuple[int, int], strides: tuple[int, int],
                                             dtype: torch.dtype) -> None:
    layout = ScaleLayout(kind, 1, 128)
    storage = layout.allocate(5, 576, CPU)
    seen = layout.user_view(storage, 5, 576)
    assert (tuple(seen.shape), seen.stride(), seen.dtype) == (shape, strides, dtype)
    back = layout.storage_of(seen, "sf", 5, 576)
    assert back.data_ptr() == storage.data_ptr()
    assert layout_of(seen, (1, 128)) == layout


@pytest.mark.parametrize("kind", [ROW, COLUMN, PACKED])
@pytest.mark.parametrize("tokens,hidden,block", [(0, 576, (1, 128)), (1, 64, (1, 128)), (33, 576, (32, 32)),
                                                 (129, 7168, (128, 128))])
def test_a_storage_round_trips(kind: str, tokens: int, hidden: int, block: tuple[int, int]) -> None:
    layout = ScaleLayout(kind, *block)
    storage = layout.allocate(tokens, hidden, CPU)
    assert storage.is_contiguous() and tuple(storage.shape) == layout.storage_shape(tokens, hidden)
    seen = layout.user_view(storage, tokens, hidden)
    kept = layout.storage_of(seen, "sf", tokens, hidden)
    assert kept.numel() == 0 or kept.data_ptr() == storage.data_ptr()


@pytest.mark.parametrize("make,words", [
    (lambda: torch.zeros(5), "sf must have 2 dimensions"),
    (lambda: torch.zeros(5, 5).half(), "sf must be float32, or int32"),
    (lambda: torch.zeros(5, 10)[:, ::2], "must be row-major or column-major"),
])
def test_no_layout(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        layout_of(make(), (1, 128), "sf")


@pytest.mark.parametrize("kind,make,words", [
    (ROW, lambda: torch.zeros(5, 4), "sf must have shape (5, 5) for 5 x 576 in blocks of 1 x 128, got (5, 4)"),
    (PACKED, lambda: torch.zeros(5, 2, dtype=torch.int32), "must be column-major"),
    (COLUMN, lambda: torch.zeros(25).as_strided((5, 5), (1, 4)), "must be column-major"),
])
def test_scales_that_lie_otherwise(kind: str, make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ScaleLayout(kind, 1, 128).storage_of(make(), "sf", 5, 576)


@pytest.mark.parametrize("call,words", [
    (lambda: check.require(False, "k", 3, "be even"), "k must be even, got 3"),
    (lambda: check.tensor([1], "x"), "x must be a torch.Tensor, got list"),
    (lambda: check.tensor(torch.zeros(3), "x", rank=2), "x must have 2 dimensions, got shape (3,)"),
    (lambda: check.tensor(torch.zeros(3), "x", dtypes=(torch.int32, torch.int64)),
     "x must be int32 or int64, got float32"),
    (lambda: check.tensor(torch.zeros(3, 4), "x", shape=(None, 5)), "x must have shape (any, 5), got (3, 4)"),
    (lambda: check.tensor(torch.zeros(3, 4).T, "x", contiguous=True), "x must be contiguous, got strides (1, 4)"),
    (lambda: check.unit_stride(torch.zeros(3, 4).T, "x"), "x must have stride 1 in its last dimension"),
    (lambda: check.one_of("c", "fmt", ("a", "b")), "fmt must be one of 'a', 'b', got 'c'"),
    (lambda: check.multiple_of(72, "hidden", 64), "hidden must be a multiple of 64, got 72"),
    (lambda: check.same_device(x=torch.zeros(1), sf=torch.zeros(1, device="meta")),
     "tensors must be on one device, got x on cpu, sf on meta"),
])
def test_checks_name_argument_value_and_need(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
