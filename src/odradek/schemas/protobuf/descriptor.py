"""Descriptors: the binary form of a ``.proto`` file, ``google.protobuf.FileDescriptorProto``.

Confluent's Python serializer registers it in base64. Custom options of a descriptor are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from odradek.schemas.errors import InvalidSchema, InvalidValue
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
from odradek.schemas.protobuf.names import TypeNames, joined
from odradek.schemas.protobuf.wire import BYTES, VARINT, field, fields, signed

TYPES = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string",
    12: "bytes", 13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_LABELS = {1: "optional", 2: "required", 3: "repeated"}
_FILE_OPTIONS = {
    1: "java_package", 8: "java_outer_classname", 10: "java_multiple_files", 20: "java_generate_equals_and_hash",
    27: "java_string_check_utf8", 9: "optimize_for", 11: "go_package", 16: "cc_generic_services",
    17: "java_generic_services", 18: "py_generic_services", 23: "deprecated", 31: "cc_enable_arenas",
    36: "objc_class_prefix", 37: "csharp_namespace", 39: "swift_prefix", 40: "php_class_prefix", 41: "php_namespace",
    44: "php_metadata_namespace", 45: "ruby_package",
}  # fmt: skip
_FIELD_OPTIONS = {1: "ctype", 2: "packed", 6: "jstype", 5: "lazy", 3: "deprecated", 10: "weak"}
_MESSAGE_OPTIONS = {1: "message_set_wire_format", 2: "no_standard_descriptor_accessor", 3: "deprecated", 7: "map_entry"}
_ENUM_OPTIONS = {2: "allow_alias", 3: "deprecated"}
_VALUE_OPTIONS = {1: "deprecated"}
_METHOD_OPTIONS = {33: "deprecated"}
_WORDS = {
    "optimize_for": {1: "SPEED", 2: "CODE_SIZE", 3: "LITE_RUNTIME"},
    "ctype": {0: "STRING", 1: "CORD", 2: "STRING_PIECE"}, "jstype": {0: "JS_NORMAL", 1: "JS_STRING", 2: "JS_NUMBER"},
}  # fmt: skip


class _Fields:
    """The fields of a message by number, in their order."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for number, _, content in fields(data):
            self._fields.setdefault(number, []).append(content)

    def number(self, key: int, default: int = 0) -> int:
        found = self._fields.get(key, [default])[-1]
        if not isinstance(found, int):
            raise InvalidValue(f"field {key} of a descriptor is no number")
        return signed(found)

    def has(self, key: int) -> bool:
        return key in self._fields

    def text(self, key: int) -> str:
        found = self._fields.get(key, [b""])[-1]
        return _text(found)

    def texts(self, key: int) -> list[str]:
        return [_text(one) for one in self._fields.get(key, ())]

    def numbers(self, key: int) -> list[int]:
        return [one for one in self._fields.get(key, ()) if isinstance(one, int)]

    def messages(self, key: int) -> Iterator[_Fields]:
        for one in self._fields.get(key, ()):
            if not isinstance(one, bytes):
                raise InvalidValue(f"field {key} of a descriptor is no message")
            yield _Fields(one)

    def options(self, key: int, names: Mapping[int, str]) -> list[ProtoOption]:
        """The known options, in the order of ``names``."""
        found: list[ProtoOption] = []
        for given in self.messages(key):
            for number, name in names.items():
                if given.has(number):
                    found.append(ProtoOption(name, given._option(number, name)))
        return found

    def _option(self, number: int, name: str) -> str | ProtoWord:
        value = self._fields[number][-1]
        if isinstance(value, bytes):
            return _text(value)
        return ProtoWord(_WORDS[name].get(value, str(value)) if name in _WORDS else "true" if value else "false")


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise InvalidValue("a text of a descriptor is a number")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidValue("a text of a descriptor is no UTF-8") from None


def decode(data: bytes) -> ProtoFile:
    """Returns the file of a descriptor. Raises InvalidSchema."""
    try:
        found = _file(_Fields(data))
    except (InvalidValue, IndexError, KeyError) as error:
        raise InvalidSchema(f"it is no descriptor: {error}") from None
    if not (found.messages or found.enums or found.services or found.extends):
        raise InvalidSchema("it is no descriptor: it has no message")
    return found


def _file(given: _Fields) -> ProtoFile:
    syntax = given.text(12)
    names, public, weak = given.texts(3), set(given.numbers(10)), set(given.numbers(11))
    found = ProtoFile(syntax if syntax in ("proto2", "proto3") else "", given.text(2))
    found.imports = [name for at, name in enumerate(names) if at not in public and at not in weak]
    found.public_imports = [name for at, name in enumerate(names) if at in public]
    found.options = given.options(8, _FILE_OPTIONS)
    is_3 = syntax == "proto3"
    found.messages = [_message(one, is_3=is_3) for one in given.messages(4)]
    found.enums = [_enum(one) for one in given.messages(5)]
    found.services = [_service(one) for one in given.messages(6)]
    found.extends = _extends(given, 7, is_3=is_3)
    return found


