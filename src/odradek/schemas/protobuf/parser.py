"""The parser of ``.proto`` files."""

from __future__ import annotations

import re
from typing import Any

from odradek.schemas.errors import InvalidSchema
from odradek.schemas.protobuf.model import (
    MAX_NUMBER,
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

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<word>[A-Za-z_][\w.]*|\.[A-Za-z_][\w.]*)"""
    r"""|(?P<number>\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\.\d+(?:[eE][+-]?\d+)?)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<sign>[-+{}\[\]()<>=;:,/])""",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_LABELS = ("optional", "required", "repeated")
_RESERVED_NUMBERS = range(19_000, 20_000)


def parse(text: str) -> ProtoFile:
    """Parses a file. Raises InvalidSchema with the line."""
    try:
        return _ProtoParser(text).file()
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None


class _ProtoParser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                line = text.count("\n", 0, place) + 1
                raise InvalidSchema(f"line {line}: unexpected {text[place : place + 20]!r}")
            if found.lastgroup != "space":
                self._tokens.append((str(found.lastgroup), found[0], place))
            place = found.end()
        self._text = text
        self._is_3 = False

    # --- tokens -----------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _error(self, expected: str) -> InvalidSchema:
        at = min(self._at, len(self._tokens) - 1)
        place = self._tokens[at][2] if self._tokens else 0
        shown = self._peek() or "the end"
        return InvalidSchema(f"line {self._text.count(chr(10), 0, place) + 1}: expected {expected}, not {shown}")

    def _take(self, wanted: str) -> bool:
        if self._peek() == wanted:
            self._at += 1
            return True
        return False

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            raise self._error(repr(wanted))

    def _of(self, kind: str, expected: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != kind:
            raise self._error(expected)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _name(self) -> str:
        found = self._of("word", "a name")
        if "." in found:
            self._at -= 1
            raise self._error("a name without dots")
        return found

    def _type(self) -> str:
        return self._of("word", "a type")

    def _whole(self) -> int:
        sign = -1 if self._take("-") else 1
        text = self._of("number", "a number")
        try:
            return sign * (int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0))
        except ValueError:
            self._at -= 1
            raise self._error("a whole number") from None

    def _string(self) -> str:
        found = _unescaped(self._of("text", "a text in quotes"))
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            found += _unescaped(self._of("text", "a text"))
        return found

    # --- statements -------------------------------------------------------------------------------------------

    def file(self) -> ProtoFile:
        found = ProtoFile()
        if self._take("syntax"):
            self._expect("=")
            found.syntax = self._string()
            if found.syntax not in ("proto2", "proto3"):
                raise InvalidSchema(f"syntax {found.syntax!r}: proto2 and proto3 are supported")
            self._expect(";")
        self._is_3 = found.syntax == "proto3"
        while self._at < len(self._tokens):
            self._statement(found)
        return found

    def _statement(self, found: ProtoFile) -> None:
        if self._take(";"):
            return
        if self._take("package"):
            found.package = self._type()
            self._expect(";")
        elif self._take("import"):
            where = found.public_imports if self._take("public") else found.imports
            self._take("weak")
            where.append(self._string())
            self._expect(";")
        elif self._take("option"):
            found.options.append(self._option())
            self._expect(";")
        elif self._take("message"):
            found.messages.append(self._message())
        elif self._take("enum"):
            found.enums.append(self._enum())
        elif self._take("service"):
            found.services.append(self._service())
        elif self._take("extend"):
            found.extends.append(self._extend())
        else:
            raise self._error("message, enum, import, package, option, service or extend")

    def _message(self) -> ProtoMessage:
        found = ProtoMessage(self._name())
        self._expect("{")
        while not self._take("}"):
            self._member(found)
        _check_numbers(found)
        return found

    def _member(self, found: ProtoMessage) -> None:
        # ``message message = 1;`` is a field: a word that begins a statement may be the name of a type.
        after = self._tokens[self._at + 1][1] if self._at + 1 < len(self._tokens) else ""
        if self._take(";"):
            return
        word = self._peek()
        if word == "message" and self._follows("{", 2):
            self._at += 1
            found.messages.append(self._message())
        elif word == "enum" and self._follows("{", 2):
            self._at += 1
            found.enums.append(self._enum())
        elif word == "oneof" and self._follows("{", 2):
            self._at += 1
            found.oneofs.append(self._oneof())
        elif word == "option":
            self._at += 1
            found.options.append(self._option())
            self._expect(";")
        elif word in ("reserved", "extensions") and not self._follows("=", 2):
            self._at += 1
            (found.reserved if word == "reserved" else found.extensions).append(self._ranges())
            self._expect(";")
        elif word == "extend" and self._follows("{", 2):
            self._at += 1
            found.extends.append(self._extend())
        elif word == "group" or after == "group":
            raise InvalidSchema("groups are not supported: write a message and a field of its type")
        else:
            found.fields.append(self._field())

    def _follows(self, sign: str, ahead: int) -> bool:
        at = self._at + ahead
        return at < len(self._tokens) and self._tokens[at][1] == sign

    def _field(self, *, in_oneof: bool = False) -> ProtoField:
        label = ""
        if self._peek() in _LABELS and not self._follows("=", 1):
            label = self._peek()
            self._at += 1
        if self._peek() == "map" and self._follows("<", 1):
            self._at += 2
            key = self._type()
            self._expect(",")
            kind = f"map<{key}, {self._type()}>"
            self._expect(">")
        else:
            kind = self._type()
        if not label and not self._is_3 and not in_oneof and not kind.startswith("map<"):
            raise self._error("a label: proto2 needs optional, required or repeated before a type")
        if label == "required" and self._is_3:
            raise self._error("no label required in proto3")
        name = self._name()
        self._expect("=")
        number = self._whole()
        if not 0 < number <= MAX_NUMBER or number in _RESERVED_NUMBERS:
            raise InvalidSchema(f"field {name}: {number} is no number of a field")
        options = self._options()
        self._expect(";")
        return ProtoField(name, number, kind, label, options)

    def _oneof(self) -> ProtoOneof:
        found = ProtoOneof(self._name())
        self._expect("{")
        while not self._take("}"):
            if self._take("option"):
                found.options.append(self._option())
                self._expect(";")
            elif not self._take(";"):
                found.fields.append(self._field(in_oneof=True))
        return found

    def _enum(self) -> ProtoEnum:
        found = ProtoEnum(self._name())
        self._expect("{")
        while not self._take("}"):
            if self._peek() == "option" and not self._follows("=", 1):
                self._at += 1
                found.options.append(self._option())
            elif self._peek() == "reserved" and not self._follows("=", 1):
                self._at += 1
                found.reserved.append(self._ranges())
            elif not self._follows("=", 1) and self._peek() == ";":
                pass
            else:
                name = self._name()
                self._expect("=")
                found.values.append((name, self._whole(), self._options()))
            self._expect(";")
        if not found.values:
            raise InvalidSchema(f"enum {found.name} has no values")
        if self._is_3 and found.values[0][1] != 0:
            raise InvalidSchema(f"enum {found.name}: the first value of a proto3 enum must be 0")
        return found

    def _extend(self) -> ProtoMessage:
        found = ProtoMessage(self._type())
        self._expect("{")
        while not self._take("}"):
            found.fields.append(self._field())
        return found

    def _service(self) -> ProtoService:
        found = ProtoService(self._name())
        self._expect("{")
        while not self._take("}"):
            if self._take("option"):
                found.options.append(self._option())
                self._expect(";")
            elif not self._take(";"):
                self._expect("rpc")
                found.methods.append(self._method())
        return found

    def _method(self) -> ProtoMethod:
        name = self._name()
        request, streams_in = self._stream()
        self._expect("returns")
        response, streams_out = self._stream()
        found = ProtoMethod(name, request, response, (streams_in, streams_out))
        if self._take("{"):
            while not self._take("}"):
                if not self._take(";"):
                    self._expect("option")
                    found.options.append(self._option())
                    self._expect(";")
        else:
            self._expect(";")
        return found

    def _stream(self) -> tuple[str, bool]:
        self._expect("(")
        is_stream = self._peek() == "stream" and not self._follows(")", 1)
        self._at += is_stream
        found = self._type()
        self._expect(")")
        return found, is_stream

    def _ranges(self) -> list[str | int | tuple[int, int]]:
        found: list[str | int | tuple[int, int]] = []
        while True:
            if self._tokens[self._at][0] == "text":
                found.append(self._string())
            else:
                start = self._whole()
                if self._take("to"):
                    found.append((start, MAX_NUMBER if self._take("max") else self._whole()))
                else:
                    found.append(start)
            if not self._take(","):
                self._options()
                return found

    # --- options ----------------------------------------------------------------------------------------------

    def _options(self) -> list[ProtoOption]:
        found: list[ProtoOption] = []
        if self._take("["):
            while True:
                found.append(self._option())
                if not self._take(","):
                    break
            self._expect("]")
        return found

    def _option(self) -> ProtoOption:
        name = ""
        while self._peek() != "=":
            if self._take("("):
                name += f"({self._type()})"
                self._expect(")")
            else:
                name += self._type()
        self._expect("=")
        return ProtoOption(name, self._value())

    def _value(self) -> Any:
        if self._at >= len(self._tokens):
            raise self._error("a value")
        if self._tokens[self._at][0] == "text":
            return self._string()
        if self._take("{"):
            return self._entries()
        if self._take("["):
            found = []
            while not self._take("]"):
                found.append(self._value())
                self._take(",")
            return found
        sign = "-" if self._take("-") else ""
        kind = self._tokens[self._at][0]
        return ProtoWord(sign + self._of("number" if kind == "number" else "word", "a value"))

    def _entries(self) -> dict[str, object]:
        found: dict[str, object] = {}
        while not self._take("}"):
            if self._take("["):
                name = f"[{self._type()}]"
                self._expect("]")
            else:
                name = self._type()
            self._take(":")
            found[name] = self._value()
            if not self._take(","):
                self._take(";")
        return found


def _unescaped(token: str) -> str:
    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        if code[:1] == b"x":
            return bytes([int(code[1:], 16)])
        if code[:1].isdigit():
            return bytes([int(code, 8) & 0xFF])
        return _ESCAPED.get(code, code)

    return _ESCAPE.sub(plain, token[1:-1].encode()).decode("utf-8", "replace")


def _check_numbers(message: ProtoMessage) -> None:
    numbers: dict[int, str] = {}
    names: set[str] = set()
    for one in message.all_fields():
        if one.number in numbers:
            text = f"message {message.name}: fields {numbers[one.number]} and {one.name} have the number {one.number}"
            raise InvalidSchema(text)
        if one.name in names:
            raise InvalidSchema(f"message {message.name} has two fields {one.name}")
        numbers[one.number] = one.name
        names.add(one.name)
