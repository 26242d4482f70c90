"""Two bundles compared: as text, as JSON, and as one page of HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from monotile.parity.bundle import About, Bundle, BundleError
from monotile.parity.cases import Case, ops
from monotile.parity.difference import Difference, difference
from monotile.parity.tolerances import VERSION, bound


@dataclass(frozen=True)
class Row:
    """One output of one case."""

    op: str
    case: str
    output: str
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """What was found; ``missing``: cases that not both have."""

    got: About
    want: About
    rows: tuple[Row, ...]
    missing: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.missing and all(row.difference.holds for row in self.rows)


def compare(got: Bundle, want: Bundle, cases: Sequence[Case]) -> Comparison:
    """Hold ``got`` against ``want``, case by case.

    Raises BundleError where the two were recorded from different inputs, or under another table of tolerances, and for
    a bundle that has more than the cases: what is in a bundle is compared, or is refused by name.
    """
    if got.about.tolerances != want.about.tolerances:
        raise BundleError(f"one bundle knows version {got.about.tolerances} of the tolerances, the other "
                          f"{want.about.tolerances}; record them with one version of monotile")
    if got.about.tolerances != VERSION:
        raise BundleError(f"the bundles know version {got.about.tolerances} of the tolerances, this is {VERSION}; "
                          "record them anew")
    chosen = {case.name: case for case in cases}
    for each in (got, want):
        _known(each, chosen)
    shared = [name for name in chosen if name in got.hashes and name in want.hashes]
    differing = [name for name in shared if got.hashes[name] != want.hashes[name]]
    if differing:
        raise BundleError("the bundles were recorded from different inputs: " + ", ".join(differing))
    stale = [name for name in shared if got.hashes[name] != chosen[name].hash]
    if stale:
        raise BundleError("the bundles were recorded from other inputs than this version draws: " + ", ".join(stale))
    rows = [Row(chosen[name].op.name, name, output, difference(
        got.results[name][output], want.results[name][output], bound(chosen[name].op.name, output),
        chosen[name].call.defined.get(output))) for name in shared for output in chosen[name].op.outputs]
    missing = [name for name in chosen if name not in shared]
    return Comparison(got.about, want.about, tuple(rows), tuple(missing))


def _known(made: Bundle, chosen: Mapping[str, Case]) -> None:
    """Refuse cases that this version has not, of the ops that are compared, and outputs that a case has not."""
    compared = {case.op.name for case in chosen.values()}
    strange = [name for name in made.hashes if name not in chosen
               and (name.partition("[")[0] in compared or compared == set(ops()))]
    if strange:
        raise BundleError(f"the bundle of {made.about.device} has cases that this version has not: "
                          + ", ".join(strange))
    for name in (name for name in chosen if name in made.hashes):
        found, has = made.results[name], chosen[name].op.outputs
        if set(found) != set(has):
            raise BundleError(f"the bundle of {made.about.device} has for {name} the outputs "
                              f"{', '.join(sorted(found))}; the op has {', '.join(has)}")


def _origin(about: About) -> str:
    return f"{about.device} ({about.target}, {about.backend}, {about.executor}, {about.recorded})"


@dataclass(frozen=True)
class _Line:
    """What is told of an op."""

    op: str
    cases: int
    worst_ulp: str
    elements: int
    missed: int
    bounds: str
    holds: bool


def _per_op(found: Comparison) -> list[_Line]:
    table = []
    for op in dict.fromkeys(row.op for row in found.rows):
        rows = [row for row in found.rows if row.op == op]
        worst = [row.difference.worst_ulp for row in rows if row.difference.worst_ulp is not None]
        bounds = dict.fromkeys(str(bound(op, row.output)) for row in rows)
        table.append(_Line(op, len({row.case for row in rows}), str(max(worst)) if worst else "-",
                           sum(row.difference.elements for row in rows), sum(row.difference.missed for row in rows),
                           ", or ".join(bounds), all(row.difference.holds for row in rows)))
    return table


def text(found: Comparison) -> str:
    """A table per op, and the first elements that miss."""
    lines = [f"got  {_origin(found.got)}", f"want {_origin(found.want)}", "",
             f"{'op':44} {'cases':>5} {'worst ulp':>9} {'elements':>10} {'misses':>8}  bound"]
    lines += [f"{line.op:44} {line.cases:5} {line.worst_ulp:>9} {line.elements:10} {line.missed:8}  {line.bounds}"
              for line in _per_op(found)]
    for row in found.rows:
        if row.difference.holds:
            continue
        lines.append(f"\n{row.case} {row.output}: "
                     + (row.difference.reason or f"{row.difference.missed} of {row.difference.elements} elements miss"))
        lines += [f"    at {list(miss.at)}: got {miss.got}, want {miss.want}" for miss in row.difference.first]
    lines += [f"\nnot in both bundles: {name}" for name in found.missing]
    lines.append("\nparity holds" if found.holds else "\nparity does not hold")
    return "\n".join(lines)


def as_json(found: Comparison) -> dict[str, Any]:
    """For programs."""
    return {"holds": found.holds, "got": asdict(found.got), "want": asdict(found.want), "missing": list(found.missing),
            "results": [{"op": row.op, "case": row.case, "output": row.output, "holds": row.difference.holds,
                         **asdict(row.difference)} for row in found.rows]}


_STYLE = ("body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
          "table{border-collapse:collapse;width:100%}td,th{padding:.3em .6em;border-bottom:1px solid #ccc;"
          "text-align:left}td.n,th.n{text-align:right}.miss{background:#fde8e8}code{font-size:13px}")


def page(found: Comparison) -> str:
    """One self-contained page."""
    def cell(value: object, number: bool = False) -> str:
        return f"<td{' class=n' if number else ''}>{html.escape(str(value))}</td>"

    body = [f"<h1>Parity {'holds' if found.holds else 'does not hold'}</h1>",
            f"<p>got <b>{html.escape(_origin(found.got))}</b><br>want <b>{html.escape(_origin(found.want))}</b></p>",
            "<table><tr><th>op<th class=n>cases<th class=n>worst ulp<th class=n>elements<th class=n>misses<th>bound"
            "</tr>"]
    for line in _per_op(found):
        body.append(f"<tr{'' if line.holds else ' class=miss'}>" + cell(line.op) + cell(line.cases, True)
                    + cell(line.worst_ulp, True) + cell(line.elements, True) + cell(line.missed, True)
                    + cell(line.bounds) + "</tr>")
    body.append("</table>")
    for row in found.rows:
        if row.difference.holds:
            continue
        body.append(f"<h2><code>{html.escape(row.case)}</code> {html.escape(row.output)}</h2>")
        body.append(f"<p>{html.escape(row.difference.reason)} {row.difference.missed} of {row.difference.elements} "
                    "elements miss; the first:</p><table><tr><th>at<th>got<th>want</tr>")
        body += ["<tr>" + cell(list(miss.at)) + cell(miss.got) + cell(miss.want) + "</tr>"
                 for miss in row.difference.first]
        body.append("</table>")
    body += [f"<p>Not in both bundles: <code>{html.escape(name)}</code>.</p>" for name in found.missing]
    versions = {name: (found.got.versions.get(name, "-"), found.want.versions.get(name, "-"))
                for name in {**found.got.versions, **found.want.versions}}
    body.append("<h2>Versions</h2><table><tr><th><th>got<th>want</tr>" + "".join(
        "<tr>" + cell(name) + cell(pair[0]) + cell(pair[1]) + "</tr>" for name, pair in versions.items()) + "</table>")
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>monotile parity</title><style>{_STYLE}</style>"
            + "\n".join(body) + "</html>\n")
