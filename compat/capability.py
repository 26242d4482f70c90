"""Which conversions the target being traced for has in hardware.

The only thing about a target that a kernel's source may depend on, and only through compat's macros: ``e4m3`` says
that the chip converts to and from float8_e4m3fn, ``e4m3_nan`` that this conversion keeps NaN, ``e2m1`` that it
converts to packed fp4. The build sets it while it traces; each thread has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

KNOWN = frozenset({"e4m3", "e4m3_nan", "e2m1"})

_casts: ContextVar[frozenset[str] | None] = ContextVar("monotile_hardware_casts", default=None)


@contextmanager
def capabilities(casts: frozenset[str]) -> Iterator[None]:
    """Trace for a target with these hardware conversions (a subset of :data:`KNOWN`, else ValueError)."""
    unknown = sorted(casts - KNOWN)
    if unknown:
        raise ValueError(f"hardware casts must be among {sorted(KNOWN)}, got {unknown}")
    token = _casts.set(frozenset(casts))
    try:
        yield
    finally:
        _casts.reset(token)


def has(cast: str) -> bool:
    """Does the target being traced for convert to and from this format in hardware?

    Raises ValueError for an unknown name, and RuntimeError outside :func:`capabilities`: a macro that guessed would
    make a kernel for the wrong chip.
    """
    if cast not in KNOWN:
        raise ValueError(f"hardware casts are {sorted(KNOWN)}, not {cast!r}")
    current = _casts.get()
    if current is None:
        raise RuntimeError(f"has({cast!r}) outside of a trace: call it inside capabilities(target.hardware_casts)")
    return cast in current
