"""What ``lower`` and ``compile`` share: a kernel by name, its parameters from the command line or from a case."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monotile.targets.kernel import Kernel


def find(name: str) -> Kernel:
    """The kernel of that name, or of that last part where only one has it. Raises ValueError."""
    import monotile  # noqa: F401  (registers the kernels)
    from monotile.targets.kernel import kernels

    known = kernels()
    if name in known:
        return known[name]
    ends = [each for each in known if each.rsplit(".", 1)[1] == name]
    if len(ends) == 1:
        return known[ends[0]]
    if ends:
        raise ValueError(f"{name!r} may be {' or '.join(ends)}")
    raise ValueError(f"there is no kernel {name!r}; monotile ops lists them")


def values(kernel: Kernel, settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, numbers of the tiling) of ``key=value`` texts, of the types that the kernel declares.

    Raises ValueError for a key that it does not have, a key that is given twice, and a value of another type.
    """
    declared = inspect.signature(kernel.builder).parameters
    params: dict[str, Any] = {}
    tiling: dict[str, Any] = {}
    for each in settings:
        key, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not key or not text:
            raise ValueError(f"--set takes key=value, got {each!r}")
        if key in params or key in tiling:
            raise ValueError(f"--set {key} is given twice")
        if key in kernel.params:
            params[key] = _typed(key, text, declared[key].annotation)
        elif key in kernel.tiling:
            tiling[key] = _typed(key, text, type(kernel.tiling[key]))
        else:
            raise ValueError(f"{kernel.op} has no {key!r}; its parameters are {', '.join(kernel.params)}, its tiling "
                             f"has {', '.join(kernel.tiling)}")
    return params, tiling


def _typed(key: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"--set {key} must be true or false, got {text!r}")
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"--set {key} must be a {'whole ' if kind is int else ''}number, got {text!r}") from None
    return text


def asked(names: Sequence[str] | None = None) -> Iterator[tuple[Kernel, dict[str, Any]]]:
    """Every kernel with every set of parameters that a case launches it with; ops check their arguments, nothing is
    lowered."""
    import torch

    from monotile.parity.cases import cases
    from monotile.targets.launch import asked as launches

    seen: set[tuple[str, str]] = set()
    for case in cases(names):
        with launches() as found:
            case.run(torch.device("cpu"))
        for each in found:
            key = each.kernel.op, repr(sorted(each.params.items()))
            if key not in seen:
                seen.add(key)
                yield each.kernel, each.params


def parameters(kernel: Kernel, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the first case that launches the kernel, with what was given in their place.

    Raises ValueError, naming what is missing, for a kernel that no case launches.
    """
    missing = [key for key in kernel.params if key not in given]
    if not missing:
        return {key: given[key] for key in kernel.params}
    for candidate, params in asked():
        if candidate is kernel:
            return {**params, **given}
    raise ValueError(f"no case launches {kernel.op}, so that it needs {', '.join(missing)}: add "
                     + " ".join(f"--set {key}=..." for key in missing))
