"""The command ``monotile``, also ``python -m monotile``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from monotile.commands import compile, lower, matrix, parity
from monotile.compat.errors import MonotileError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 done, 1 a check failed or something is missing, 2 wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (MonotileError, ValueError) as error:
        print(f"monotile: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="monotile", description="DeepSeek's TileKernels from one source per kernel.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="one kernel from its source to numbers, for an Ascend 910B in emulation")
    demo.set_defaults(run=_demo)
    targets = commands.add_parser("targets", help="the chips that are known, and what can be done for them here")
    targets.set_defaults(run=_targets)
    ops = commands.add_parser("ops", help="the kernels, with their parameters and default tilings")
    ops.set_defaults(run=_ops)
    for command in (targets, ops):
        command.add_argument("--json", action="store_true", help="for programs")
    for each in (lower, compile, parity, matrix):
        each.add(commands)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from monotile import demo

    return demo.run()


def _targets(options: argparse.Namespace) -> int:
    from monotile import environment

    known = environment.targets()
    if options.json:
        print(json.dumps({"targets": known, "tools": environment.found()}, indent=1))
        return 0
    print(f"{'target':12} {'chip':18} {'backends':16} {'on chip':>9}  here")
    for each in known:
        can = ", ".join(word for word, able in each["here"].items() if able) or "nothing"
        print(f"{each['name']:12} {each['chip']:18} {' '.join(each['backends']):16} "
              f"{each['on_chip_bytes'] // 1024:5} KiB  {can}")
    print("\n" + "\n".join(environment.report()))
    return 0


def _ops(options: argparse.Namespace) -> int:
    import monotile  # noqa: F401  (registers the kernels)
    from monotile.targets.kernel import kernels

    if options.json:
        print(json.dumps([{"kernel": name, "parameters": list(k.params), "tiling": dict(k.tiling)}
                          for name, k in kernels().items()], indent=1))
        return 0
    for name, kernel in kernels().items():
        tiling = ", ".join(f"{key}={value}" for key, value in kernel.tiling.items())
        first_line = (kernel.__doc__ or "(its builder has no docstring)").strip().splitlines()[0]
        print(f"{name}\n    {first_line}\n"
              f"    parameters: {', '.join(kernel.params)}\n    tiling: {tiling}")
    return 0
