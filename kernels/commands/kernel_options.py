"""What ``lower`` and ``compile`` share: a kernel by name, its parameters from the command line or from a case."""

from __future__ import annotations

import ast
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


def values(settings: Sequence[str]) -> dict[str, Any]:
    """``key=value`` as Python has them; what is no literal is text. Raises ValueError."""
    made = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ValueError(f"--set takes key=value, got {each!r}")
        try:
            made[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            made[key] = value
    return made


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
    """The parameters of a case that launches the kernel, with what was given in their place. Raises ValueError."""
    unknown = [key for key in given if key not in kernel.params]
    if unknown:
        raise ValueError(f"{kernel.op} has no parameter {', '.join(unknown)}; it has {', '.join(kernel.params)}, and "
                         f"the tiling {', '.join(kernel.tiling)}")
    missing = [key for key in kernel.params if key not in given]
    if not missing:
        return {key: given[key] for key in kernel.params}
    for candidate, params in asked():
        if candidate is kernel:
            return {**params, **given}
    raise ValueError(f"{kernel.op} needs {', '.join(missing)}: add " + " ".join(f"--set {key}=..." for key in missing))
