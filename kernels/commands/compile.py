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
    compile_.add_argument("--kernel", help="one kernel, as monotile ops lists it; --set gives its parameters")
    compile_.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                          help="a parameter of --kernel; others are those of its first case")
    compile_.add_argument("--spec", type=Path, metavar="FILE",
                          help="which kernels: JSON, a list of [kernel, {parameter: value}]; else those of the cases")
    compile_.add_argument("--out", required=True, type=Path, metavar="DIR")
    compile_.set_defaults(run=_run)


def _chosen(options: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    from monotile.commands import kernel_options

    if sum(each is not None for each in (options.spec, options.ops, options.kernel)) > 1:
        raise ValueError("give one of --ops, --kernel and --spec")
    if options.set and options.kernel is None:
        raise ValueError("--set gives parameters of one kernel: name it with --kernel")
    if options.kernel is not None:
        kernel = kernel_options.find(options.kernel)
        given, tiling = kernel_options.values(kernel, options.set)
        if tiling:
            raise ValueError(f"{', '.join(tiling)}: a kernel ahead of time has the tiling that a call will look for; "
                             "set MONOTILE_TILING for both")
        return [(kernel, kernel_options.parameters(kernel, given))]
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
    backend = options.backend or target.default_backend
    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, {options.out} is a file")
    if options.out.exists() and any(options.out.iterdir()) and not (options.out / shipped.MANIFEST).exists():
        raise ValueError(f"{options.out} holds other files and no {shipped.MANIFEST}: name a new folder")
    options.out.mkdir(parents=True, exist_ok=True)
    entries, shows = [], sys.stderr.isatty()
    for number, (kernel, params) in enumerate(chosen):
        if shows:
            print(f"\r\033[K{number + 1}/{len(chosen)} {kernel.op}", end="", file=sys.stderr, flush=True)
        artifact = build(kernel, params, target, backend)
        assert artifact.directory is not None
        folder = f"{target.name}-{backend}/{kernel.op}-{artifact.directory.name[:16]}"
        if (options.out / folder).exists():
            shutil.rmtree(options.out / folder)
        shutil.copytree(artifact.directory, options.out / folder)
        entries.append(shipped.entry(kernel, artifact, folder))
    if shows:
        print("\r\033[K", end="", file=sys.stderr)
    shipped.add_to_manifest(options.out, entries)
    accepted = sum(each["accepted"] is not None for each in entries)
    print(f"{len(entries)} kernels for {target.name} ({backend}) in {options.out}; the vendor's compiler took "
          f"{accepted}")
    return 0
