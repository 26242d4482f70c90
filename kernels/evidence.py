"""What is known of every op on every target, and on what evidence.

    1  it lowers                         4  it ran on the device
    2  the vendor's compiler accepts it  5  it was measured there
    3  executed, its results equal the oracle's and, where they are recorded, those that an H200 computed

Levels are a set: the text for the 950 is executed here and no bisheng has seen it. Tests write evidence (pytest with
``MONOTILE_EVIDENCE=FOLDER``), one file a target and backend; nobody types a level. Levels 4 and 5 come from a parity
bundle and a benchmark's result that were recorded on that device; tests hold what is in a bundle against the oracle.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monotile.targets.build import Artifact
from monotile.targets.spec import TARGETS

LOWERS, ACCEPTED, EQUAL, RAN, MEASURED = 1, 2, 3, 4, 5
NOT_RUN = "none"
ROOT = Path(__file__).resolve().parents[1]
FOLDER, GOLDEN, FIGURES, PAGE = (ROOT / part for part in (
    "tests/evidence", "tests/golden", "benchmarks/measured", "docs/support.md"))
README = ROOT / "README.md"
BEGIN, END = "<!-- monotile matrix: begin -->", "<!-- monotile matrix: end -->"


@dataclass(frozen=True)
class Record:
    """What tests found of one op on one target through one backend."""

    op: str
    target: str
    backend: str
    executor: str               # or "none": it was built and not run
    cases: int                  # that were equal to the oracle and to the recorded GPU
    accepted: str | None        # the vendor's compiler that took every kernel, if one did
    source: str                 # digest of the op's source, what it shares with its family, and its oracle


@functools.cache
def digest(op: str) -> str:
    """Of the files that an op's result depends on most: its source, what that imports of its family, its oracle."""
    family, function = op.rsplit(".", 1)
    public = getattr(importlib.import_module(f"monotile.{family}"), function)
    seen: dict[Path, None] = {}
    waiting = [Path(inspect.getfile(public)).resolve()]
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen[source] = None
        imported = re.findall(rf"monotile\.{family}(?:\.(\w+))? import (\(.*?\)|[^\n]*)",
                              source.read_text(encoding="utf-8"), re.DOTALL)
        for module, names in imported:
            stems = [module] if module else re.findall(r"\w+", names)
            waiting += [path for path in (source.with_name(f"{stem}.py") for stem in stems) if path.exists()]
    first = next(iter(seen))
    oracle = first.parents[1] / "reference" / family / first.name
    found = hashlib.sha256()
    for path in [*sorted(seen), *([oracle] if oracle.exists() else [])]:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def not_recorded() -> set[str]:
    """Ops whose results no H200 has recorded yet: they are held against the oracle alone."""
    path = GOLDEN / "h200" / "not_recorded.txt"
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


# ---------------------------------------------------------------------- writing
def compiler_of(artifacts: Sequence[Artifact]) -> str | None:
    """The vendor's compiler that took all of these kernels, or None where one was not taken."""
    from monotile.targets.backend import backend

    found = {backend(a.backend).accepted(a.directory) if a.directory is not None else None for a in artifacts}
    return found.pop() if len(found) == 1 else None


class Recorder:
    """Gathers what passes; of an op with a case that fails nothing is recorded, and what was is withdrawn."""

    def __init__(self) -> None:
        self._passed: dict[tuple[str, str, str, str], list[str | None]] = {}
        self._failed: set[tuple[str, str, str]] = set()

    def passed(self, op: str, target: str, backend: str, executor: str, accepted: str | None, launches: int) -> None:
        seen = self._passed.setdefault((op, target, backend, executor), [])
        seen.append(accepted if launches else "nothing to launch")

    def failed(self, op: str, target: str, backend: str) -> None:
        self._failed.add((op, target, backend))

    def records(self) -> list[Record]:
        made = []
        for (op, target, backend, executor), seen in sorted(self._passed.items()):
            compilers = {each for each in seen if each != "nothing to launch"}
            if (op, target, backend) in self._failed or not compilers:
                continue
            accepted = compilers.pop() if len(compilers) == 1 else None
            equal = 0 if executor == NOT_RUN else len(seen)
            made.append(Record(op, target, backend, executor, equal, accepted, digest(op)))
        return made

    def write(self, folder: Path) -> None:
        """One file a target and backend; what was not run this time is kept."""
        for record in self.records():
            path = folder / f"{record.target}-{record.backend}.json"
            folder.mkdir(parents=True, exist_ok=True)
            known = {each.op: each for each in _read(path)} if path.exists() else {}
            if record.executor == NOT_RUN and record.op in known and known[record.op].executor != NOT_RUN:
                continue
            known[record.op] = record
            _write(path, known)
        for op, target, backend in sorted(self._failed):
            path = folder / f"{target}-{backend}.json"
            known = {each.op: each for each in _read(path)} if path.exists() else {}
            if known.pop(op, None) is not None:
                _write(path, known)


