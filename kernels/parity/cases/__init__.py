"""Cases: (op, arguments, seed). The registry that op tests, goldens and the command line share.

An op is added by one function, which draws what the op is called with:

    @op("moe.topk_gate", outputs=("chosen",), cases=[{"tokens": 33, "experts": 72, "k": 6}, ...])
    def topk_gate(draw: Draw, tokens: int, experts: int, k: int) -> Call:
        return Call((draw.bell((tokens, experts)), k))

The op is ``monotile.moe.topk_gate``; its oracle is the function of that name in ``monotile.reference.moe.topk_gate``,
unless another is named. Arguments are numbers and strings, so that a case can be written down; tensors are made from
them, the same bits everywhere.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from monotile.compat import dtypes
from monotile.parity.draw import Draw

SEED = 20261201
FAMILIES = ("quant", "moe", "transpose", "mhc")


@dataclass(frozen=True)
class Call:
    """What an op is called with. ``defined``: for an output, which elements mean anything (a mask that broadcasts)."""

    arguments: tuple[Any, ...]
    defined: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """A public function, how its inputs are drawn, and its oracle."""

    name: str
    outputs: tuple[str, ...]
    make: Callable[..., Call]
    oracle: Callable[..., Any]

    def run(self, arguments: Sequence[Any]) -> Any:
        family, function = self.name.rsplit(".", 1)
        return getattr(importlib.import_module(f"monotile.{family}"), function)(*arguments)


@dataclass(frozen=True)
class Case:
    """One call. Its name is also its place in a bundle."""

    op: Op
    arguments: Mapping[str, Any]
    seed: int = SEED

    @property
    def name(self) -> str:
        return f"{self.op.name}[{','.join(f'{key}={value}' for key, value in self.arguments.items())}]"

    @functools.cached_property
    def call(self) -> Call:
        return self.op.make(Draw(self.op.name, self.arguments, self.seed), **self.arguments)

    @property
    def hash(self) -> str:
        """What decides the results: op, arguments, seed, and every input's dtype, shape, strides and bits."""
        told = hashlib.sha256(json.dumps([self.op.name, dict(self.arguments), self.seed], sort_keys=True).encode())
        for each in tensors_of(self.call.arguments):
            told.update(f"{each.dtype} {tuple(each.shape)} {each.stride()}".encode())
            told.update(np.ascontiguousarray(dtypes.numpy_view(each.contiguous())).tobytes())
        return told.hexdigest()[:32]

    def run(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The op's results, on the CPU, under the current selection."""
        return self._named(self.op.run(on(device, self.call.arguments)))

    def expected(self) -> dict[str, torch.Tensor]:
        """The oracle's results."""
        return self._named(self.op.oracle(*on(torch.device("cpu"), self.call.arguments)))

    def _named(self, result: Any) -> dict[str, torch.Tensor]:
        found = tensors_of(result)
        if len(found) != len(self.op.outputs):
            raise ValueError(f"{self.op.name} gave {len(found)} tensors, its case names {len(self.op.outputs)}")
        return {name: each.detach().cpu().contiguous() for name, each in zip(self.op.outputs, found)}


_OPS: dict[str, tuple[Op, list[Case]]] = {}


def op(name: str, *, outputs: tuple[str, ...], cases: Sequence[Mapping[str, Any]],
       oracle: Callable[..., Any] | None = None) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
    """Register an op with its cases; decorates the function that draws its inputs."""
    def register(make: Callable[..., Call]) -> Callable[..., Call]:
        if name in _OPS:
            raise ValueError(f"{name} has its cases already")
        made = Op(name, outputs, make, oracle or functools.partial(_oracle, name))
        _OPS[name] = made, [Case(made, arguments) for arguments in cases]
        return make

    return register


def _oracle(name: str, *arguments: Any) -> Any:
    function = name.rsplit(".", 1)[1]
    return getattr(importlib.import_module(f"monotile.reference.{name}"), function)(*arguments)


def ops() -> dict[str, Op]:
    """Every op that has cases, by name."""
    _load()
    return {name: each for name, (each, _) in _OPS.items()}


def cases(names: Sequence[str] | None = None) -> list[Case]:
    """The cases of these ops, or of all. Raises ValueError for a name that has none."""
    _load()
    for name in names or ():
        if name not in _OPS:
            raise ValueError(f"there is no op {name!r} with cases; there are {', '.join(_OPS)}")
    return [case for name, (_, all_of_it) in _OPS.items() if not names or name in names for case in all_of_it]


def _load() -> None:
    for family in FAMILIES:
        importlib.import_module(f"monotile.parity.cases.{family}")


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


def on(device: torch.device, value: Any) -> Any:
    """A copy of a nested value whose tensors are on the device, strides kept."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)
    if isinstance(value, (tuple, list)):
        return type(value)(on(device, part) for part in value)
    return value
