"""The numbers that a kernel's source leaves open, and where they come from.

From weakest to strongest: the kernel's default; the first matching row of ``targets/tiling/<target>.toml``; the
environment's ``MONOTILE_TILING="op:key=value,key=value;op:..."``; ``with override_tiling(op, key=value):``. The last
two are for experiments.

A row of a file::

    [["quant.per_token_cast"]]
    when = {num_tokens = {max = 64}, fmt = ["e4m3", "e2m1"], hidden = 7168}
    values = {tokens = 8}
    why = "a few tokens leave cores idle with larger tiles"
    measured = "..."          # where and what, or false

Every op and key is checked against the kernels that exist when a file is first used: a mistake raises TilingError
with file and line.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from monotile.compat.errors import TilingError
from monotile.targets.spec import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Value = int | bool | str
FOLDER = Path(__file__).with_name("tiling")
VARIABLE = "MONOTILE_TILING"
_ROW_KEYS = ("when", "values", "why", "measured")


class Tiling(Mapping[str, Value]):
    """An immutable, hashable mapping with attribute access: ``tile.tokens``, ``tile["tokens"]``."""

    __slots__ = ("_values",)
    _values: Mapping[str, Value]

    def __init__(self, **values: Value) -> None:
        object.__setattr__(self, "_values", MappingProxyType(dict(values)))

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(f"this tiling has {', '.join(self._values) or 'no keys'}, not {key!r}") from None

    def __setattr__(self, key: str, value: object) -> None:
        raise AttributeError("a tiling does not change; use replace()")

    def replace(self, **values: Value) -> Tiling:
        """A tiling with some values changed. Raises TilingError for a key that is not in this one."""
        return _replaced(self, values, "tiling")

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values.items())))

    def __repr__(self) -> str:
        return f"Tiling({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (dict(self._values),)


def _rebuilt(values: dict[str, Value]) -> Tiling:
    return Tiling(**values)


@dataclass(frozen=True)
class Row:
    """One override of a file."""

    when: Mapping[str, Any]
    values: Mapping[str, Value]
    why: str
    measured: str | bool
    place: str   # file and line

    def matches(self, params: Mapping[str, Any]) -> bool:
        return all(key in params and _matches(wanted, params[key]) for key, wanted in self.when.items())


@dataclass(frozen=True)
class _Declared:
    defaults: Tiling
    params: frozenset[str]


_declared: dict[str, _Declared] = {}
_overrides: ContextVar[Mapping[str, Mapping[str, Value]]] = ContextVar("monotile_tiling", default=MappingProxyType({}))


def declare(op: str, defaults: Tiling, params: tuple[str, ...] = ()) -> None:
    """Make a kernel's tiling known: its keys, and the parameters that a ``when`` may ask about."""
    _declared[op] = _Declared(defaults, frozenset(params))
    _rows.cache_clear()


def declared() -> tuple[str, ...]:
    """The names of the kernels declared so far, sorted."""
    return tuple(sorted(_declared))


def resolve_tiling(op: str, defaults: Tiling, target: Target, params: Mapping[str, Any]) -> Tiling:
    """The tiling of ``op`` for these parameters on this target. Raises TilingError for a malformed override."""
    tile = defaults
    for row in _rows(target.name).get(op, ()):
        if row.matches(params):
            tile = _replaced(tile, row.values, row.place)
            break
    for where, values in (("environment", _from_environment().get(op)), ("override_tiling", _overrides.get().get(op))):
        if values:
            tile = _replaced(tile, values, VARIABLE if where == "environment" else where)
    return tile


@contextmanager
def override_tiling(op: str, **values: Value) -> Iterator[None]:
    """Use these values for ``op`` inside the block, whatever the target.

    Raises TilingError for an unknown op or key.
    """
    declaration = _known(op, "override_tiling")
    _replaced(declaration.defaults, values, "override_tiling")
    before = _overrides.get()
    token = _overrides.set({**before, op: {**before.get(op, {}), **values}})
    try:
        yield
    finally:
        _overrides.reset(token)


# ---------------------------------------------------------------------- files
def load(path: Path) -> dict[str, tuple[Row, ...]]:
    """Read and check one file of overrides. Raises TilingError naming file and line."""
    text = path.read_text(encoding="utf-8")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TilingError(f"{path}: {error}") from error
    lines = text.splitlines()
    loaded = {}
    for op, rows in tables.items():
        starts = [i for i, line in enumerate(lines) if _heading(line) == op]
        if not isinstance(rows, list):
            line = next((i for i, line in enumerate(lines) if op in line), 0)
            raise TilingError(f'{path}:{line + 1}: write a row as [["module.op"]], the name in quotes')
        declaration = _known(op, f"{path}:{starts[0] + 1}")
        loaded[op] = tuple(_row(path, lines, start, row, declaration) for start, row in zip(starts, rows, strict=True))
    return loaded


