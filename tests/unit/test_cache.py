"""The compile cache: eight processes on a cold cache, crashes, broken entries, full and forbidden folders."""

import errno
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import filelock
import pytest

from monotile.compat.errors import LoweringError
from monotile.targets import cache
from monotile.targets.cache import CacheError, cached, intact, key_of

KEY = key_of(["a kernel", "a target"])


def _make(folder: Path) -> None:
    (folder / "kernel.bin").write_bytes(b"\x00\x01" * 1000)
    (folder / "parts").mkdir()
    (folder / "parts" / "report.json").write_text("{}")


def _no_locks(*_: object, **__: object) -> None:
    raise NotImplementedError("no flock on this file system")


def _slow_build(root: str, builds: str, locks: bool) -> bool:
    """What one process of the race does: a compile that takes a while and leaves a mark."""
    def make(folder: Path) -> None:
        (Path(builds) / str(os.getpid())).touch()
        (folder / "first").write_text("one")
        time.sleep(0.5)
        (folder / "second").write_text("two")

    with pytest.MonkeyPatch.context() as patch:
        if not locks:
            patch.setattr(filelock.FileLock, "acquire", _no_locks)
        folder, _ = cached(KEY, make, root=Path(root))
    return intact(folder) and (folder / "second").read_text() == "two"


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        pool.map(time.sleep, [0.2] * 8, chunksize=1)   # all have started
        yield pool


@pytest.mark.parametrize("locks", [True, False])
def test_eight_processes_on_a_cold_cache_all_succeed(tmp_path: Path, processes: Pool, locks: bool) -> None:
    root, builds = tmp_path / "cache", tmp_path / "builds"
    builds.mkdir()
    results = processes.starmap(_slow_build, [(str(root), str(builds), locks)] * 8, chunksize=1)
    assert results == [True] * 8
    if locks:
        assert len(list(builds.iterdir())) == 1, "the work was done more than once"
    else:
        assert len(list(builds.iterdir())) > 1, "the race was not one"
    assert not list(root.rglob("*.building"))


def test_threads_build_once(tmp_path: Path) -> None:
    built: list[int] = []

    def make(folder: Path) -> None:
        built.append(1)
        time.sleep(0.05)
        _make(folder)

    threads = [threading.Thread(target=cached, args=(KEY, make), kwargs={"root": tmp_path}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert cached(KEY, make, root=tmp_path)[1] is False


def _killed(root: str) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    cached(KEY, make, root=Path(root))


def test_a_process_killed_while_building_harms_nobody(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    folder, built = cached(KEY, _make, root=tmp_path)
    assert built and sorted(p.name for p in folder.iterdir()) == ["kernel.bin", "manifest.json", "parts"]
    (left,) = tmp_path.rglob("*.building")
    os.utime(left, (0, 0))   # long ago: swept by the next build next to it
    cached(KEY[:2] + "0" * 62, _make, root=tmp_path)
    assert not left.exists()


def _truncate(folder: Path) -> None:
    (folder / "kernel.bin").write_bytes(b"\x00\x01" * 999)


def _flip(folder: Path) -> None:
    data = bytearray((folder / "kernel.bin").read_bytes())
    data[17] ^= 4
    (folder / "kernel.bin").write_bytes(data)


def _remove(folder: Path) -> None:
    (folder / "parts" / "report.json").unlink()


def _add(folder: Path) -> None:
    (folder / "stranger").touch()


def _empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


def _odd_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[1, 2]")


def _no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _file_instead(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    folder.write_text("a file where the folder should be")


@pytest.mark.parametrize(
    "harm", [_truncate, _flip, _remove, _add, _empty_manifest, _odd_manifest, _no_manifest, _file_instead])
def test_a_broken_entry_is_rebuilt(tmp_path: Path, harm: object) -> None:
    folder, _ = cached(KEY, _make, root=tmp_path)
    harm(folder)  # type: ignore[operator]
    assert not intact(folder)
    again, built = cached(KEY, _make, root=tmp_path)
    assert again == folder and built and intact(folder)
    assert cached(KEY, _make, root=tmp_path)[1] is False


def test_what_the_compiler_raises_arrives_and_leaves_nothing(tmp_path: Path) -> None:
    def refuse(folder: Path) -> None:
        (folder / "half").touch()
        raise LoweringError("op", "target", "compile", "no")

    def missing(folder: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such program", "ptxas")

    with pytest.raises(LoweringError):
        cached(KEY, refuse, root=tmp_path)
    with pytest.raises(FileNotFoundError, match="ptxas"):
        cached(KEY, missing, root=tmp_path)
    assert not list(tmp_path.rglob("*.building")) and not (tmp_path / KEY[:2] / KEY).exists()
    assert cached(KEY, _make, root=tmp_path)[1] is True


def test_a_full_or_unusable_folder_is_one_sentence(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "kernel.bin"))

    with pytest.raises(CacheError, match=r"No space left.*MONOTILE_CACHE_DIR"):
        cached(KEY, full, root=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="set MONOTILE_CACHE_DIR to a folder that can be written"):
        cached(KEY, _make, root=tmp_path / "file" / "below")


def test_keys_separate_their_parts() -> None:
    assert key_of(["ab", "c"]) != key_of(["a", "bc"]) != key_of(["abc"])
    assert key_of(["1:a"]) != key_of(["a"]) and key_of(["é"]) == key_of(["é"])


def test_the_manifest_tells_what_was_built(tmp_path: Path) -> None:
    folder, _ = cached(KEY, _make, about={"op": "quant.x"}, root=tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["about"] == {"op": "quant.x"} and set(manifest["files"]) == {"kernel.bin", "parts/report.json"}


def test_the_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "here"))
    assert cached(KEY, _make)[0].is_relative_to(tmp_path / "here")
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.cache_root() == Path.home() / ".cache" / "monotile"
