"""Check every op against its oracle on a CUDA GPU, measure it, and print a table.

    python benchmarks/run.py                     check and measure everything; JSON to benchmarks/results/
    python benchmarks/run.py --only topk_gate    the rows whose name contains this
    python benchmarks/run.py --check             compare, measure nothing
    python benchmarks/run.py --compile           build every kernel with nvcc on a machine without a GPU

A check calls the op on fresh inputs with every new tensor filled with NaN (or the largest integer) first, compares
all outputs with the oracle, and calls it again to see that the bits are the same. A measurement is the median of CUDA
events around single calls, with the L2 cache overwritten before each. `copy` is the share of the bandwidth of a
device-to-device copy measured in the same run. Every row is tried; the exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case, flat

from monotile.compat import versions
from monotile.targets.build import Artifact
from monotile.targets.launch import ahead_of_time, loaded

FLUSH_BYTES = 512 << 20    # ten times the L2 cache of an H200
COPY_BYTES = 1 << 30
WARM_UP, REPEATS = 5, 30


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, torch.empty fills what it gives: what nobody writes shows."""
    from torch.utils import deterministic

    before = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        deterministic.fill_uninitialized_memory = before[1]


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Values that compare as bits: NaN equals NaN, 0 is not -0."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind)


def difference(case: Case, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> str:
    """In words how results differ, or nothing."""
    if len(got) != len(want):
        return f"{len(got)} outputs, the oracle has {len(want)}"
    for position, (ours, oracle) in enumerate(zip(got, want, strict=True)):
        if (ours.shape, ours.dtype) != (oracle.shape, oracle.dtype):
            return f"output {position} is {tuple(ours.shape)} {ours.dtype}, not {tuple(oracle.shape)} {oracle.dtype}"
        if case.bound.bits:
            wrong = as_bits(ours) != as_bits(oracle)
        else:
            wrong = ~torch.isclose(ours.double(), oracle.double(), case.bound.relative, case.bound.absolute,
                                   equal_nan=True)
        if wrong.any():
            where = tuple(int(i) for i in wrong.nonzero()[0])
            return (f"output {position}: {int(wrong.sum())} of {wrong.numel()} differ, first at {where}: "
                    f"{_shown(ours, where)}, not {_shown(oracle, where)}")
    return ""


def _shown(tensor: torch.Tensor, where: tuple[int, ...]) -> str:
    value = tensor[where]
    return f"{value.float().item():.9g}" if value.is_floating_point() else str(value.item())


def check(case: Case, device: str) -> list[str]:
    """What is wrong, for every size that is compared."""
    wrong = []
    for number, sizes in enumerate((*case.checks, case.sizes)):
        label = ", ".join(f"{k}={v}" for k, v in sizes.items())
        try:
            inputs = case.inputs(torch.Generator(device).manual_seed(1000 + number), **sizes)
            kept = [t.clone() for t in inputs]
            with poisoned():
                first = [t.clone() for t in flat(case.call(*inputs))]
                second = flat(case.call(*inputs))
            torch.cuda.synchronize()
            for t, copy in zip(inputs, kept, strict=True):
                if not torch.equal(as_bits(t), as_bits(copy)):
                    wrong.append(f"{label}: an input was changed")
            found = difference(case, first, flat(case.oracle(*inputs)))
            if found:
                wrong.append(f"{label}: {found}")
            elif any(not torch.equal(as_bits(a), as_bits(b)) for a, b in zip(first, second, strict=True)):
                wrong.append(f"{label}: two calls gave different bits")
        except Exception as error:
            wrong.append(f"{label}: {type(error).__name__}: {_short(error)}")
            if _context_is_lost(error):
                raise
    return wrong


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _context_is_lost(error: Exception) -> bool:
    return any(word in str(error) for word in ("illegal memory access", "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS",
                                               "misaligned address", "LAUNCH_FAILED", "device-side assert"))


class Clock:
    """Times calls on the GPU."""

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def microseconds(self, call: Callable[[], Any], repeats: int) -> float:
        """The median of single calls on a cold L2 cache. The flush before each hides the host's work."""
        for _ in range(WARM_UP):
            call()
        pairs = []
        for _ in range(repeats):
            self._flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3

    def copy_bytes_per_second(self, repeats: int) -> float:
        """Bytes read and written by torch's copy, per second."""
        source = torch.empty(COPY_BYTES // 2, dtype=torch.uint8, device="cuda").fill_(1)
        target = torch.empty_like(source)
        return COPY_BYTES / (self.microseconds(lambda: target.copy_(source), repeats) * 1e-6)


def host_microseconds(call: Callable[[], Any], calls: int = 200) -> float:
    """Time until a call returns, the GPU being free."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
        torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def measure(case: Case, clock: Clock, bandwidth: float, repeats: int) -> dict[str, Any]:
    inputs = case.inputs(torch.Generator("cuda").manual_seed(1), **case.sizes)
    outputs = flat(case.call(*inputs))
    moved = case.moved(inputs, outputs)
    took = clock.microseconds(lambda: case.call(*inputs), repeats)
    measured: dict[str, Any] = {
        "microseconds": took, "bytes": moved, "of_copy": moved / (took * 1e-6) / bandwidth,
        "host_microseconds": host_microseconds(lambda: case.call(*inputs)),
    }
    measured.update(_measure_peer(case, clock, inputs, outputs, took, repeats))
    return measured


def _measure_peer(case: Case, clock: Clock, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
                  took: float, repeats: int) -> dict[str, Any]:
    if case.peer is None:
        return {}
    try:
        import tile_kernels
    except ImportError:
        return {}
    try:
        theirs = flat(case.peer(tile_kernels, *inputs))
        peer = case.peer
        peer_took = clock.microseconds(lambda: peer(tile_kernels, *inputs), repeats)
        return {"peer_microseconds": peer_took, "peer_ratio": peer_took / took,
                "peer_difference": difference(case, outputs, theirs)}
    except Exception as error:
        return {"peer_error": f"{type(error).__name__}: {_short(error)}"}


def describe(artifact: Artifact) -> dict[str, Any]:
    """A kernel of the run: its tiling and what the compiler made of it."""
    report = {}
    if artifact.directory is not None:
        report = json.loads((artifact.directory / "compiled.json").read_text())
    return {"kernel": artifact.op, "tile": dict(artifact.tile), "params": dict(artifact.params),
            "lower_seconds": artifact.lower_seconds, "compile_seconds": artifact.compile_seconds,
            "registers": report.get("registers"), "spilled_bytes": report.get("spilled_bytes"),
            "shared_bytes": report.get("launch", {}).get("shared_bytes")}


def run(names: Sequence[str], measuring: bool, repeats: int) -> dict[str, Any]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")   # torch's deterministic mode wants it
    clock = Clock()
    bandwidth = clock.copy_bytes_per_second(repeats)
    print(f"{torch.cuda.get_device_name()}: a device copy moves {bandwidth / 1e9:.0f} GB/s\n")
    print(f"{'op':46} {'check':6} {'us':>8} {'copy':>5} {'host us':>8} {'peer us':>8} {'peer/us':>8}")
    rows = []
    for name in names:
        case = CASES[name]
        row: dict[str, Any] = {"name": name, "sizes": case.sizes}
        known = len(loaded())
        lost = False
        try:
            row["wrong"] = check(case, "cuda")
            if measuring and not row["wrong"]:
                row.update(measure(case, clock, bandwidth, repeats))
        except Exception as error:
            row.setdefault("wrong", []).append(f"{type(error).__name__}: {_short(error)}")
            row["traceback"] = traceback.format_exc()
            lost = _context_is_lost(error)
        row["op"] = case.op
        row["kernels"] = [describe(a) for a in loaded()[known:]]
        rows.append(row)
        print(f"{name:46} {'WRONG' if row['wrong'] else 'equal':6} {_number(row, 'microseconds', 8, 1)} "
              f"{_number(row, 'of_copy', 5, 2)} {_number(row, 'host_microseconds', 8, 1)} "
              f"{_number(row, 'peer_microseconds', 8, 1)} {_number(row, 'peer_ratio', 8, 2)}", flush=True)
        for line in row["wrong"][:8]:
            print(f"    {line}")
        for key in ("peer_difference", "peer_error"):
            if row.get(key):
                print(f"    {key.replace('_', ' ')}: {row[key]}")
        if lost:
            print("    the GPU's context is lost: start again with --only for the rows that follow")
            break
    return {"copy_bytes_per_second": bandwidth, "rows": rows}


def _number(row: dict[str, Any], key: str, width: int, digits: int) -> str:
    return f"{row[key]:{width}.{digits}f}" if key in row else " " * (width - 1) + "-"


def compile_only(names: Sequence[str]) -> dict[str, Any]:
    """Build what each row would launch, at its sizes with few tokens."""
    rows = []
    for name in names:
        case = CASES[name]
        sizes = {k: min(v, 64) if k in ("tokens", "batches") else v for k, v in case.sizes.items()}
        row: dict[str, Any] = {"name": name, "sizes": case.sizes, "wrong": []}
        with ahead_of_time("cuda") as artifacts:
            try:
                case.call(*case.inputs(torch.Generator().manual_seed(0), **sizes))
                if not artifacts():
                    row["wrong"].append("no kernel was launched")
            except Exception as error:
                row["wrong"].append(f"{type(error).__name__}: {_short(error)}")
                row["traceback"] = traceback.format_exc()
            row["kernels"] = [describe(a) for a in artifacts()]
        rows.append(row)
        print(f"{name:46} {'WRONG' if row['wrong'] else 'built'}", *row["wrong"])
        for kernel in row["kernels"]:
            print(f"    {kernel['kernel']}: {kernel['registers']} registers, {kernel['spilled_bytes']} bytes spilled, "
                  f"{kernel['shared_bytes']} of shared memory", flush=True)
    return {"rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and measure monotile's ops on a CUDA GPU.")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="rows whose name contains TEXT")
    parser.add_argument("--check", action="store_true", help="compare with the oracles, measure nothing")
    parser.add_argument("--compile", action="store_true", help="build the kernels, without a GPU")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="calls measured a row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    options = parser.parse_args()
    names = [name for name in CASES if not options.only or any(text in name for text in options.only)]
    if not names:
        parser.error(f"--only must match one of: {', '.join(CASES)}")
    if options.compile:
        result = compile_only(names)
        device = "none: compiled only"
    elif torch.cuda.is_available():
        result = run(names, not options.check, options.repeats)
        device = torch.cuda.get_device_name()
    else:
        parser.error("torch sees no CUDA GPU: run this on one, or use --compile")
    now = datetime.datetime.now(datetime.timezone.utc)
    result = {"date": now.isoformat(timespec="seconds"), "device": device, "target": "cuda-sm90",
              "repeats": options.repeats, "torch": torch.__version__, "cuda": torch.version.cuda,
              "tilelang": versions.tilelang(), "nvcc": versions.nvcc(),
              "tile_kernels": versions.package("tile-kernels"), **result}
    path = options.json or Path(__file__).with_name("results") / f"{now:%Y-%m-%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, default=str))
    failed = [row["name"] for row in result["rows"] if row["wrong"]]
    print(f"\n{len(result['rows']) - len(failed)} of {len(names)} rows are right; {path}")
    return 1 if failed or len(result["rows"]) < len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
