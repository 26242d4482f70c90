"""TileLang's language, imported when a kernel is first traced.

``from monotile.compat import language as T`` costs nothing until ``T.something`` is used, so that
``import monotile`` does not pay for TileLang (about four seconds).
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import tilelang.language

    return getattr(tilelang.language, name)