def _extends(given: _Fields, key: int, *, is_3: bool) -> list[ProtoMessage]:
    found: dict[str, ProtoMessage] = {}
    for one in given.messages(key):
        name = one.text(2)
        found.setdefault(name, ProtoMessage(name)).fields.append(_field(one, is_3=is_3, in_oneof=False))
    return list(found.values())


def _message(given: _Fields, *, is_3: bool) -> ProtoMessage:
    found = ProtoMessage(given.text(1))
    oneofs = [ProtoOneof(one.text(1)) for one in given.messages(8)]
    for one in given.messages(2):
        in_oneof = one.has(9) and not one.number(17)
        where = oneofs[one.number(9)].fields if in_oneof else found.fields
        where.append(_field(one, is_3=is_3, in_oneof=in_oneof))
    found.oneofs = [one for one in oneofs if one.fields]
    found.messages = [_message(one, is_3=is_3) for one in given.messages(3)]
    found.enums = [_enum(one) for one in given.messages(4)]
    found.reserved = [[(one.number(1), one.number(2) - 1)] for one in given.messages(9)]
    found.reserved += [[name] for name in given.texts(10)]
    found.extensions = [[(one.number(1), one.number(2) - 1)] for one in given.messages(5)]
    found.options = given.options(7, _MESSAGE_OPTIONS)
    found.extends = _extends(given, 6, is_3=is_3)
    return found


def _field(given: _Fields, *, is_3: bool, in_oneof: bool) -> ProtoField:
    kind = given.number(5)
    if kind == _GROUP:
        raise InvalidSchema("groups are not supported: write a message and a field of its type")
    label = _LABELS.get(given.number(4, 1), "optional")
    if in_oneof or (is_3 and label == "optional" and not given.number(17)):
        label = ""
    options = given.options(8, _FIELD_OPTIONS)
    if given.has(7) and not is_3:
        text = given.text(7)
        options.append(ProtoOption("default", text if kind in (9, 12) else ProtoWord(text)))
    if given.has(10):
        options.append(ProtoOption("json_name", given.text(10)))
    return ProtoField(given.text(1), given.number(3), TYPES.get(kind) or given.text(6), label, options)


def _enum(given: _Fields) -> ProtoEnum:
    values = [(one.text(1), one.number(2), one.options(3, _VALUE_OPTIONS)) for one in given.messages(2)]
    reserved: list[list[str | int | tuple[int, int]]] = [[(one.number(1), one.number(2))] for one in given.messages(4)]
    reserved += [[name] for name in given.texts(5)]
    return ProtoEnum(given.text(1), values, reserved, given.options(3, _ENUM_OPTIONS))


def _service(given: _Fields) -> ProtoService:
    methods = [
        ProtoMethod(
            one.text(1), one.text(2), one.text(3), (bool(one.number(5)), bool(one.number(6))),
            one.options(4, _METHOD_OPTIONS),
        )
        for one in given.messages(2)
    ]  # fmt: skip
    return ProtoService(given.text(1), methods)


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode(file: ProtoFile, names: TypeNames, name: str = "default") -> bytes:
    """Returns the descriptor of a file. Raises InvalidSchema for a type that neither it nor an import has."""
    return _DescriptorWriter(file, names).file(name)


