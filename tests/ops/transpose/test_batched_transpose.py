"""transpose and batched_transpose against torch, bit for bit."""

import re
from typing import Any

import pytest
import torch

import monotile
from monotile.reference.transpose.batched_transpose import batched_transpose as oracle
from monotile.targets.build import lower
from monotile.targets.spec import CUDA_SM90
from monotile.transpose.batched_transpose import (
    MAX_BLOCKS,
    MAX_ROWS,
    MAX_STRIDE,
    batched_transpose_kernel,
    launches,
    transpose_into,
)

DTYPES = [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.int16, torch.float16, torch.bfloat16,
          torch.int32, torch.float32]
SHAPES = [(1, 1, 1), (2, 64, 192), (2, 128, 256), (3, 31, 33), (1, 127, 129), (1, 300, 257), (2, 2, 4001),
          (1, 4001, 72)]


def bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Every bit pattern is possible: NaN with any payload, subnormals, both zeros."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool().to(monotile.default_device())
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape).to(monotile.default_device())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = bits(shape, dtype)
    out = monotile.transpose.batched_transpose(x)
    assert out.is_contiguous() and same_bits(out, oracle(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    x = bits((2, 65, 34), dtype)
    assert same_bits(monotile.transpose.batched_transpose(x), oracle(x))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 5), (2, 5, 0), (0, 0, 0)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    out = monotile.transpose.batched_transpose(bits(shape, torch.float16))
    assert out.shape == (shape[0], shape[2], shape[1]) and out.dtype == torch.float16 and out.is_contiguous()


def test_matrix() -> None:
    x = bits((129, 31), torch.bfloat16)
    assert same_bits(monotile.transpose.transpose(x), oracle(x))


VIEWS = {
    "rows apart": lambda x: x[:, :, :50],
    "rows apart, unaligned start": lambda x: x[:, 1:, 3:67],
    "every other row": lambda x: x[:, ::2],
    "every other batch": lambda x: x[::2],
    "one batch repeated": lambda x: x[:1].expand(3, -1, -1),
    "rows and batches exchanged": lambda x: x.transpose(0, 1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_strided_views(view: str, dtype: torch.dtype) -> None:
    x = VIEWS[view](bits((4, 66, 100), dtype))
    assert same_bits(monotile.transpose.batched_transpose(x), oracle(x))


def test_two_runs_are_equal_and_the_input_is_kept() -> None:
    x = bits((2, 33, 127), torch.float16)
    before = x.clone()
    first, second = monotile.transpose.batched_transpose(x), monotile.transpose.batched_transpose(x)
    assert same_bits(first, second) and same_bits(x, before)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_nothing_is_written_beside_the_output_or_in_its_padding(dtype: torch.dtype) -> None:
    x = bits((2, 33, 71), dtype)
    memory = bits((2 * 71 * 40 + 128,), dtype, seed=1)
    before = memory.clone()
    out = memory[64:-64].view(2, 71, 40)[:, :, :33]
    transpose_into(x, out)
    assert same_bits(out, oracle(x))
    out.copy_(before[64:-64].view(2, 71, 40)[:, :, :33])
    assert same_bits(memory, before)


def test_other_tiles_give_the_same() -> None:
    x = bits((1, 100, 150), torch.bfloat16)
    for tile in ({"rows": 64}, {"row_bytes": 128}):
        with monotile.override_tiling("transpose.batched_transpose", **tile):
            assert same_bits(monotile.transpose.batched_transpose(x), oracle(x))


def test_no_launch_passes_the_limits_of_a_grid_or_of_a_stride() -> None:
    for batches, rows, columns in ((2 * MAX_BLOCKS + 3, 3, 2), (1, 2 * MAX_ROWS + 5, 1), (3, 1 << 16, 1 << 16)):
        x = torch.empty((batches, rows, columns), dtype=torch.int8, device="meta")
        out = torch.empty((batches, columns, rows), dtype=torch.int8, device="meta")
        seen: set[tuple[int, int]] = set()
        for part, out_part in launches(x, out):
            assert part.shape[0] <= MAX_BLOCKS and part.shape[1] <= MAX_ROWS
            assert out_part.shape == (part.shape[0], part.shape[2], part.shape[1])
            assert max(*part.stride(), *out_part.stride()) <= MAX_STRIDE
            batch, rest = divmod(part.storage_offset(), rows * columns)
            assert out_part.storage_offset() == batch * rows * columns + rest // columns
            seen |= {(batch, rest // columns)}
        covered = -(-batches // MAX_BLOCKS) * -(-rows // MAX_ROWS)
        assert len(seen) == (covered if rows * columns <= MAX_STRIDE else batches)


def test_offsets_are_64_bit_on_cuda() -> None:
    params: dict[str, Any] = {"item_bytes": 2, "row_divisor": 1, "column_divisor": 1}
    text = lower(batched_transpose_kernel, params, CUDA_SM90).text
    for tensor, strides in (("x", ("batch_stride", "row_stride")), ("out", ("out_batch_stride", "out_row_stride"))):
        accesses = [line for line in text.splitlines() if re.search(rf"\b{tensor}( \+|\[)", line)]
        assert accesses
        for line in accesses:
            assert all(f"((int64_t){stride})" in line for stride in strides), line


@pytest.mark.parametrize("argument,words", [
    (lambda: torch.zeros(4, 4, dtype=torch.float64), "x must have items of 1, 2 or 4 bytes, got float64"),
    (lambda: torch.zeros(4, dtype=torch.float32), "x must have 2 dimensions"),
    (lambda: torch.zeros(4, 6).T, "stride 1 in its last dimension"),
    (lambda: torch.zeros(4, 6)[:, ::2], "stride 1 in its last dimension"),
    (lambda: [[1.0]], "x must be a torch.Tensor"),
], ids=["dtype", "rank", "transposed", "stepped", "list"])
def test_bad_input(argument: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.transpose.transpose(argument())
