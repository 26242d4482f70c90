"""mhc.mhc_sinkhorn_fwd, mhc_sinkhorn_bwd and modeling.mhc.ops.sinkhorn_normalize against float64."""

import re
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import monotile
from monotile.mhc.sinkhorn import sinkhorn_backward_kernel, sinkhorn_forward_kernel
from monotile.modeling.mhc.ops import sinkhorn_normalize
from monotile.parity.tolerances import bound
from monotile.reference.mhc import sinkhorn as oracle
from monotile.targets.launch import launch

FORWARD_BOUND = bound("mhc.mhc_sinkhorn_fwd")
FORWARD, BACKWARD = (bound(f"mhc.mhc_sinkhorn_{way}").rtol_atol for way in ("fwd", "bwd"))


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(monotile.default_device())


def check_forward(x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    out: torch.Tensor = monotile.mhc.mhc_sinkhorn_fwd(x, repeat, eps)
    assert out.shape == x.shape and out.dtype == torch.float32 and out.is_contiguous()
    torch.testing.assert_close(out.double(), oracle.sinkhorn_normalize(x.double(), repeat, eps), **FORWARD)
    return out


def check_backward(x: torch.Tensor, repeat: int = 10, eps: float = 1e-6) -> torch.Tensor:
    grad = normal(*x.shape, seed=1)
    grad_x: torch.Tensor = monotile.mhc.mhc_sinkhorn_bwd(grad, x, repeat, eps)
    assert grad_x.shape == x.shape and grad_x.dtype == torch.float32 and grad_x.is_contiguous()
    want = oracle.sinkhorn_normalize_backward(grad.double(), x.double(), repeat, eps)
    torch.testing.assert_close(grad_x.double(), want, **BACKWARD)
    return grad_x


@pytest.mark.parametrize("tokens", [0, 1, 2, 31, 33, 127, 129, 4001])
def test_token_counts(tokens: int) -> None:
    x = normal(tokens, 4, 4)
    check_forward(x)
    check_backward(x)


@pytest.mark.parametrize("repeat", [1, 2, 3, 20, 30, 80])
def test_repeats(repeat: int) -> None:
    x = normal(33, 4, 4)
    check_forward(x, repeat)
    check_backward(x, repeat)


@pytest.mark.parametrize("mult", [1, 2, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("repeat", [1, 20])
def test_other_sizes_of_matrices(mult: int, repeat: int) -> None:
    x = normal(37, mult, mult)
    check_forward(x, repeat)
    check_backward(x, repeat)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 10.0, 100.0])
@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_flat_and_peaked_logits(scale: float, eps: float) -> None:
    x = normal(65, 4, 4, scale=scale)
    check_forward(x, 10, eps)
    check_backward(x, 10, eps)


def test_without_eps() -> None:
    x = normal(33, 4, 4)
    check_forward(x, 10, 0.0)
    check_backward(x, 10, 0.0)


def test_leading_dimensions() -> None:
    x = normal(3, 5, 4, 4)
    assert torch.equal(check_forward(x).view(15, 4, 4), check_forward(x.view(15, 4, 4)))
    assert torch.equal(check_backward(x).view(15, 4, 4), monotile.mhc.mhc_sinkhorn_bwd(
        normal(3, 5, 4, 4, seed=1).view(15, 4, 4), x.view(15, 4, 4)))
    check_forward(normal(4, 4))


def off_one(out: torch.Tensor, axis: int) -> float:
    return float((out.double().sum(axis) - 1).abs().max())


def may_be_off(mult: int) -> float:
    """How far a sum of ``mult`` numbers, each within its bound, may be from 1: without eps the exact sum is 1."""
    return mult * FORWARD_BOUND.absolute + FORWARD_BOUND.relative


def test_one_repeat_normalises_columns_once_and_rows_never() -> None:
    out = check_forward(normal(64, 4, 4), repeat=1, eps=0.0)
    assert off_one(out, -2) <= may_be_off(4)
    assert off_one(out, -1) > 0.05


def test_many_repeats_make_rows_and_columns_sum_to_one() -> None:
    out = check_forward(normal(64, 4, 4, scale=0.5), repeat=80, eps=0.0)
    for axis in (-1, -2):
        assert off_one(out, axis) <= may_be_off(4)


def test_nan_stays_in_its_matrix() -> None:
    x = normal(70, 4, 4)
    clean, clean_grad = check_forward(x), check_backward(x)
    x[3, 1, 2], x[40, 0, 0] = float("nan"), float("inf")
    others = [t for t in range(70) if t not in (3, 40)]
    grad = normal(70, 4, 4, seed=1)
    out, grad_x = monotile.mhc.mhc_sinkhorn_fwd(x), monotile.mhc.mhc_sinkhorn_bwd(grad, x)
    assert torch.equal(out[others], clean[others]) and torch.equal(grad_x[others], clean_grad[others])
    assert bool(out[3].isnan().all()) and bool(grad_x[3].isnan().all())


def test_the_input_is_kept_and_two_runs_are_equal() -> None:
    x, grad = normal(45, 4, 4), normal(45, 4, 4, seed=1)
    kept, kept_grad = x.clone(), grad.clone()
    for _ in range(2):
        assert torch.equal(monotile.mhc.mhc_sinkhorn_fwd(x), monotile.mhc.mhc_sinkhorn_fwd(x))
        assert torch.equal(monotile.mhc.mhc_sinkhorn_bwd(grad, x), monotile.mhc.mhc_sinkhorn_bwd(grad, x))
    assert torch.equal(x, kept) and torch.equal(grad, kept_grad)


@pytest.mark.parametrize("mult", [4, 3])
def test_nothing_is_written_beside_the_outputs(mult: int) -> None:
    tokens, cells = 45, mult * mult
    x, grad = normal(tokens, cells), normal(tokens, cells, seed=1)
    params: dict[str, Any] = {"mult": mult, "repeat": 3, "eps": 1e-6}
    for inputs, kernel in (((x,), sinkhorn_forward_kernel), ((grad, x), sinkhorn_backward_kernel)):
        memory = torch.full((tokens * cells + 64,), 77.0, device=x.device)
        launch(kernel, *inputs, memory[32:-32].view(tokens, cells), **params)
        assert bool((memory[:32] == 77).all()) and bool((memory[-32:] == 77).all())
        assert not bool((memory[32:-32] == 77).any())


@pytest.mark.parametrize("op,call", [
    ("mhc.mhc_sinkhorn_fwd", lambda x: monotile.mhc.mhc_sinkhorn_fwd(x)),
    ("mhc.mhc_sinkhorn_bwd", lambda x: monotile.mhc.mhc_sinkhorn_bwd(x * 2, x)),
])
def test_other_tiles_give_the_same(op: str, call: Any) -> None:
    x = normal(150, 4, 4)
    usual = call(x)
    with monotile.override_tiling(op, tokens=64):
        assert torch.equal(call(x), usual)


# ---------------------------------------------------------------------- autograd
def gradient(x: torch.Tensor, call: Any, grad: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    (grad_x,) = torch.autograd.grad(call(leaf), leaf, grad)
    return grad_x


def test_autograd_is_the_two_kernels() -> None:
    x, grad = normal(3, 11, 4, 4), normal(3, 11, 4, 4, seed=1)
    assert torch.equal(sinkhorn_normalize(x), monotile.mhc.mhc_sinkhorn_fwd(x))
    assert torch.equal(gradient(x, sinkhorn_normalize, grad), monotile.mhc.mhc_sinkhorn_bwd(grad, x))
    twenty = gradient(x, lambda leaf: sinkhorn_normalize(leaf, repeat=20, eps=1e-5), grad)
    assert torch.equal(twenty, monotile.mhc.mhc_sinkhorn_bwd(grad, x, 20, 1e-5))


def test_backward_twice_and_under_checkpointing() -> None:
    x, grad = normal(33, 4, 4), normal(33, 4, 4, seed=1)
    want = monotile.mhc.mhc_sinkhorn_bwd(grad, x)
    leaf = x.detach().requires_grad_()
    out = sinkhorn_normalize(leaf)
    for _ in range(2):
        (again,) = torch.autograd.grad(out, leaf, grad, retain_graph=True)
        assert torch.equal(again, want)
    for reentrant in (False, True):
        got = gradient_of_checkpoint(x, grad, reentrant)
        assert torch.equal(got, want)


def gradient_of_checkpoint(x: torch.Tensor, grad: torch.Tensor, reentrant: bool) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    checkpoint(sinkhorn_normalize, leaf, use_reentrant=reentrant).backward(grad)
    assert leaf.grad is not None
    return leaf.grad


def test_strided_input_and_gradient() -> None:
    x = normal(33, 4, 4)
    turned = gradient(x, lambda leaf: sinkhorn_normalize(leaf.transpose(-1, -2)).transpose(-1, -2),
                      normal(33, 4, 4, seed=1))
    straight = monotile.mhc.mhc_sinkhorn_bwd(normal(33, 4, 4, seed=1).transpose(-1, -2).contiguous(),
                                             x.transpose(-1, -2).contiguous())
    assert torch.equal(turned, straight.transpose(-1, -2))


def test_nothing_and_no_gradient_wanted() -> None:
    empty = torch.zeros((0, 4, 4), device=monotile.default_device(), requires_grad=True)
    sinkhorn_normalize(empty).sum().backward()
    assert empty.grad is not None and empty.grad.shape == (0, 4, 4)
    assert not sinkhorn_normalize(normal(2, 4, 4)).requires_grad


def test_a_second_derivative_raises() -> None:
    leaf = normal(3, 4, 4).requires_grad_()
    (first,) = torch.autograd.grad(sinkhorn_normalize(leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        first.sum().backward()


def test_registered_operator() -> None:
    torch.library.opcheck(torch.ops.monotile.sinkhorn_normalize.default,
                          (normal(5, 4, 4).requires_grad_(), 3, 1e-6),
                          test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize("x,repeat,eps,words", [
    (lambda: torch.zeros(3, 4, 4, dtype=torch.float64), 10, 1e-6, "x must be float32, got float64"),
    (lambda: torch.zeros(3, 4, 5), 10, 1e-6, "x must have shape (..., m, m), got shape (3, 4, 5)"),
    (lambda: torch.zeros(4), 10, 1e-6, "x must have shape (..., m, m), got shape (4,)"),
    (lambda: torch.zeros(3, 9, 9), 10, 1e-6, "x must have matrices of 1 to 8 rows (mhc_mult), got shape (3, 9, 9)"),
    (lambda: torch.zeros(3, 0, 0), 10, 1e-6, "x must have matrices of 1 to 8 rows (mhc_mult), got shape (3, 0, 0)"),
    (lambda: torch.zeros(3, 4, 4), 0, 1e-6, "repeat must be a whole number of at least 1, got 0"),
    (lambda: torch.zeros(3, 4, 4), 2.0, 1e-6, "repeat must be a whole number of at least 1, got 2.0"),
    (lambda: torch.zeros(3, 4, 4), 10, -1.0, "eps must be a number of at least 0, got -1.0"),
    (lambda: torch.zeros(3, 4, 4), 10, float("nan"), "eps must be a number of at least 0, got nan"),
], ids=["dtype", "not square", "rank", "large", "no rows", "repeat", "repeat type", "eps", "eps NaN"])
def test_bad_input(x: Any, repeat: Any, eps: float, words: str) -> None:
    for call in (monotile.mhc.mhc_sinkhorn_fwd, sinkhorn_normalize):
        with pytest.raises(ValueError, match=re.escape(words)):
            call(x(), repeat, eps)
    with pytest.raises(ValueError, match=re.escape(words)):
        monotile.mhc.mhc_sinkhorn_bwd(x(), x(), repeat, eps)


def test_bad_gradients() -> None:
    x = torch.zeros(3, 4, 4)
    for grad, words in ((torch.zeros(2, 4, 4), "grad must have shape (3, 4, 4), got (2, 4, 4)"),
                        (torch.zeros(3, 4, 4, dtype=torch.bfloat16), "grad must be float32, got bfloat16"),
                        (torch.zeros(3, 4, 4).transpose(1, 2), "grad must be contiguous")):
        with pytest.raises(ValueError, match=re.escape(words)):
            monotile.mhc.mhc_sinkhorn_bwd(grad, x)
    with pytest.raises(ValueError, match=re.escape("x must be contiguous")):
        monotile.mhc.mhc_sinkhorn_fwd(x.transpose(1, 2))


def test_more_repeats_than_fit_are_refused_by_name() -> None:
    with pytest.raises(monotile.errors.TileTooLarge, match=r"mhc\.mhc_sinkhorn_bwd"):
        monotile.mhc.mhc_sinkhorn_bwd(normal(3, 4, 4), normal(3, 4, 4), 4000)
