"""``monotile lower``: what a kernel becomes for a target."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    lower = commands.add_parser("lower", help="print what a kernel becomes for a target: CUDA, AscendC or MLIR")
    lower.add_argument("kernel", metavar="KERNEL", help="as monotile ops lists it, or its last part")
    lower.add_argument("--target", required=True, help="cuda, ascend-910b, ascend-910c or ascend-950")
    lower.add_argument("--backend", help="one of the target's, where not its default")
    lower.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                       help="a parameter or a number of the tiling; others are those of the kernel's first case")
    lower.add_argument("--final", action="store_true", help="the vendor's final IR (npuir)")
    lower.add_argument("--explain", action="store_true",
                       help="how it came about: on the 950, which region became what and why")
    lower.add_argument("--json", action="store_true", help="for programs")
    lower.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from monotile.commands import kernel_options
    from monotile.targets.backend import backend
    from monotile.targets.build import compile_artifact
    from monotile.targets.build import lower as lowered
    from monotile.targets.spec import target as find_target

    kernel = kernel_options.find(options.kernel)
    given, tiling = kernel_options.values(kernel, options.set)
    params = kernel_options.parameters(kernel, given)
    target = find_target(options.target)
    tile = kernel.tile_for(target, params)
    artifact = lowered(kernel, params, target, options.backend, tile.replace(**tiling) if tiling else tile)
    text, compiled = artifact.text, {}
    if options.final:
        if artifact.backend != "npuir":
            raise ValueError(f"--final prints the final IR of AscendNPU-IR; {target} was lowered through "
                             f"{artifact.backend}")
        artifact = compile_artifact(artifact)
        assert artifact.directory is not None
        text = (artifact.directory / "final.mlir").read_text(encoding="utf-8")
        compiled = {"compiled": json.loads((artifact.directory / "compiled.json").read_text(encoding="utf-8"))}
    about = {"kernel": kernel.op, "target": target.name, "backend": artifact.backend, "parameters": params,
             "tiling": dict(artifact.tile), "on_chip_bytes": kernel.live_bytes(artifact.tile, params),
             "lowered_in_s": round(artifact.lower_seconds, 2), **backend(artifact.backend).explain(artifact.source),
             **compiled}
    if options.json:
        print(json.dumps({**about, "text": text}, indent=1))
    elif options.explain:
        for key, value in about.items():
            if isinstance(value, (list, tuple)):
                print(f"{key}:" + "".join(f"\n    {each}" for each in value))
            elif isinstance(value, dict):
                print(f"{key}: {', '.join(f'{name}={each}' for name, each in value.items())}")
            else:
                print(f"{key}: {value}")
    else:
        print(text)
    return 0