def _write(path: Path, known: Mapping[str, Record]) -> None:
    path.write_text(json.dumps([asdict(known[op]) for op in sorted(known)], indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------- reading
def _read(path: Path) -> list[Record]:
    return [Record(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def records(folder: Path = FOLDER) -> list[Record]:
    """Every record of a folder."""
    return [record for path in sorted(folder.glob("*.json")) for record in _read(path)]


def _on_devices() -> dict[tuple[str, str, str], str]:
    """(op, target, backend) of every bundle that a device recorded -> the device."""
    from monotile.parity import bundle
    from monotile.parity.cases import cases

    op_of = {case.name: case.op.name for case in cases()}
    found = {}
    for path in sorted(GOLDEN.glob("*/*.safetensors")):
        about = bundle.load(path)
        if about.about.executor == "device":
            for name in about.hashes:
                if name in op_of:
                    found[op_of[name], about.about.target, about.about.backend] = about.about.device
    return found


def _figures() -> set[tuple[str, str]]:
    """(op, target) of every benchmark result that a device recorded."""
    found = set()
    for path in sorted(FIGURES.glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        found |= {(row["op"], told["target"]) for row in told["rows"] if "microseconds" in row and not row["wrong"]}
    return found


def levels(folder: Path = FOLDER) -> dict[tuple[str, str, str], set[int]]:
    """The levels of every (op, target, backend) that there is evidence of."""
    found: dict[tuple[str, str, str], set[int]] = {}
    for record in records(folder):
        reached = {LOWERS, EQUAL} if record.cases else {LOWERS}
        if record.accepted:
            reached.add(ACCEPTED)
        found[record.op, record.target, record.backend] = reached
    for key in _on_devices():
        found.setdefault(key, {LOWERS, ACCEPTED}).add(RAN)
    measured = _figures()
    for (op, target, _), reached in found.items():
        if (op, target) in measured and RAN in reached:
            reached.add(MEASURED)
    return found


def stale(folder: Path = FOLDER) -> list[str]:
    """Records whose source or oracle has changed since, in words."""
    return [f"{each.op} on {each.target} ({each.backend}) was recorded from another version of its source"
            for each in records(folder) if each.source != digest(each.op)]


def columns() -> list[tuple[str, str]]:
    """Every target with each of its backends."""
    return [(name, backend) for name, target in TARGETS.items() for backend in target.backends]


def table(folder: Path = FOLDER) -> str:
    """The table in Markdown: rows are ops, columns targets; a cell has the levels reached."""
    from monotile.parity.cases import ops

    found, places = levels(folder), columns()
    old, alone = {each.split(" was ")[0] for each in stale(folder)}, not_recorded()
    lines = ["| op | " + " | ".join(f"`{target}` {backend}" for target, backend in places) + " |",
             "| --- |" + " --- |" * len(places)]
    for op in ops():
        cells = []
        for target, backend in places:
            reached = found.get((op, target, backend), set())
            words = [f"{level}°" if level == EQUAL and op in alone else str(level) for level in sorted(reached)]
            mark = "\\*" if f"{op} on {target} ({backend})" in old else ""
            cells.append((" ".join(words) or "-") + mark)
        lines.append(f"| `{op}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


LEGEND = ("1 lowers; 2 the vendor's compiler accepts; 3 executed, equal to the oracle and to what an H200 computed; "
          "4 ran on the device; 5 measured there. `°`: equal to the oracle, and no H200 has recorded the op yet. `*`: "
          "recorded from an earlier version of the source.")


def page(folder: Path = FOLDER) -> str:
    """docs/support.md."""
    told = [f"- `{each.target}`, {each.backend}: {each.executor}, "
            f"{each.accepted or 'no compiler of the vendor was here'}"
            for each in {(r.target, r.backend): r for r in records(folder)}.values()]
    devices = sorted({f"- `{target}`: {device}" for (_, target, _), device in _on_devices().items()})
    return "\n".join([
        "# What is supported, on what evidence", "",
        "Written by `monotile matrix --write` from what tests recorded (`tests/evidence`, `tests/golden`, "
        "`benchmarks/measured`).", "", LEGEND, "", table(folder), "", "Executed by:", "", *told, "",
        "Devices that results were recorded on:", "", *(devices or ["- none"]), ""])


def in_step(folder: Path = FOLDER) -> list[str]:
    """What is not as the evidence has it, in words."""
    found = []
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(folder):
        found.append(f"{PAGE.relative_to(ROOT)} is not what the evidence says: run monotile matrix --write")
    if _between(README.read_text(encoding="utf-8")) != table(folder):
        found.append("README.md's table is not what the evidence says: run monotile matrix --write")
    return found


def worse(fresh: Path, folder: Path = FOLDER) -> list[str]:
    """Ops that reached less in ``fresh`` than is committed, for the targets that ``fresh`` speaks of."""
    committed, now = levels(folder), levels(fresh)
    spoken = {(record.target, record.backend) for record in records(fresh)}
    return [f"{op} on {target} ({backend}) reached {sorted(now.get((op, target, backend), set()))} now, and "
            f"{sorted(reached)} is committed" for (op, target, backend), reached in committed.items()
            if (target, backend) in spoken and reached - now.get((op, target, backend), set())]


def write() -> None:
    """docs/support.md and the tables of both READMEs."""
    PAGE.write_text(page(), encoding="utf-8")
    for readme in (README, README.with_name("README.zh-CN.md")):
        text = readme.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        readme.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def _between(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0].strip("\n")


def as_json(folder: Path = FOLDER) -> list[Mapping[str, Any]]:
    """For programs."""
    return [{"op": op, "target": target, "backend": backend, "levels": sorted(reached)}
            for (op, target, backend), reached in sorted(levels(folder).items())]
