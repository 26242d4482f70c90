"""What is measured: for each op its inputs, its call, its oracle, the bytes it must move, and the peer's call.

A row is added by one function decorated with `case`. Inputs come from a seed, so that a check and a measurement each
have their own. The peer is TileKernels (`pip install tile-kernels`); what it does not have is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import monotile
from monotile.parity.tolerances import Bound, bound

EXACT = Bound("values and codes that are exact by definition", bits=True)

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One row. Its name begins with the op's."""

    name: str
    sizes: dict[str, int]            # what is measured
    checks: tuple[dict[str, int], ...]   # what else is compared with the oracle
    inputs: Callable[..., Tensors]   # (generator, **sizes)
    call: Callable[..., Any]         # (*inputs)
    oracle: Callable[..., Any]
    moved: Callable[..., int]        # bytes read and written, from (inputs, outputs)
    peer: Callable[..., Any] | None  # (tile_kernels, *inputs); raises AttributeError or ImportError where it has none
    bound: Bound = EXACT


    @property
    def op(self) -> str:
        """The op's qualified name, ``quant.per_token_cast``."""
        function = self.name.replace(",", " ").split()[0]
        (family,) = [f for f in ("quant", "moe", "transpose", "mhc") if hasattr(getattr(monotile, f), function)
                     and f != function]
        return f"{family}.{function}"


CASES: dict[str, Case] = {}
TOKENS = (0, 1, 33, 129, 4001)


def flat(result: Any) -> Tensors:
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(tensor for part in result for tensor in flat(part)) if result is not None else ()


def everything_once(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in (*inputs, *outputs))


def add(name: str, sizes: dict[str, int], call: Callable[..., Any], oracle: Callable[..., Any], *,
        checks: Sequence[dict[str, int]], peer: Callable[..., Any] | None = None,
        moved: Callable[..., int] = everything_once,
        bound: Bound = EXACT) -> Callable[[Callable[..., Tensors]], Callable[..., Tensors]]:
    """Register a row; decorates the function that makes its inputs."""
    def register(inputs: Callable[..., Tensors]) -> Callable[..., Tensors]:
        CASES[name] = Case(name, sizes, tuple(checks), inputs, call, oracle, moved, peer, bound)
        return inputs

    return register


def reference(module: str, function: str) -> Callable[..., Any]:
    """An oracle, imported when it is used."""
    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(importlib.import_module(f"monotile.reference.{module}"), function)(*arguments, **keywords)

    return call


# ---------------------------------------------------------------------- quant
def _cast_sizes(hidden: Sequence[int]) -> list[dict[str, int]]:
    return [{"tokens": tokens, "hidden": width} for tokens in TOKENS for width in hidden]


