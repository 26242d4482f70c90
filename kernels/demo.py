"""``monotile demo``: one kernel from its source to numbers, for a chip that is not here."""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

import monotile
from monotile.reference.quant import per_token_cast as reference
from monotile.targets.build import Artifact, lower
from monotile.targets.kernel import find_kernel
from monotile.targets.launch import ahead_of_time
from monotile.targets.spec import target as find_target

TARGET = "ascend-910b"
SHAPES = ((4001, 576), (257, 7168))
CHANNELS = 128
SHOWN_LINES = 20
BAR_AFTER_S = 2.0

Result = TypeVar("Result")


def activations(tokens: int, hidden: int, seed: int = 0) -> torch.Tensor:
    """bfloat16 rows whose sizes differ as those of activations do; the same bits on every machine."""
    random = np.random.Generator(np.random.Philox(seed))
    x = random.standard_normal((tokens, hidden), dtype=np.float32)
    x *= np.exp2(random.integers(-6, 7, (tokens, 1))).astype(np.float32)
    return torch.from_numpy(x).bfloat16()


def run() -> int:
    """Print what happened; 1 if any number differs."""
    chip = find_target(TARGET)
    wrong = 0
    say(f"per_token_cast to e4m3, one scale for {CHANNELS} channels, on {chip} ({chip.chip}), emulated\n")
    with monotile.use_target(TARGET):
        for tokens, hidden in SHAPES:
            x = activations(tokens, hidden)
            artifact = waiting(f"lowering and compiling for {hidden} channels", functools.partial(_build, x))
            _describe(artifact, chip.ub_bytes)
            started = time.perf_counter()
            out, scales = waiting(f"{tokens} x {hidden} in the emulator",
                                  functools.partial(monotile.quant.per_token_cast, x, "e4m3", CHANNELS))
            seconds = time.perf_counter() - started
            expected, expected_scales = reference.per_token_cast(x, "e4m3", CHANNELS)
            values = int((out.view(torch.uint8) != expected.view(torch.uint8)).sum())
            factors = int((scales.view(torch.int32) != expected_scales.view(torch.int32)).sum())
            say(f"  executed   {tokens} x {hidden} bfloat16 in {seconds:.2f} s")
            say(f"  compared   {out.numel():,} values: {out.numel() - values:,} equal; {scales.numel():,} scales: "
                f"{scales.numel() - factors:,} equal (to the bit, with the oracle in plain PyTorch)\n")
            wrong += values + factors
    source = lower(find_kernel(artifact.op), artifact.params, find_target("cuda")).text
    say("The same kernel as CUDA, which needs no GPU to be written:\n")
    code = source[source.rindex('extern "C"'):]   # past the includes and the declaration
    say("\n".join("  " + line[:116] for line in code.splitlines()[:SHOWN_LINES]) + "\n  ...")
    say("\nAll numbers are equal." if not wrong else f"\n{wrong} numbers differ.")
    return int(wrong > 0)


def _build(x: torch.Tensor) -> Artifact:
    with ahead_of_time(TARGET) as artifacts:
        monotile.quant.per_token_cast(x, "e4m3", CHANNELS)
    (artifact,) = artifacts()
    return artifact


def _describe(artifact: Artifact, ub_bytes: int) -> None:
    assert artifact.directory is not None
    told: dict[str, Any] = json.loads((artifact.directory / "compiled.json").read_text())
    tile = ", ".join(f"{key}={value}" for key, value in artifact.tile.items())
    compiled = "from the cache" if artifact.compile_seconds is None else f"in {artifact.compile_seconds:.2f} s"
    say(f"  lowered    {artifact.op} (tile {tile}) to {len(artifact.text.splitlines())} lines of AscendNPU-IR in "
        f"{artifact.lower_seconds:.2f} s")
    say(f"  accepted   by {told['compiler']} for {told['chip']}, {compiled}; "
        f"{len(told['library_calls'])} library routines, all found in its library")
    say(f"  on chip    {told['ub_bytes']:,} of {ub_bytes:,} bytes of UB"
        + (", double-buffered" if told["double_buffered"] else ""))


def say(text: str) -> None:
    print(text, flush=True)


def waiting(what: str, work: Callable[[], Result]) -> Result:
    """Do the work; where it takes longer than a moment, and somebody watches, show that it goes on."""
    with _spinner(what):
        return work()


@contextmanager
def _spinner(what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    done, started = threading.Event(), time.perf_counter()

    def show() -> None:
        if done.wait(BAR_AFTER_S):
            return
        step = 0
        while not done.wait(0.2):
            step += 1
            bar = "".join("=" if (i - step) % 12 < 4 else " " for i in range(24))
            sys.stderr.write(f"\r[{bar}] {time.perf_counter() - started:4.0f} s  {what}")
            sys.stderr.flush()
        sys.stderr.write("\r\033[K")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
