"""Parse MLIR's generic form, as `bishengir-opt --mlir-print-op-generic` prints it, into plain objects.

Only the shape of the text is understood here: operations, operands, regions, property and attribute
dictionaries, types as text. What an operation means is translate.py's business. Attribute values stay text;
aliases (`#map = ...`) are replaced by what they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from monotile.compat.errors import MonotileError


class IRSyntaxError(MonotileError, ValueError):
    """The text is not MLIR in generic form."""


@dataclass
class Region:
    """One block: its arguments as (name, type), and its operations."""

    arguments: list[tuple[str, str]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass
class Operation:
    """One operation. `line` is its line in the parsed text, counted from 1."""

    name: str
    line: int
    results: list[str]
    operands: list[str]
    properties: dict[str, str]
    attributes: dict[str, str]
    regions: list[Region]
    operand_types: list[str]
    result_types: list[str]

    def walk(self) -> Iterator[Operation]:
        yield self
        for region in self.regions:
            for operation in region.operations:
                yield from operation.walk()


@dataclass(frozen=True)
class MemRefType:
    """`memref<4x?xf32, strided<[?, 1], offset: ?>, #hivm.address_space<ub>>`; None stands for `?`."""

    shape: tuple[int | None, ...]
    element: str
    strides: tuple[int | None, ...] | None  # None: row major without gaps
    offset: int | None
    space: str  # "ub", "gm", ... ; "gm" where the type names none


_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}
# "->", ">=" and "<=" are arrows and comparisons, not brackets.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|->|>=|<=|[<>()\[\]{}]')
_SEPARATOR = re.compile(r'"(?:[^"\\]|\\.)*"|->|>=|<=|[<>()\[\]{},]')
_OPERATION = re.compile(r'\s*(?:(%[\w#]+(?::\d+)?(?:, *%\w+(?::\d+)?)*) = )?"([\w.$-]+)"\(([^)]*)\)')
_BLOCK = re.compile(r"\s*\^bb\d+(?:\(([^\n]*)\))?:\s*\n")
_ALIAS = re.compile(r"^(#\w+) = (.*)\n", re.MULTILINE)
_LOCATION = re.compile(r" loc\((?:\"[^\"]*\":\d+:\d+|#\w+|unknown)\)")


def parse(text: str) -> Operation:
    """The module operation of `text`.

    Errors: IRSyntaxError with the line at which the text stops being generic MLIR.
    """
    return _Parser(text).module()


def split(text: str) -> list[str]:
    """Split at the commas outside of brackets and strings: "a<b, c>, d" -> ["a<b, c>", "d"]."""
    parts: list[str] = []
    depth = start = 0
    for match in _SEPARATOR.finditer(text):
        token = match.group()
        if token in _CLOSING:
            depth += 1
        elif token in (">", ")", "]", "}"):
            depth -= 1
        elif token == "," and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    if text[start:].strip():
        parts.append(text[start:].strip())
    return parts


def memref_type(text: str) -> MemRefType:
    """Read a memref type. Errors: IRSyntaxError if `text` is not one."""
    if not text.startswith("memref<"):
        raise IRSyntaxError(f"not a memref type: {text}")
    head, *rest = split(text[len("memref<") : -1])
    *extents, element = head.split("x")
    strides: tuple[int | None, ...] | None = None
    offset: int | None = 0
    space = "gm"
    for part in rest:
        if match := re.match(r"strided<\[(.*?)\](?:, offset: (\S+))?>", part):
            strides = tuple(None if s.strip() == "?" else int(s) for s in match[1].split(",") if s.strip())
            offset = None if match[2] == "?" else int(match[2] or 0)
        elif match := re.search(r"address_space<(\w+)>", part):
            space = match[1]
        else:
            raise IRSyntaxError(f"unknown part {part!r} in {text}")
    shape = tuple(None if e == "?" else int(e) for e in extents)
    return MemRefType(shape, element, strides, offset, space)


def integers(attribute: str) -> list[int]:
    """The values of `array<i64: 1, 2>`; an empty array is `array<i64>`."""
    _, colon, values = attribute.partition(":")
    return [int(v) for v in values.rstrip(">").split(",")] if colon else []


class _Parser:
    def __init__(self, text: str) -> None:
        self.aliases: dict[str, str] = {}

        def note(match: re.Match[str]) -> str:
            self.aliases[match[1]] = match[2]
            return "\n"  # keep the line count

        text = _ALIAS.sub(note, text.replace("\r\n", "\n"))
        self.text = _LOCATION.sub("", text) if " loc(" in text else text
        self.at = 0
        self.lines = 1
        self.counted = 0

    def module(self) -> Operation:
        operation = self.operation()
        if operation.name != "builtin.module":
            raise IRSyntaxError(f"expected a builtin.module, found {operation.name}")
        return operation

    def line(self, at: int) -> int:
        """Line number of a position; positions must not go back."""
        self.lines += self.text.count("\n", self.counted, at)
        self.counted = max(at, self.counted)
        return self.lines

    def fail(self, at: int, why: str) -> IRSyntaxError:
        line = self.text.count("\n", 0, at) + 1
        return IRSyntaxError(f"line {line}: {why}: {self.text[at : at + 80].splitlines()[:1]}")

    def after_bracket(self, at: int) -> int:
        """Position after the bracket that closes the one at `at`."""
        open_brackets: list[str] = []
        for match in _BRACKET.finditer(self.text, at):
            token = match.group()
            if token in _CLOSING:
                open_brackets.append(_CLOSING[token])
            elif token in (">", ")", "]", "}"):
                if not open_brackets or open_brackets.pop() != token:
                    raise self.fail(match.start(), "unbalanced bracket")
                if not open_brackets:
                    return match.end()
        raise self.fail(at, "bracket is never closed")

    def dictionary(self, text: str) -> dict[str, str]:
        entries: dict[str, str] = {}
        for entry in split(text):
            key, _, value = entry.partition("=")
            value = value.strip()
            entries[key.strip()] = self.aliases.get(value, value)
        return entries

    def region(self) -> Region:
        region = Region()
        self.at += 1  # the opening brace
        while True:
            if match := _BLOCK.match(self.text, self.at):
                if region.operations:
                    raise self.fail(self.at, "more than one block in a region")
                for argument in split(match[1] or ""):
                    name, _, type_ = argument.partition(":")
                    region.arguments.append((name.strip(), type_.strip()))
                self.at = match.end()
                continue
            if match := _OPERATION.match(self.text, self.at):
                region.operations.append(self.operation(match))
                continue
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.text[self.at : self.at + 1] != "}":
                raise self.fail(self.at, "not an operation")
            self.at += 1
            return region

    def operation(self, match: re.Match[str] | None = None) -> Operation:
        text = self.text
        match = match or _OPERATION.match(text, self.at)
        if not match:
            raise self.fail(self.at, "not an operation in generic form")
        line = self.line(match.end())
        results: list[str] = []
        for result in (match[1] or "").split(","):
            base, colon, count = result.strip().partition(":")
            if colon:
                results += [f"{base}#{i}" for i in range(int(count))]
            elif base:
                results.append(base)
        operands = [o.strip() for o in match[3].split(",")] if match[3].strip() else []
        properties: dict[str, str] = {}
        attributes: dict[str, str] = {}
        regions: list[Region] = []
        at = match.end()
        if text.startswith(" <{", at):
            end = self.after_bracket(at + 1)
            properties = self.dictionary(text[at + 3 : end - 2])
            at = end
        if text.startswith(" ({", at):
            self.at = at + 2
            regions.append(self.region())
            while text.startswith(", {", self.at):
                self.at += 2
                regions.append(self.region())
            at = self.at + 1  # the closing parenthesis
        if text.startswith(" {", at):
            end = self.after_bracket(at + 1)
            attributes = self.dictionary(text[at + 2 : end - 1])
            at = end
        newline = text.find("\n", at)
        newline = len(text) if newline < 0 else newline
        types = re.match(r"\s*:\s*", text[at:newline])
        if not types:
            raise self.fail(at, "an operation without its type")
        end = self.after_bracket(at + types.end())
        operand_types = split(text[at + types.end() + 1 : end - 1])
        arrow = text[end:newline].strip()
        if not arrow.startswith("->"):
            raise self.fail(end, "an operation type without ->")
        result = arrow[2:].strip()
        result_types = split(result[1:-1]) if result.startswith("(") else [result]
        self.at = newline + 1
        return Operation(
            match[2], line, results, operands, properties, attributes, regions, operand_types, result_types
        )
