"""A cache of compiled kernels on disk: one folder a key, complete or absent.

A folder is built under a temporary name, gets a manifest with the digest of each of its files, and is renamed into
place. Processes that build the same key wait for the first; a folder whose manifest does not hold is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import filelock

VARIABLE = "MONOTILE_CACHE_DIR"
_MANIFEST = "manifest.json"
_LOCK_TIMEOUT_S = 600


def cache_root() -> Path:
    """``$MONOTILE_CACHE_DIR``, else ``~/.cache/monotile``."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else Path.home() / ".cache" / "monotile"


def key_of(parts: Sequence[str]) -> str:
    """A digest of all parts, in which no part can run into the next."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def cached(key: str, make: Callable[[Path], None], root: Path | None = None) -> tuple[Path, bool]:
    """(the key's folder, was it built by this call). ``make`` fills an empty folder; its exception leaves nothing."""
    root = cache_root() if root is None else root
    folder = root / key[:2] / key
    if _intact(folder):
        return folder, False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.parent / f"{key}.lock", timeout=_LOCK_TIMEOUT_S):
        if _intact(folder):   # another process was first
            return folder, False
        building = Path(tempfile.mkdtemp(prefix=f"{key[:8]}-", dir=folder.parent))
        try:
            make(building)
            _write_manifest(building)
            if folder.exists():
                shutil.rmtree(folder)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder, True


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _MANIFEST
    }


def _write_manifest(folder: Path) -> None:
    path = folder / _MANIFEST
    with path.open("w") as file:
        json.dump(_files(folder), file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _intact(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / _MANIFEST).read_text()) == _files(folder))
    except (OSError, ValueError):
        return False