def _activations(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    """Normal values whose rows differ in size by factors of up to 2**16, some rows zero."""
    device = generator.device
    x = torch.randn(tokens, hidden, generator=generator, device=device)
    sizes = torch.randint(-8, 9, (tokens, 1), generator=generator, device=device)
    zero = torch.rand(tokens, 1, generator=generator, device=device) < 0.01
    return ((x * torch.exp2(sizes.float())).masked_fill(zero, 0.0).bfloat16(),)


_FULL = {"tokens": 16384, "hidden": 7168}
_oracle_cast = reference("quant.per_token_cast", "per_token_cast")

add("per_token_cast e4m3 128", _FULL, lambda x: monotile.quant.per_token_cast(x, "e4m3", 128),
    lambda x: _oracle_cast(x, "e4m3", 128), checks=_cast_sizes((576, 7168)),
    peer=lambda tk, x: tk.quant.per_token_cast(x, "e4m3", 128))(_activations)

add("per_token_cast e4m3 128 packed", _FULL,
    lambda x: monotile.quant.per_token_cast(x, "e4m3", 128, None, True, True, True),
    lambda x: _oracle_cast(x, "e4m3", 128, None, True, True, True), checks=_cast_sizes((512, 7168)),
    peer=lambda tk, x: tk.quant.per_token_cast(x, "e4m3", 128, None, True, True, True))(_activations)

add("per_token_cast e2m1 32", _FULL, lambda x: monotile.quant.per_token_cast(x, "e2m1", 32),
    lambda x: _oracle_cast(x, "e2m1", 32), checks=_cast_sizes((576, 7168)),
    peer=lambda tk, x: tk.quant.per_token_cast(x, "e2m1", 32))(_activations)

add("per_token_cast e4m3 row", _FULL, lambda x: monotile.quant.per_token_cast(x, "e4m3", x.shape[1]),
    lambda x: _oracle_cast(x, "e4m3", x.shape[1]), checks=_cast_sizes((576, 7168)),
    peer=lambda tk, x: tk.quant.per_token_cast(x, "e4m3", x.shape[1]))(_activations)


add("per_token_cast e4m3, rows of 16384", {"tokens": 8192, "hidden": 16384},
    lambda x: monotile.quant.per_token_cast(x, "e4m3", x.shape[1]),
    lambda x: _oracle_cast(x, "e4m3", x.shape[1]), checks=_cast_sizes((9280,)))(_activations)


@add("per_token_cast e4m3 128, strided rows", _FULL, lambda x: monotile.quant.per_token_cast(x, "e4m3", 128),
     lambda x: _oracle_cast(x, "e4m3", 128), checks=_cast_sizes((576,)),
     peer=lambda tk, x: tk.quant.per_token_cast(x, "e4m3", 128))
def _strided(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    return (_activations(generator, tokens, 2 * hidden)[0][:, hidden:],)


@add("per_token_cast e4m3 128, rows on odd addresses", _FULL,
     lambda x: monotile.quant.per_token_cast(x, "e4m3", 128), lambda x: _oracle_cast(x, "e4m3", 128),
     checks=_cast_sizes((576,)))
def _unaligned(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    return (_activations(generator, tokens, hidden + 1)[0][:, 1:],)


@add("per_token_cast_with_sf_only e4m3 128", _FULL,
     lambda x: monotile.quant.per_token_cast_with_sf_only(x, "e4m3", 128),
     lambda x: _oracle_cast(x, "e4m3", 128)[1], checks=_cast_sizes((576,)),
     peer=lambda tk, x: tk.quant.per_token_cast_with_sf_only(x, "e4m3", 128))
def _only_scales(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    return _activations(generator, tokens, hidden)


@add("per_token_cast_with_precomputed_sf e4m3 128", _FULL,
     lambda x, sf: monotile.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf),
     lambda x, sf: reference("quant.per_token_cast", "per_token_cast_with_precomputed_sf")(x, "e4m3", 128, sf),
     checks=_cast_sizes((576,)),
     peer=lambda tk, x, sf: tk.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf))
def _with_scales(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    (x,) = _activations(generator, tokens, hidden)
    return x, _oracle_cast(x, "e4m3", 128)[1]


@add("per_token_cast of e4m3 to e2m1 32", _FULL,
     lambda x, sf: monotile.quant.per_token_cast((x, sf), "e2m1", 32, (1, 128)),
     lambda x, sf: _oracle_cast((x, sf), "e2m1", 32, (1, 128)), checks=_cast_sizes((576,)),
     peer=lambda tk, x, sf: tk.quant.per_token_cast((x, sf), "e2m1", 32, (1, 128)))
def _from_e4m3(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    x, sf = _oracle_cast(*_activations(generator, tokens, hidden), "e4m3", 128)
    return x, sf


@add("per_token_cast of e2m1 to e4m3 128", _FULL,
     lambda x, sf: monotile.quant.per_token_cast((x, sf), "e4m3", 128, (1, 32)),
     lambda x, sf: _oracle_cast((x, sf), "e4m3", 128, (1, 32)), checks=_cast_sizes((576,)),
     peer=lambda tk, x, sf: tk.quant.per_token_cast((x, sf), "e4m3", 128, (1, 32)))
def _from_e2m1(generator: torch.Generator, tokens: int, hidden: int) -> Tensors:
    x, sf = _oracle_cast(*_activations(generator, tokens, hidden), "e2m1", 32)
    return x, sf


add("cast_back of e4m3 128", _FULL, lambda x, sf: monotile.quant.cast_back((x, sf), "bf16", (1, 128)),
    lambda x, sf: reference("quant.cast_back", "cast_back")((x, sf), "bf16", (1, 128)), checks=_cast_sizes((576,)),
    peer=lambda tk, x, sf: tk.quant.cast_back((x, sf), "bf16", (1, 128)))(_from_e4m3)

add("per_token_cast_back of e2m1 32", _FULL, lambda x, sf: monotile.quant.per_token_cast_back((x, sf), "bf16", 32),
    lambda x, sf: reference("quant.cast_back", "per_token_cast_back")((x, sf), "bf16", 32),
    checks=_cast_sizes((576,)), peer=lambda tk, x, sf: tk.quant.per_token_cast_back((x, sf), "bf16", 32))(_from_e2m1)


# ---------------------------------------------------------------------- moe
@add("topk_gate", {"tokens": 16384, "experts": 256, "k": 8}, lambda scores: monotile.moe.topk_gate(scores, 8),
     lambda scores: reference("moe.topk_gate", "topk_gate")(scores, 8),
     checks=[{"tokens": t, "experts": e, "k": 8} for t in TOKENS for e in (72, 256)],
     peer=lambda tk, scores: tk.moe.topk_gate(scores, 8))
def _scores(generator: torch.Generator, tokens: int, experts: int, k: int) -> Tensors:
    """Few different values: most rows have ties."""
    return (torch.randint(0, 1000, (tokens, experts), generator=generator, device=generator.device).float() / 1000,)


@add("normalize_weight", {"tokens": 16384, "k": 8}, lambda w: monotile.moe.normalize_weight(w),
     lambda w: reference("moe.normalize_weight", "normalize_weight")(w),
     checks=[{"tokens": t, "k": k} for t in TOKENS for k in (1, 6, 8, 9)],
     peer=lambda tk, w: tk.moe.normalize_weight(w))
def _weights(generator: torch.Generator, tokens: int, k: int) -> Tensors:
    return (torch.rand(tokens, k, generator=generator, device=generator.device),)


@add("expand_to_fused", {"tokens": 8192, "hidden": 7168, "k": 8},
     lambda x, to_pos, to_expert: monotile.moe.expand_to_fused(x, to_pos, to_expert),
     lambda x, to_pos, to_expert: reference("moe.expand_to_fused", "expand_to_fused")(x, to_pos, to_expert),
     checks=[{"tokens": t, "hidden": h, "k": k} for t in TOKENS for h, k in ((72, 6), (576, 8))],
     peer=lambda tk, x, to_pos, to_expert: tk.moe.expand_to_fused(x, to_pos, to_expert))
def _fused(generator: torch.Generator, tokens: int, hidden: int, k: int) -> Tensors:
    """An eighth of the pairs masked, and a sixteenth of the expanded rows padding."""
    device = generator.device
    pairs = tokens * k
    rows = pairs + pairs // 16 + 16
    order = torch.randperm(rows, generator=generator, device=device)
    to_pos = order[:pairs].int()
    masked = torch.rand(pairs, generator=generator, device=device) < 0.125
    to_expert = torch.full((rows,), -1, dtype=torch.int32, device=device)
    to_expert[to_pos[~masked].long()] = torch.randint(0, 256, (int((~masked).sum()),), generator=generator,
                                                      device=device, dtype=torch.int32)
    x = torch.randn(tokens, hidden, generator=generator, device=device).bfloat16()
    return x, to_pos.masked_fill(masked, -1).view(tokens, k), to_expert


# ---------------------------------------------------------------------- transpose
@add("batched_transpose", {"batches": 8, "rows": 7168, "columns": 4096},
     lambda x: monotile.transpose.batched_transpose(x), lambda x: x.transpose(1, 2).contiguous(),
     checks=[{"batches": b, "rows": r, "columns": c} for b, r, c in (
         (0, 64, 64), (1, 64, 64), (3, 576, 192), (2, 7168, 576), (2, 65, 127))],
     peer=lambda tk, x: tk.transpose.batched_transpose(x))
def _matrices(generator: torch.Generator, batches: int, rows: int, columns: int) -> Tensors:
    return (torch.randn(batches, rows, columns, generator=generator, device=generator.device).bfloat16(),)


# ---------------------------------------------------------------------- mhc
_REPEAT, _EPS = 10, 1e-6
_SINKHORN_CHECKS = [{"tokens": t} for t in TOKENS]


def _peer_forward(tk: Any, x: torch.Tensor) -> torch.Tensor:
    if hasattr(tk.mhc, "mhc_sinkhorn_fwd"):   # 2.x
        out = torch.empty_like(x)
        tk.mhc.mhc_sinkhorn_fwd(x, out, _REPEAT, _EPS)
        return out
    ops = importlib.import_module("tile_kernels.modeling.mhc.ops.sinkhorn")
    with torch.no_grad():
        result: torch.Tensor = ops.sinkhorn_normalize(x, _REPEAT, _EPS)
    return result


@add("mhc_sinkhorn_fwd", {"tokens": 16384}, lambda x: monotile.mhc.mhc_sinkhorn_fwd(x, _REPEAT, _EPS),
     lambda x: reference("mhc.sinkhorn", "sinkhorn_normalize")(x.double(), _REPEAT, _EPS).float(),
     checks=_SINKHORN_CHECKS, peer=_peer_forward, bound=bound("mhc.mhc_sinkhorn_fwd"))
def _logits(generator: torch.Generator, tokens: int) -> Tensors:
    return (torch.randn(tokens, 4, 4, generator=generator, device=generator.device) * 3,)


def _peer_backward(tk: Any, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if hasattr(tk.mhc, "mhc_sinkhorn_bwd"):   # 2.x
        out = torch.empty_like(x)
        tk.mhc.mhc_sinkhorn_bwd(grad, x, out, _REPEAT, _EPS)
        return out
    # 1.x is reached through autograd only: its forward runs too, and is measured with it
    ops = importlib.import_module("tile_kernels.modeling.mhc.ops.sinkhorn")
    x = x.detach().requires_grad_()
    (grad_x,) = torch.autograd.grad(ops.sinkhorn_normalize(x, _REPEAT, _EPS), x, grad)
    return grad_x


@add("mhc_sinkhorn_bwd", {"tokens": 16384},
     lambda grad, x: monotile.mhc.mhc_sinkhorn_bwd(grad, x, _REPEAT, _EPS),
     lambda grad, x: reference("mhc.sinkhorn", "sinkhorn_normalize_backward")(
         grad.double(), x.double(), _REPEAT, _EPS).float(),
     checks=_SINKHORN_CHECKS, peer=_peer_backward, bound=bound("mhc.mhc_sinkhorn_bwd"))
def _gradients(generator: torch.Generator, tokens: int) -> Tensors:
    x = _logits(generator, tokens)[0]
    return torch.randn(x.shape, generator=generator, device=generator.device), x
