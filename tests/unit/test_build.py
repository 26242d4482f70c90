"""From kernel to artifact: what the cache's key depends on, what is kept, and what errors say."""

import json
from pathlib import Path
from typing import Any

import pytest

from monotile.compat import language as T
from monotile.compat.errors import LoweringError, TargetMismatch, TileTooLarge, UnsupportedOnTarget
from monotile.targets import build as build_module
from monotile.targets import kernel as kernel_module
from monotile.targets.backend import Source, backend
from monotile.targets.backend import backend as find_backend
from monotile.targets.build import build, compile_source, lower, lower_text
from monotile.targets.kernel import Kernel
from monotile.targets.spec import ASCEND_910B, ASCEND_910C, CUDA_SM90
from monotile.targets.tiling import Tiling


def _negate(hidden: int, *, tile: Tiling) -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def negate(x: T.Tensor[(n, hidden), T.float32], y: T.Tensor[(n, hidden), T.float32]):
        with T.Kernel(T.ceildiv(n, tile.tokens), threads=tile.threads) as block:
            rows = T.alloc_fragment((tile.tokens, hidden), T.float32)
            T.copy(x[block * tile.tokens, 0], rows)
            for i, j in T.Parallel(tile.tokens, hidden):
                rows[i, j] = 0.0 - rows[i, j]
            T.copy(rows, y[block * tile.tokens, 0])
    return negate


NEGATE = Kernel("test.negate", _negate, Tiling(tokens=8, threads=128), lambda tile, hidden: 4 * tile.tokens * hidden)


@pytest.fixture(autouse=True)
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(tmp_path))
    return tmp_path


class Fake:
    """A backend that compiles in no time."""

    name = "npuir"

    def __init__(self, flags: tuple[str, ...] = ("-O2",), version: str = "1.0") -> None:
        self._flags, self._version, self.compiled = flags, version, 0

    def lower(self, func: Any, target: Any, op: str) -> Source:
        return find_backend("npuir").lower(func, target, op)

    def flags(self, target: Any) -> tuple[str, ...]:
        return self._flags

    def tool_versions(self) -> tuple[str, ...]:
        return (f"fake {self._version}",)

    def compile(self, source: Source, target: Any, directory: Path, op: str) -> None:
        self.compiled += 1
        (directory / "out").write_text(source.text[::-1])

    def load(self, source: Source, target: Any, directory: Path, executor: str, op: str) -> Any:
        return lambda tensors: None


def _source(text: str = "text") -> Source:
    return Source(text, ".mlir", "negate", (), ())


def test_lowering_gives_text_and_compiles_nothing(cold_cache: Path) -> None:
    made = lower(NEGATE, {"hidden": 64}, ASCEND_910B)
    assert "func.func @negate" in made.text and made.source.suffix == ".mlir"
    assert (made.op, made.target, made.backend, made.tile["tokens"]) == ("test.negate", ASCEND_910B, "npuir", 8)
    assert made.directory is None and made.compile_seconds is None and made.lower_seconds > 0
    assert not list(cold_cache.iterdir())


def test_lower_text_finds_the_kernel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "_registry", {"test.negate": NEGATE})
    assert "negate_kernel" in lower_text("test.negate", "cuda", hidden=64)
    assert "hacc.target" in lower_text("test.negate", ASCEND_910C, hidden=64)
    with pytest.raises(ValueError, match=r"no kernel 'test.unknown'"):
        lower_text("test.unknown", "cuda", hidden=64)


def test_the_second_build_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(build_module, "backend", lambda name: fake)
    first = build(NEGATE, {"hidden": 64}, ASCEND_910B)
    second = build(NEGATE, {"hidden": 64}, ASCEND_910B)
    assert fake.compiled == 1 and first.directory == second.directory
    assert first.compile_seconds is not None and second.compile_seconds is None
    assert first.directory is not None
    assert (first.directory / "source.mlir").read_text() == first.text
    about = json.loads((first.directory / "manifest.json").read_text())["about"]
    assert about == {"op": "test.negate", "target": "ascend-910b", "backend": "npuir", "tools": ["-O2", "fake 1.0"],
                     "tile": {"tokens": 8, "threads": 128}, "params": {"hidden": 64}}


def test_the_key_holds_text_target_op_flags_and_versions() -> None:
    folders = [
        compile_source(way, source, target, op, {})[0] for way, source, target, op in [
            (Fake(), _source(), ASCEND_910B, "test.negate"),
            (Fake(), _source("other text"), ASCEND_910B, "test.negate"),
            (Fake(), _source(), ASCEND_910C, "test.negate"),
            (Fake(), _source(), ASCEND_910B, "test.other"),
            (Fake(flags=("-O3",)), _source(), ASCEND_910B, "test.negate"),
            (Fake(version="1.1"), _source(), ASCEND_910B, "test.negate"),
        ]]
    assert len(set(folders)) == len(folders)
    assert compile_source(Fake(), _source(), ASCEND_910B, "test.negate", {}) == (folders[0], False)


def test_a_tile_reaches_the_text_and_so_the_key() -> None:
    small, large = (lower(NEGATE, {"hidden": 64}, ASCEND_910B, tile=Tiling(tokens=t, threads=128)) for t in (8, 16))
    assert small.text != large.text


def test_a_refused_source_is_kept_and_named(cold_cache: Path) -> None:
    class Refusing(Fake):
        def compile(self, source: Source, target: Any, directory: Path, op: str) -> None:
            raise LoweringError(op, target.name, "accept", "error: no such operation")

    with pytest.raises(LoweringError) as caught:
        compile_source(Refusing(), _source("the text"), ASCEND_910B, "test.negate", {})
    assert caught.value.saved is not None and str(caught.value.saved) in str(caught.value)
    assert Path(caught.value.saved).read_text() == "the text"
    assert caught.value.stage == "accept" and cold_cache in Path(caught.value.saved).parents


def test_what_is_asked_for_wrongly_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was traced")

    untraced = Kernel("test.untraced", never, NEGATE.tiling, lambda tile, hidden: 4 * tile.tokens * hidden)
    with pytest.raises(TileTooLarge, match=r"test.untraced.*tokens=8"):
        lower(untraced, {"hidden": 10**6}, ASCEND_910B)
    with pytest.raises(TileTooLarge, match=r"tokens=800"):
        lower(untraced, {"hidden": 1024}, ASCEND_910B, tile=Tiling(tokens=800, threads=128))
    with pytest.raises(TargetMismatch, match=r"'npuir' is no backend of cuda-sm90, which takes cuda"):
        lower(untraced, {"hidden": 64}, CUDA_SM90, "npuir")
    with pytest.raises(UnsupportedOnTarget, match="backend 'pto' is not built"):
        backend("pto")


def test_a_parameter_that_is_no_tensor_is_a_lowering_error() -> None:
    def scaled(*, tile: Tiling) -> Any:
        @T.prim_func
        def kernel(x: T.Tensor[(8,), T.float32], scale: T.float32):
            with T.Kernel(8, threads=32) as i:
                x[i] = scale
        return kernel

    with pytest.raises(LoweringError, match="scale is no tensor"):
        lower(Kernel("test.scaled", scaled, Tiling(threads=32), lambda tile: 0), {}, CUDA_SM90)
