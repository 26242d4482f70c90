"""A cache of compiled kernels on disk: one folder a key, complete or absent.

A folder is built under a temporary name, gets a manifest with the digest of each of its files, and is renamed into
place. Processes that want one key at the same time wait for the first by a lock on a file, so that the work is done
once; where the file system has no locks each does the work, and the first to rename wins. A folder whose manifest
does not hold (a crash, a full disk, an edited file) is rebuilt.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from monotile.compat.errors import MonotileError

VARIABLE = "MONOTILE_CACHE_DIR"
MANIFEST = "manifest.json"
_LOCK_TIMEOUT_S = 900         # longer than any compiler is given
_BUILDING = ".building"       # suffix of a folder that is not complete
_ABANDONED_S = 24 * 3600      # a temporary folder this old belongs to nobody


class CacheError(MonotileError, RuntimeError):
    """The cache's folder cannot be used."""


def cache_root() -> Path:
    """``$MONOTILE_CACHE_DIR``, else ``~/.cache/monotile``."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "monotile"


def key_of(parts: Sequence[str]) -> str:
    """A digest of all parts, in which no part can run into the next."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def cached(key: str, make: Callable[[Path], None], *, about: Mapping[str, Any] | None = None,
           root: Path | None = None) -> tuple[Path, bool]:
    """(the key's folder, was it built by this call). Safe among threads and processes.

    ``make`` fills an empty folder; what it raises leaves nothing behind and reaches the caller. ``about`` is kept in
    the manifest for people to read. Raises CacheError where the folder cannot be written.
    """
    root = cache_root() if root is None else root
    folder = root / key[:2] / key
    if intact(folder):
        return folder, False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with _lock(folder.parent / f"{key}.lock"):
            if intact(folder):   # another process was first
                return folder, False
            return folder, _build(folder, make, about or {})
    except _FromMake as error:
        raise error.error from error.error.__cause__
    except OSError as error:
        raise CacheError(f"the cache {root} cannot be used ({error.strerror or error}): set {VARIABLE} to a folder "
                         "that can be written") from error


def intact(folder: Path) -> bool:
    """Does the folder have a manifest, and exactly the files that it lists, unchanged?"""
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return bool(listed == _digests(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _build(folder: Path, make: Callable[[Path], None], about: Mapping[str, Any]) -> bool:
    building = folder.with_name(f"{folder.name[:8]}-{uuid.uuid4().hex}{_BUILDING}")
    building.mkdir()
    try:
        _call(make, building)
        _seal(building, about)
        for _ in range(2):
            try:
                building.rename(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                if intact(folder):   # only without locks: another process was first
                    return False
                _discard(folder)
                continue
            _sync(folder.parent)
            return True
        if intact(folder):
            return False
        raise CacheError(f"{folder} is neither complete nor can it be replaced: delete it")
    finally:
        shutil.rmtree(building, ignore_errors=True)


class _FromMake(Exception):
    """An OSError of the compiler's, which says nothing about the cache."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _call(make: Callable[[Path], None], building: Path) -> None:
    try:
        make(building)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error.filename).startswith(str(building)):
            raise   # the cache could not be written
        raise _FromMake(error) from error


def _discard(folder: Path) -> None:
    """Move a broken entry aside at once, so that nobody finds it half deleted."""
    aside = folder.with_name(f"{folder.name[:8]}-{uuid.uuid4().hex}{_BUILDING}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink()


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    lock = filelock.FileLock(path, timeout=_LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise CacheError(f"another process has held {path} for {_LOCK_TIMEOUT_S} s: end it, or delete the file") \
            from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
        yield   # no locks here: the rename decides
        return
    try:
        yield
    finally:
        lock.release()


def _sweep(parent: Path) -> None:
    """Remove what killed processes left."""
    now = time.time()
    for left in parent.glob(f"*{_BUILDING}"):
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST
    }


def _seal(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest, after everything that it vouches for is on disk."""
    digests = _digests(folder)
    for name in digests:
        _sync(folder / name)
    path = folder / MANIFEST
    path.write_text(json.dumps({"about": about, "files": digests}, indent=1, default=str), encoding="utf-8")
    _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