@functools.cache
def _rows(target_name: str) -> Mapping[str, tuple[Row, ...]]:
    return load(FOLDER / f"{target_name}.toml")


def _row(path: Path, lines: list[str], start: int, row: Mapping[str, Any], declaration: _Declared) -> Row:
    def place(key: str) -> str:
        """The line of the row that has the key as a word; the row's heading where none has."""
        for i in range(start + 1, len(lines)):
            if _heading(lines[i]) is not None:
                break
            if re.search(rf"(?<![\w.]){re.escape(key)}\s*=", lines[i]):
                return f"{path}:{i + 1}"
        return f"{path}:{start + 1}"

    for key in row:
        if key not in _ROW_KEYS:
            raise TilingError(f"{place(key)}: a row has {', '.join(_ROW_KEYS)}, not {key!r}")
    missing = [key for key in _ROW_KEYS if key not in row]
    if missing:
        raise TilingError(f"{path}:{start + 1}: the row lacks {', '.join(missing)}")
    when, values, why, measured = (row[key] for key in _ROW_KEYS)
    if not isinstance(when, dict) or not isinstance(values, dict) or not values:
        raise TilingError(f"{place('values')}: when and values must be tables, and values not empty")
    for param, wanted in when.items():
        if param not in declaration.params:
            raise TilingError(f"{place(param)}: the kernel has no parameter {param!r}; it has "
                              f"{', '.join(sorted(declaration.params)) or 'none'}")
        if isinstance(wanted, dict) and (not wanted or set(wanted) - {"min", "max"}):
            raise TilingError(f"{place(param)}: a range has min or max or both, got {wanted!r}")
    for key in values:
        _replaced(declaration.defaults, {key: values[key]}, place(key))
    if not isinstance(why, str) or not why.strip():
        raise TilingError(f"{place('why')}: why must say why, in words")
    if measured is not False and not (isinstance(measured, str) and measured.strip()):
        raise TilingError(f"{place('measured')}: measured must say where and what was measured, or be false")
    return Row(when, values, why, measured, f"{path}:{start + 1}")


def _heading(line: str) -> str | None:
    found = re.match(r'\s*\[\[\s*"?([^"\]]+?)"?\s*\]\]', line)
    return found.group(1) if found else None


def _matches(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, dict):
        return bool(wanted.get("min", value) <= value <= wanted.get("max", value))
    if isinstance(wanted, list):
        return value in wanted
    return bool(value == wanted)


# ---------------------------------------------------------------------- checks
def _known(op: str, place: str) -> _Declared:
    declaration = _declared.get(op)
    if declaration is None:
        raise TilingError(f"{place}: there is no kernel {op!r}; the kernels are {', '.join(declared()) or 'none'}")
    return declaration


def _replaced(tile: Tiling, values: Mapping[str, Value], place: str) -> Tiling:
    for key, value in values.items():
        if key not in tile:
            raise TilingError(f"{place}: there is no tiling key {key!r}; the keys are {', '.join(tile) or 'none'}")
        if type(value) is not type(tile[key]):
            raise TilingError(f"{place}: {key} must be of type {type(tile[key]).__name__}, got {value!r}")
    return Tiling(**{**tile, **values})


def _from_environment() -> Mapping[str, Mapping[str, Value]]:
    text = os.environ.get(VARIABLE, "")
    return _parse_variable(text, len(_declared)) if text else {}


@functools.lru_cache(maxsize=8)
def _parse_variable(text: str, _generation: int) -> Mapping[str, Mapping[str, Value]]:
    parsed: dict[str, dict[str, Value]] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        op, colon, settings = entry.partition(":")
        if not colon:
            raise TilingError(f"{VARIABLE}: write op:key=value,key=value;op:..., got {entry!r}")
        op = op.strip()
        defaults = _known(op, VARIABLE).defaults
        for setting in settings.split(","):
            key, equals, written = (piece.strip() for piece in setting.partition("="))
            if not equals or key not in defaults:
                raise TilingError(f"{VARIABLE}: {op} has the tiling keys {', '.join(defaults)}, got {setting!r}")
            parsed.setdefault(op, {})[key] = _convert(written, defaults[key], f"{VARIABLE}: {op}:{key}")
    return parsed


def _convert(written: str, default: Value, place: str) -> Value:
    if isinstance(default, bool):
        if written not in ("true", "false"):
            raise TilingError(f"{place} must be true or false, got {written!r}")
        return written == "true"
    if isinstance(default, int):
        try:
            return int(written)
        except ValueError:
            raise TilingError(f"{place} must be a whole number, got {written!r}") from None
    return written