class _DescriptorWriter:
    def __init__(self, file: ProtoFile, names: TypeNames) -> None:
        self._file = file
        self._names = names
        self._is_3 = file.syntax == "proto3"

    def file(self, name: str) -> bytes:
        file = self._file
        data = _string(1, name) + (_string(2, file.package) if file.package else b"")
        imports = [*file.imports, *file.public_imports]
        data += b"".join(_string(3, one) for one in imports)
        data += b"".join(field(10, VARINT, at) for at in range(len(file.imports), len(imports)))
        data += b"".join(_nested(4, self._message(one, file.package)) for one in file.messages)
        data += b"".join(_nested(5, _enum_bytes(one)) for one in file.enums)
        data += b"".join(_nested(6, self._service(one)) for one in file.services)
        data += b"".join(
            _nested(7, self._field(one, file.package, extendee=each.name))
            for each in file.extends
            for one in each.fields
        )
        data += _options(8, file.options, _FILE_OPTIONS)
        return data + (_string(12, file.syntax) if self._is_3 else b"")

    def _message(self, message: ProtoMessage, scope: str) -> bytes:
        full = joined(scope, message.name)
        data = _string(1, message.name)
        nested = [self._message(one, full) for one in message.messages]
        optional = [one for one in message.fields if self._is_3 and one.label == "optional"]
        oneofs = [one.name for one in message.oneofs]
        places = {id(each): at for at, one in enumerate(message.oneofs) for each in one.fields}
        places |= {id(one): len(oneofs) + at for at, one in enumerate(optional)}
        for one in message.all_fields():
            if (types := one.map_types) is not None:
                nested.append(self._message(_entry(one.name, types), full))
            data += _nested(2, self._field(one, full, place=places.get(id(one))))
        data += b"".join(_nested(3, one) for one in nested)
        data += b"".join(_nested(4, _enum_bytes(one)) for one in message.enums)
        data += b"".join(_nested(5, _range(one, 1)) for one in _numbers(message.extensions))
        data += _options(7, message.options, _MESSAGE_OPTIONS)
        data += b"".join(_nested(8, _string(1, one)) for one in [*oneofs, *(f"_{one.name}" for one in optional)])
        data += b"".join(_nested(9, _range(one, 1)) for one in _numbers(message.reserved))
        return data + b"".join(_string(10, one) for one in _texts(message.reserved))

    def _field(self, one: ProtoField, scope: str, *, place: int | None = None, extendee: str = "") -> bytes:
        label = {"required": 2, "repeated": 3}.get(one.label, 1)
        data = _string(1, one.name) + (_string(2, self._full(extendee, scope)) if extendee else b"")
        data += field(3, VARINT, one.number)
        if one.map_types is not None:
            data += field(4, VARINT, 3) + field(5, VARINT, _MESSAGE)
            data += _string(6, f".{joined(scope, _entry(one.name, ('', '')).name)}")
        else:
            numbers = {name: number for number, name in TYPES.items()}
            data += field(4, VARINT, label) + field(5, VARINT, numbers.get(one.type) or self._kind(one.type, scope))
            if one.type not in numbers:
                data += _string(6, self._full(one.type, scope))
        for option in one.options:
            if option.name in ("default", "json_name"):
                text = option.value.text if isinstance(option.value, ProtoWord) else option.value
                data += _string(7 if option.name == "default" else 10, text)
        data += _options(8, one.options, _FIELD_OPTIONS)
        if place is not None:
            data += field(9, VARINT, place)
        return data + (field(17, VARINT, 1) if self._is_3 and one.label == "optional" else b"")

    def _full(self, name: str, scope: str) -> str:
        found = self._names.find(name, scope)
        if found is None:
            raise InvalidSchema(f"{scope or 'the file'} uses the unknown type {name}: add its file to the references")
        return f".{found.name}"

    def _kind(self, name: str, scope: str) -> int:
        found = self._names.find(name, scope)
        return _ENUM if found is not None and isinstance(found.type, ProtoEnum) else _MESSAGE

    def _service(self, service: ProtoService) -> bytes:
        data = _string(1, service.name)
        for one in service.methods:
            scope = self._file.package
            method = _string(1, one.name) + _string(2, self._full(one.request, scope))
            method += _string(3, self._full(one.response, scope)) + _options(4, one.options, _METHOD_OPTIONS)
            method += b"".join(field(5 + at, VARINT, 1) for at in (0, 1) if one.streams[at])
            data += _nested(2, method)
        return data


def _entry(name: str, types: tuple[str, str]) -> ProtoMessage:
    """The message that a compiler makes of a map field."""
    camel = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    parts = [ProtoField("key", 1, types[0], "optional"), ProtoField("value", 2, types[1], "optional")]
    for one in parts:
        one.label = ""
    return ProtoMessage(f"{camel}Entry", parts, options=[ProtoOption("map_entry", ProtoWord("true"))])


def _string(number: int, text: str) -> bytes:
    return field(number, BYTES, text.encode())


def _nested(number: int, content: bytes) -> bytes:
    return field(number, BYTES, content)


def _numbers(statements: list[list[str | int | tuple[int, int]]]) -> list[tuple[int, int]]:
    return [
        one if isinstance(one, tuple) else (one, one) for each in statements for one in each if not isinstance(one, str)
    ]


def _texts(statements: list[list[str | int | tuple[int, int]]]) -> list[str]:
    return [one for each in statements for one in each if isinstance(one, str)]


def _range(one: tuple[int, int], behind: int) -> bytes:
    end = min(one[1], MAX_NUMBER) if behind else one[1]
    return field(1, VARINT, one[0]) + field(2, VARINT, end + behind)


def _enum_bytes(enum: ProtoEnum) -> bytes:
    data = _string(1, enum.name)
    for name, number, options in enum.values:
        data += _nested(2, _string(1, name) + field(2, VARINT, number) + _options(3, options, _VALUE_OPTIONS))
    data += _options(3, enum.options, _ENUM_OPTIONS)
    data += b"".join(_nested(4, _range(one, 0)) for one in _numbers(enum.reserved))
    return data + b"".join(_string(5, one) for one in _texts(enum.reserved))


def _options(number: int, options: list[ProtoOption], names: Mapping[int, str]) -> bytes:
    keys = {name: key for key, name in names.items()}
    data = b""
    for one in options:
        if one.name not in keys:
            continue
        if isinstance(one.value, str):
            data += _string(keys[one.name], one.value)
        elif isinstance(one.value, ProtoWord):
            words = {text: value for value, text in _WORDS.get(one.name, {}).items()}
            data += field(keys[one.name], VARINT, words.get(one.value.text, int(one.value.text == "true")))
    return _nested(number, data) if data else b""
