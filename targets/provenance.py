"""A digest of the sources that decide what a kernel computes: what was recorded or compiled from others is stale."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = "monotile"
# Building, launching and checking arguments: they change often, and the tests of each are their evidence.
_NOT_FOLLOWED = ("monotile.targets", "monotile.check", "monotile.compat.errors", "monotile.compat.versions")


def digest(modules: Iterable[str]) -> str:
    """Of these modules' files and of every module of ours that they import, themselves or through another."""
    found: dict[str, bytes] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(name)
        # a package's __init__ only names its family
        if name in found or path is None or path.name == "__init__.py" or _is_left_out(name):
            continue
        found[name] = path.read_bytes()
        waiting += _imports(found[name])
    told = hashlib.sha256()
    for name in sorted(found):
        told.update(f"{name} {len(found[name])}:".encode() + found[name])
    return told.hexdigest()[:16]


def _is_left_out(name: str) -> bool:
    return any(_within(name, other) for other in _NOT_FOLLOWED)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _imports(source: bytes) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return [name for name in names if _within(name, _PACKAGE)]


@functools.cache
def _file(name: str) -> Path | None:
    """A module's file; None for a name that is no module, such as a function's."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:   # its parent is a module, not a package
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
