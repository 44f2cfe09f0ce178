"""The texts of Protobuf's schemas: the canonical one, as Confluent's registry writes it, and the normalized one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from odradek.schemas.protobuf.model import (
    MAX_NUMBER,
    SCALARS,
    ProtoEnum,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    ProtoMethod,
    ProtoOneof,
    ProtoOption,
    ProtoService,
    ProtoWord,
)
from odradek.schemas.protobuf.names import TypeNames, joined

_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\",
    "'": "\\'", '"': '\\"',
}  # fmt: skip


def canonical_text(file: ProtoFile, names: TypeNames | None = None) -> str:
    """Returns the text that a registry stores: no comments, one order of the kinds of statements.

    ``names``: for the normalized text, in which names are full and fields are in the order of their numbers."""
    return _Writer(names).file(file)


class _Writer:
    def __init__(self, names: TypeNames | None) -> None:
        self._names = names

    @property
    def _is_normal(self) -> bool:
        return self._names is not None

    def file(self, file: ProtoFile) -> str:
        lines: list[str] = []
        if file.syntax and (not self._is_normal or file.syntax == "proto3"):
            lines.append(f'syntax = "{file.syntax}";')
        if file.package:
            lines.append(f"package {file.package};")
        if file.imports or file.public_imports:
            lines.append("")
            lines += [f'import "{name}";' for name in self._ordered(file.imports)]
            lines += [f'import public "{name}";' for name in self._ordered(file.public_imports)]
        if file.options:
            lines += ["", *self._statements(file.options)]
        messages = [one for one in file.messages if not (self._is_normal and one.is_map_entry)]
        if messages or file.enums:
            lines.append("")
            for message in messages:
                lines += self._message(message, file.package)
            for enum in file.enums:
                lines += self._enum(enum)
        if file.extends:
            lines.append("")
            for extend in file.extends:
                lines += self._extend(extend, file.package)
        if file.services:
            lines.append("")
            for service in file.services:
                lines += self._service(service, file.package)
        return "\n".join(lines) + "\n"

    def _ordered(self, names: list[str]) -> list[str]:
        return sorted(set(names)) if self._is_normal else names

    def _message(self, message: ProtoMessage, scope: str) -> list[str]:
        full = joined(scope, message.name)
        parts: list[str] = []
        reserved = [f"reserved {text};" for text in self._ranges(message.reserved)]
        parts += ["", *reserved] if reserved else []
        parts += ["", *self._statements(message.options)] if message.options else []
        if message.fields:
            parts.append("")
            for one in self._by_number(message.fields):
                parts += self._field(one, full)
        if message.oneofs:
            parts.append("")
            for oneof in self._oneofs(message.oneofs):
                parts += self._oneof(oneof, full)
        extensions = [f"extensions {text};" for text in self._ranges(message.extensions)]
        parts += ["", *extensions] if extensions else []
        if message.extends:
            parts.append("")
            for extend in message.extends:
                parts += self._extend(extend, full)
        nested = [one for one in message.messages if not (self._is_normal and one.is_map_entry)]
        if nested or message.enums:
            parts.append("")
            for one_message in nested:
                parts += self._message(one_message, full)
            for enum in message.enums:
                parts += self._enum(enum)
        return _block(f"message {message.name}", parts)

    def _oneofs(self, oneofs: list[ProtoOneof]) -> list[ProtoOneof]:
        if not self._is_normal:
            return oneofs
        filled = [ProtoOneof(one.name, self._by_number(one.fields), one.options) for one in oneofs if one.fields]
        return sorted(filled, key=lambda one: one.fields[0].number)

    def _by_number(self, fields: list[ProtoField]) -> list[ProtoField]:
        return sorted(fields, key=lambda one: one.number) if self._is_normal else fields

    def _oneof(self, oneof: ProtoOneof, scope: str) -> list[str]:
        parts = ["", *self._statements(oneof.options)] if oneof.options else []
        if oneof.fields:
            parts.append("")
            for one in oneof.fields:
                parts += self._field(one, scope)
        return _block(f"oneof {oneof.name}", parts)

    def _extend(self, extend: ProtoMessage, scope: str) -> list[str]:
        parts = [""] if extend.fields else []
        for one in self._by_number(extend.fields):
            parts += self._field(one, scope)
        return _block(f"extend {self._type(extend.name, scope)}", parts)

    def _field(self, one: ProtoField, scope: str) -> list[str]:
        kind, label = one.type, one.label
        if self._is_normal:
            kind = self._type(kind, scope)
            if kind.startswith("map<"):
                label = ""
        head = f"{label} {kind}" if label else kind
        return self._with_options(f"{head} {one.name} = {one.number}", one.options)

    def _type(self, kind: str, scope: str) -> str:
        """Returns the full name of a type, with a leading dot, in a normalized text."""
        if self._names is None or kind in SCALARS:
            return kind
        if kind.startswith("map<"):
            key, _, value = kind[4:-1].partition(",")
            return f"map<{key.strip()}, {self._type(value.strip(), scope)}>"
        found = self._names.find(kind, scope)
        if found is None:
            return kind
        if isinstance(found.type, ProtoMessage) and found.type.is_map_entry:
            entry = {each.number: each.type for each in found.type.fields}
            return f"map<{entry[1]}, {self._type(entry[2], found.name)}>"
        return f".{found.name}"

    def _enum(self, enum: ProtoEnum) -> list[str]:
        parts = [f"reserved {text};" for text in self._ranges(enum.reserved)] + self._statements(enum.options)
        values = sorted(enum.values, key=lambda one: (one[1], one[0])) if self._is_normal else enum.values
        for name, number, options in values:
            parts += self._with_options(f"{name} = {number}", options)
        return _block(f"enum {enum.name}", ["", *parts])

    def _ranges(self, statements: list[list[str | int | tuple[int, int]]]) -> list[str]:
        if not self._is_normal:
            return [", ".join(_range(one, is_normal=False) for one in each) for each in statements]
        single = [one for each in statements for one in each]
        return [_range(one, is_normal=True) for one in sorted(single, key=_range_order)]

    def _service(self, service: ProtoService, scope: str) -> list[str]:
        parts = ["", *self._statements(service.options)] if service.options else []
        if service.methods:
            parts.append("")
            for one in service.methods:
                parts += self._method(one, scope)
        return _block(f"service {service.name}", parts)

    def _method(self, one: ProtoMethod, scope: str) -> list[str]:
        request, response = (
            f"{'stream ' if is_stream else ''}{self._type(kind, scope)}"
            for kind, is_stream in zip((one.request, one.response), one.streams, strict=True)
        )
        head = f"rpc {one.name} ({request}) returns ({response})"
        if not one.options:
            return [head + ";"]
        return [head + " {", *_indented(self._statements(one.options)), "};"]

    # --- options ----------------------------------------------------------------------------------------------

    def _shown(self, options: list[ProtoOption]) -> list[ProtoOption]:
        return sorted(options, key=lambda one: one.name) if self._is_normal else options

    def _statements(self, options: list[ProtoOption]) -> list[str]:
        lines: list[str] = []
        for one in self._shown(options):
            lines += f"option {self._option(one)};".split("\n")
        return lines

    def _with_options(self, head: str, options: list[ProtoOption]) -> list[str]:
        if not options:
            return [head + ";"]
        texts = [self._option(one) for one in self._shown(options)]
        if len(texts) == 1:
            return f"{head} [{texts[0]}];".split("\n")
        lines = [line for text in _with_commas(texts) for line in text.split("\n")]
        return [f"{head} [", *_indented(lines), "];"]

    def _option(self, one: ProtoOption) -> str:
        return f"{one.name} = {self._value(one.value)}"

    def _value(self, value: Any) -> str:
        if isinstance(value, ProtoWord):
            return value.text
        if isinstance(value, str):
            return '"' + "".join(_ESCAPES.get(letter, letter) for letter in value) + '"'
        if isinstance(value, dict):
            items = sorted(value.items()) if self._is_normal else list(value.items())
            texts = _with_commas([f"{name}: {self._value(item)}" for name, item in items])
            return "\n".join(["{", *_indented([line for text in texts for line in text.split("\n")]), "}"])
        if self._is_normal and len(value) == 1:
            return self._value(value[0])
        texts = _with_commas([self._value(item) for item in value])
        return "\n".join(["[", *_indented([line for text in texts for line in text.split("\n")]), "]"])


def _with_commas(texts: list[str]) -> list[str]:
    return [text + ("," if number < len(texts) - 1 else "") for number, text in enumerate(texts)]


def _indented(lines: Iterable[str]) -> list[str]:
    return ["  " + line for line in lines]


def _block(head: str, parts: list[str]) -> list[str]:
    """A statement with braces. Its first part follows an end of line of its own; an empty one has none."""
    if not parts:
        return [head + " {}"]
    first, *rest = parts
    return [head + " {", *([] if not first else ["  " + first]), *("  " + one if one else "" for one in rest), "}"]


def _range(one: str | int | tuple[int, int], *, is_normal: bool) -> str:
    if isinstance(one, str):
        return f'"{one}"'
    if isinstance(one, int):
        return str(one)
    start, end = one
    if is_normal and start == end:
        return str(start)
    return f"{start} to {'max' if end >= MAX_NUMBER else end}"


def _range_order(one: str | int | tuple[int, int]) -> tuple[int, str]:
    start = (1 << 31) - 1 if isinstance(one, str) else one if isinstance(one, int) else one[0]
    return start, str(one)
