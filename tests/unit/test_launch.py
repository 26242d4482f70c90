"""Launching: one build a key, arguments checked against the signature, empty grids, threads."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monotile.compat import language as T
from monotile.compat.errors import TargetMismatch, TileTooLarge
from monotile.targets import launch as launch_module
from monotile.targets.build import lower
from monotile.targets.kernel import Kernel
from monotile.targets.launch import Loaded, ahead_of_time, launch, prepare
from monotile.targets.select import use_target
from monotile.targets.spec import ASCEND_910B
from monotile.targets.tiling import Tiling


def _scale(hidden: int, *, tile: Tiling) -> Any:
    n, stride = T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def scale_rows(
        x: T.StridedTensor[(n, hidden), (stride, 1), T.bfloat16],
        factor: T.Tensor[(n,), T.float32],
        y: T.Tensor[(n, hidden), T.float32],
    ):
        with T.Kernel(T.ceildiv(n, tile.tokens), threads=tile.threads) as block:
            rows = T.alloc_fragment((tile.tokens, hidden), T.float32)
            f = T.alloc_fragment((tile.tokens,), T.float32)
            T.copy(x[block * tile.tokens, 0], rows)
            T.copy(factor[block * tile.tokens], f)
            for i, j in T.Parallel(tile.tokens, hidden):
                rows[i, j] = rows[i, j] * f[i]
            T.copy(rows, y[block * tile.tokens, 0])
    return scale_rows


def _new_kernel() -> Kernel:
    return Kernel("test.scale_rows", _scale, Tiling(tokens=8, threads=128),
                  lambda tile, hidden: 4 * tile.tokens * (hidden + 1))


@pytest.fixture(scope="module")
def scale() -> Kernel:
    return _new_kernel()


@pytest.fixture(autouse=True)
def on_910b() -> Iterator[None]:
    with use_target("ascend-910b"):
        yield


def _arguments(tokens: int, hidden: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return (torch.randn(tokens, hidden, generator=generator).bfloat16(), torch.randn(tokens, generator=generator),
            torch.full((tokens, hidden), torch.nan))


@pytest.mark.parametrize("tokens", [1, 7, 8, 33])
def test_a_launch_computes(scale: Kernel, tokens: int) -> None:
    x, factor, y = _arguments(tokens)
    launch(scale, x, factor, y, hidden=64)
    assert torch.equal(y, x.float() * factor[:, None])


def test_strided_rows_and_a_start_inside_a_tensor(scale: Kernel) -> None:
    x, factor, y = _arguments(33, 192)
    x, out = x[:, 64:128], torch.full((33, 64), torch.nan)
    launch(scale, x, factor, out, hidden=64)
    assert torch.equal(out, x.float() * factor[:, None]) and torch.isnan(y).all()


def test_no_tokens_launch_nothing(scale: Kernel) -> None:
    x, factor, y = _arguments(0)

    def fails(tensors: Any) -> None:
        raise AssertionError("an empty grid was launched")

    artifact = lower(scale, {"hidden": 64}, ASCEND_910B)
    Loaded(artifact, fails)((x, factor, y))
    with pytest.raises(AssertionError):   # the runner is used as soon as there is one token
        Loaded(artifact, fails)(_arguments(1))
    launch(scale, x, factor, y, hidden=64)


def test_builds_are_found_again_by_parameters_tile_and_target(scale: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = _arguments(3)
    first = prepare(scale, *arguments, hidden=64)
    assert prepare(scale, *_arguments(5), hidden=64) is first
    wide = prepare(scale, *_arguments(5, 128), hidden=128)
    assert wide is not first
    with use_target("ascend-910c"):
        other = prepare(scale, *arguments, hidden=64)
    assert other is not first and other.artifact.target.name == "ascend-910c"
    assert prepare(scale, *arguments, hidden=64) is first


def test_threads_share_one_build(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, lowered = _new_kernel(), []

    def counting(*arguments: Any, **keywords: Any) -> Any:
        lowered.append(threading.get_ident())
        time.sleep(0.05)
        return lower(*arguments, **keywords)

    monkeypatch.setattr(launch_module, "lower", counting)
    wrong, lock = [], threading.Lock()

    def work(tokens: int) -> None:
        x, factor, y = _arguments(tokens)
        with use_target("ascend-910b"):
            launch(fresh, x, factor, y, hidden=64)
        with lock:
            wrong.extend([] if torch.equal(y, x.float() * factor[:, None]) else [tokens])

    threads = [threading.Thread(target=work, args=(tokens,)) for tokens in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lowered) == 1 and wrong == []


def test_a_build_that_fails_fails_again_and_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Kernel("test.large", _scale, Tiling(tokens=8, threads=128), lambda tile, hidden: 10**9)
    for _ in range(2):
        with pytest.raises(TileTooLarge, match=r"test.large"):
            launch(fresh, *_arguments(3), hidden=64)


BAD: dict[str, tuple[Any, str]] = {
    "count": (lambda x, f, y: (x, f), r"takes 3 tensors, got 2"),
    "dtype": (lambda x, f, y: (x.float(), f, y), r"x must be bfloat16, got float32"),
    "rank": (lambda x, f, y: (x, f[:, None], y), r"factor must have 1 dimensions, got shape \(9, 1\)"),
    "static size": (lambda x, f, y: (x[:, :32], f, y), r"size 1 of x must be 64, got 32"),
    "symbol": (lambda x, f, y: (x, f[:8], y),
               r"size 0 of factor must be 9 \(n, as in shape 0 of x\), got 8"),
    "inner stride": (lambda x, f, y: (x.repeat(1, 2)[:, ::2], f, y), r"stride 1 of x must be 1, got 2"),
    "row stride of an output": (lambda x, f, y: (x, f, y.repeat(1, 2)[:, :64]),
                                r"stride 0 of y must be 64, got 128"),
    "device": (lambda x, f, y: (x, f, y.to("meta")), r"one device"),
}


@pytest.mark.parametrize("case", BAD)
def test_arguments_that_do_not_fit_are_refused_in_words(scale: Kernel, case: str) -> None:
    change, message = BAD[case]
    x, factor, y = _arguments(9)
    launch(scale, x, factor, y, hidden=64)   # a good call before does not help a bad one
    with pytest.raises(ValueError, match=message) as caught:
        launch(scale, *change(x, factor, y), hidden=64)
    assert isinstance(caught.value, TargetMismatch) == (case == "device")


def test_a_symbol_must_fit_in_32_bits(scale: Kernel) -> None:
    x = torch.empty(0, 64, dtype=torch.bfloat16).as_strided((0, 64), (2**31, 1))
    with pytest.raises(ValueError, match=r"stride 0 of x is 2147483648, and must be below 2147483648"):
        launch(scale, x, torch.empty(0), torch.empty(0, 64), hidden=64)


def test_strides_that_are_never_used_do_not_matter(scale: Kernel) -> None:
    x, factor, y = _arguments(1)
    odd = y.as_strided((1, 64), (1, 1))
    launch(scale, x, factor, odd, hidden=64)
    assert torch.equal(y, x.float() * factor[:, None])


def test_many_layouts_do_not_pile_up(scale: Kernel) -> None:
    artifact = lower(scale, {"hidden": 64}, ASCEND_910B)
    calls: list[int] = []
    ready = Loaded(artifact, lambda tensors: calls.append(tensors[0].shape[0]))
    for tokens in range(1, 1200):
        ready((torch.empty(tokens, 64, dtype=torch.bfloat16), torch.empty(tokens), torch.empty(tokens, 64)))
    assert len(calls) == 1199 and len(ready._layouts) <= launch_module._KNOWN_LAYOUTS


def test_ahead_of_time_builds_for_a_device_that_is_not_here_and_runs_nothing(scale: Kernel) -> None:
    x, factor, y = _arguments(9)
    with ahead_of_time("cuda", compiled=False) as artifacts:
        launch(scale, x, factor, y, hidden=64)
        launch(scale, *_arguments(5), hidden=64)
        launch(scale, *_arguments(5, 128), hidden=128)
        with pytest.raises(ValueError, match="x must be bfloat16"):
            launch(scale, x.float(), factor, y, hidden=64)
    assert [(a.target.name, a.params["hidden"], a.directory) for a in artifacts()] == [
        ("cuda-sm90", 64, None), ("cuda-sm90", 128, None)]
    assert torch.isnan(y).all()
    launch(scale, x, factor, y, hidden=64)   # afterwards calls run again
    assert torch.equal(y, x.float() * factor[:, None])
