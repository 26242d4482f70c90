"""``monotile parity record`` and ``monotile parity compare``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parity = commands.add_parser("parity", help="the same calls on two devices: record results, compare two records")
    actions = parity.add_subparsers(title="actions", metavar="ACTION", required=True)
    record = actions.add_parser("record", help="run the cases on a target and write their results")
    record.add_argument("--target", required=True, help="cuda, ascend, ascend-910b, ascend-910c or ascend-950")
    record.add_argument("--backend", help="one of the target's, where not its default")
    record.add_argument("--ops", help="only these, separated by commas")
    record.add_argument("--out", required=True, type=Path, metavar="FILE", help="the bundle to write")
    record.set_defaults(run=_record)
    compare = actions.add_parser("compare", help="hold one bundle against another; 1 where a result misses its bound")
    compare.add_argument("got", type=Path, help="a bundle, or a folder that holds one")
    compare.add_argument("want", type=Path, help="what it is held against")
    compare.add_argument("--ops", help="only these, separated by commas")
    compare.add_argument("--report", type=Path, metavar="HTML", help="write a page too")
    compare.add_argument("--json", action="store_true", help="for programs")
    compare.set_defaults(run=_compare)


def _names(option: str | None) -> list[str] | None:
    return [name.strip() for name in option.split(",") if name.strip()] if option else None


def _record(options: argparse.Namespace) -> int:
    from monotile.parity import bundle
    from monotile.parity.cases import cases
    from monotile.targets.select import use_target

    chosen = cases(_names(options.ops))
    shows = sys.stderr.isatty()

    def progress(number: int, name: str) -> None:
        if shows:
            print(f"\r\033[K{number + 1}/{len(chosen)} {name}"[:110], end="", file=sys.stderr, flush=True)

    with use_target(options.target, options.backend):
        made = bundle.record(chosen, progress)
    if shows:
        print("\r\033[K", end="", file=sys.stderr)
    bundle.save(made, options.out)
    print(f"{len(chosen)} cases on {made.about.device} ({made.about.target}, {made.about.backend}, "
          f"{made.about.executor}): {options.out}, {options.out.stat().st_size} bytes")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from monotile.parity import bundle, report
    from monotile.parity.cases import cases

    found = report.compare(bundle.load(options.got), bundle.load(options.want), cases(_names(options.ops)))
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report.page(found), encoding="utf-8")
    print(json.dumps(report.as_json(found), indent=1) if options.json else report.text(found))
    return 0 if found.holds else 1
