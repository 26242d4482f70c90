"""``monotile matrix``: the table of ops and targets, from evidence."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    matrix = commands.add_parser("matrix", help="which op was shown to work on which target, and how far",
                                 description="Reads the evidence of a checkout of the repository.")
    matrix.add_argument("--write", action="store_true", help="write docs/support.md and the README's table")
    matrix.add_argument("--check", action="store_true", help="1 where they are not what the evidence says")
    matrix.add_argument("--evidence", type=Path, metavar="FOLDER",
                        help="what tests recorded just now: with --check, 1 where it is less than what is committed")
    matrix.add_argument("--json", action="store_true", help="for programs")
    matrix.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from monotile import evidence

    if not evidence.FOLDER.is_dir():
        raise ValueError(f"there is no evidence in {evidence.FOLDER}: run this from a checkout of the repository")
    if options.write:
        evidence.write()
    if options.check:
        wrong = [*evidence.in_step(), *(evidence.worse(options.evidence) if options.evidence is not None else [])]
        for each in [*wrong, *evidence.stale()]:
            print(f"monotile: {each}", file=sys.stderr)
        return 1 if wrong else 0
    if options.json:
        print(json.dumps(evidence.as_json(), indent=1))
    else:
        print(f"{evidence.table()}\n\n{evidence.LEGEND}")
    return 0
