"""README.zh-CN.md says what README.md says: headings, code, names, links and tables go together."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADINGS = {
    "monotile": "monotile",
    "Use": "用法",
    "Where a call runs": "一次调用在哪里执行",
    "What is supported": "支持情况",
    "What the emulators are, and are not": "仿真器的能力与边界",
    "CI, and a new device": "CI 与新设备",
    "Read on": "延伸阅读",
}
COMMENT = re.compile(r"\s+# .*|\s+#$")   # comments of code are translated too
LANGUAGES = {"README.md", "README.zh-CN.md"}   # each links to the other


@dataclass(frozen=True)
class Section:
    level: int
    heading: str
    code: tuple[str, ...]      # lines of its code blocks, without comments
    names: tuple[str, ...]     # words in backquotes, sorted
    links: tuple[str, ...]
    tables: tuple[int, ...]    # columns of each row
    items: int                 # of lists


def sections(text: str) -> list[Section]:
    """The sections of a page in order; fails where text comes before the first heading."""
    found: list[tuple[int, str, list[str]]] = []
    inside = False
    for line in text.splitlines():
        inside ^= line.startswith("```")
        heading = None if inside else re.fullmatch(r"(#+) (.*)", line)
        if heading:
            found.append((len(heading[1]), heading[2], []))
        else:
            found[-1][2].append(line)
    return [_section(level, heading, lines) for level, heading, lines in found]


def _section(level: int, heading: str, lines: list[str]) -> Section:
    code, prose, inside = [], [], False
    for line in lines:
        fence = line.startswith("```")
        (code if inside or fence else prose).append(COMMENT.sub("", line))
        inside ^= fence
    text = "\n".join(prose)
    return Section(
        level, heading, tuple(code), tuple(sorted(re.findall(r"`([^`]+)`", text))),
        tuple(link for link in re.findall(r"\]\(([^)]+)\)", text) if link not in LANGUAGES),
        tuple(line.count("|") for line in prose if line.startswith("|")),
        sum(bool(re.match(r"- |\d+\. ", line)) for line in prose))


@pytest.fixture(scope="module")
def pages() -> tuple[list[Section], list[Section]]:
    english, chinese = (sections((ROOT / name).read_text(encoding="utf-8")) for name in sorted(LANGUAGES))
    return english, chinese


def test_headings(pages: tuple[list[Section], list[Section]]) -> None:
    english, chinese = pages
    assert [s.heading for s in english] == list(HEADINGS), "README.md has headings that HEADINGS does not translate"
    assert [s.heading for s in chinese] == list(HEADINGS.values())
    assert [s.level for s in english] == [s.level for s in chinese]


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize("part", ["code", "names", "links", "tables", "items"])
def test_sections(pages: tuple[list[Section], list[Section]], heading: str, part: str) -> None:
    english, chinese = pages
    ours = next(s for s in english if s.heading == heading)
    theirs = next(s for s in chinese if s.heading == HEADINGS[heading])
    assert getattr(ours, part) == getattr(theirs, part)


@pytest.mark.parametrize("name", sorted([*LANGUAGES, "docs/adding-a-device.md"]))
def test_links_and_commands_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for rule in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{''.join(rule)}:", makefile, re.MULTILINE), f"make {''.join(rule)} is no rule"


def test_a_difference_is_found() -> None:
    page = "# a\n\n`x` [l](m)\n\n```\nmake demo   # words\n```\n\n| t | u |\n|---|---|\n\n1. one\n"
    same = sections(page.replace("words", "other words"))
    assert same == sections(page)
    for old, new in (("make demo", "make test"), ("`x`", "`y`"), ("(m)", "(n)"), ("| t | u |", "| t |"),
                     ("1. one", "one"), ("# a", "## a")):
        assert sections(page.replace(old, new, 1)) != same, old
