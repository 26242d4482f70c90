"""``monotile compile``: kernels ahead of time, for a machine without compilers."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    compile_ = commands.add_parser(
        "compile", help="compile kernels ahead of time",
        description="Writes sources, the compiler's output and a manifest. A program with MONOTILE_KERNELS set to that "
                    "folder takes its kernels from there, without TileLang and compilers.")
    compile_.add_argument("--target", required=True, help="cuda, ascend-910b, ascend-910c or ascend-950")
    compile_.add_argument("--backend", help="one of the target's, where not its default")
    compile_.add_argument("--ops", help="only kernels of these ops, separated by commas")
    compile_.add_argument("--spec", type=Path, metavar="FILE",
                          help="which kernels: JSON, a list of [kernel, {parameter: value}]; else those of the cases")
    compile_.add_argument("--out", required=True, type=Path, metavar="DIR")
    compile_.set_defaults(run=_run)


def _chosen(options: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    from monotile.commands import kernel_options

    if options.spec is None:
        names = [name.strip() for name in options.ops.split(",")] if options.ops else None
        return list(kernel_options.asked(names))
    try:
        rows = json.loads(options.spec.read_text(encoding="utf-8"))
        pairs = [(str(name), dict(params)) for name, params in rows]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{options.spec} must be a JSON list of [kernel, {{parameter: value}}]: {error}") from error
    found = [(kernel_options.find(name), params) for name, params in pairs]
    for kernel, params in found:
        if set(params) != set(kernel.params):
            raise ValueError(f"{options.spec}: {kernel.op} takes {', '.join(kernel.params)}, got "
                             f"{', '.join(params) or 'none'}")
    return found


def _run(options: argparse.Namespace) -> int:
    from monotile.targets import shipped
    from monotile.targets.build import build
    from monotile.targets.spec import target as find_target

    target, chosen = find_target(options.target), _chosen(options)
    options.out.mkdir(parents=True, exist_ok=True)
    entries, shows = [], sys.stderr.isatty()
    for number, (kernel, params) in enumerate(chosen):
        if shows:
            print(f"\r\033[K{number + 1}/{len(chosen)} {kernel.op}", end="", file=sys.stderr, flush=True)
        artifact = build(kernel, params, target, options.backend)
        assert artifact.directory is not None
        folder = f"{kernel.op}-{artifact.directory.name[:16]}"
        if (options.out / folder).exists():
            shutil.rmtree(options.out / folder)
        shutil.copytree(artifact.directory, options.out / folder)
        entries.append(shipped.entry(kernel, artifact, folder))
    if shows:
        print("\r\033[K", end="", file=sys.stderr)
    shipped.write_manifest(options.out, entries)
    accepted = sum(each["accepted"] is not None for each in entries)
    print(f"{len(entries)} kernels for {target.name} in {options.out}; the vendor's compiler took {accepted}")
    return 0
