"""What has changed from one Protobuf schema to another, by the rules of Confluent's registry.

Source: the package ``io.confluent.kafka.schemaregistry.protobuf.diff`` of confluentinc/schema-registry 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from odradek.schemas.protobuf.model import SCALARS, ProtoEnum, ProtoField, ProtoFile, ProtoMessage
from odradek.schemas.protobuf.names import NamedType, TypeNames, joined

_NUMBERS = {"int32", "int64", "uint32", "uint64", "bool"}
_KINDS = {
    "sint32": "SIGNED_NUMBER", "sint64": "SIGNED_NUMBER", "string": "STRING_OR_BYTES", "bytes": "STRING_OR_BYTES",
    "fixed32": "FIXED32", "sfixed32": "FIXED32", "fixed64": "FIXED64", "sfixed64": "FIXED64", "float": "FLOAT",
    "double": "DOUBLE",
}  # fmt: skip
_TEXTS = {
    "PACKAGE_CHANGED": "The package at '{0}' in the %s schema does not match the package in the %s schema",
    "MESSAGE_REMOVED": "The %s schema is missing a MESSAGE type at path '{0}' in the %s schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{0}' in the %s schema does not match the %s schema",
    "FIELD_SCALAR_KIND_CHANGED": (
        "The kind of a SCALAR field at path '{0}' in the %s schema does not match its kind in the %s schema"
    ),
    "FIELD_NAMED_TYPE_CHANGED": (
        "The type of a MESSAGE field at path '{0}' in the %s schema does not match its type in the %s schema"
    ),
    "FIELD_NUMERIC_LABEL_CHANGED": (
        "The label for a NUMERIC field at path '{0}' in the %s schema does not match its label in the %s schema"
    ),
    "REQUIRED_FIELD_ADDED": "A required field  at path '{0}' in the %s schema is missing in the %s schema",
    "REQUIRED_FIELD_REMOVED": "The %s schema is missing a required field at path: '{0}' in the %s schema",
    "ONEOF_FIELD_REMOVED": "The %s schema is missing a oneof field at path '{0}' in the %s schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": (
        "Multiple fields in the oneof at path '{0}' in the %s schema are outside a oneof in the %s schema"
    ),
    "FIELD_MOVED_TO_EXISTING_ONEOF": (
        "A field in the oneof at path '{0}' in the %s schema is outside an existing oneof in the %s schema"
    ),
}


class ProtoDifference(NamedTuple):
    """An incompatible change. ``kind``: Confluent's name of it; ``path``: as ``#/Message/1``."""

    kind: str
    path: str

    @property
    def text(self) -> str:
        """The message, with ``%s`` in place of the words for the new and the old schema."""
        return f'{{errorType:"{self.kind}", description:"{_TEXTS[self.kind].format(self.path)}"}}'


def differences(original: ProtoFile, update: ProtoFile, names: tuple[TypeNames, TypeNames]) -> list[ProtoDifference]:
    """Returns the incompatible changes. ``names``: of the original schema and of the new one."""
    return _ProtoComparison(names).files(original, update)


class _ProtoComparison:
    def __init__(self, names: tuple[TypeNames, TypeNames]) -> None:
        self._old, self._new = names
        self._open: set[int] = set()

    def files(self, original: ProtoFile, update: ProtoFile) -> list[ProtoDifference]:
        found: list[ProtoDifference] = []
        if original.package != update.package:
            found.append(_difference("PACKAGE_CHANGED", ()))
        scopes = (original.package, update.package)
        return found + self._types(original.messages, update.messages, scopes, ())

    def _types(
        self, old: Iterable[ProtoMessage], new: Iterable[ProtoMessage], scopes: tuple[str, str], path: tuple[str, ...]
    ) -> list[ProtoDifference]:
        updates = {one.name: one for one in new}
        found: list[ProtoDifference] = []
        for message in old:
            place = (*path, message.name)
            update = updates.get(message.name)
            if update is not None:
                inner = (joined(scopes[0], message.name), joined(scopes[1], message.name))
                found += self._messages(message, update, inner, place)
            elif not message.is_map_entry:
                found.append(_difference("MESSAGE_REMOVED", place))
        return found

    def _messages(
        self, old: ProtoMessage, new: ProtoMessage, scopes: tuple[str, str], path: tuple[str, ...]
    ) -> list[ProtoDifference]:
        if id(old) in self._open:
            return self._types(old.messages, new.messages, scopes, path)
        self._open.add(id(old))
        found = self._moves(old, new, path)
        before, after = _by_number(old), _by_number(new)
        gone = {
            one.name
            for one in old.oneofs
            if all(one.name != other.name for other in new.oneofs)
            and not any(each.number in after for each in one.fields)
        }
        for number in sorted(before.keys() | after.keys()):
            place = (*path, str(number))
            if number not in after:
                field, oneof = before[number]
                if oneof and oneof not in gone:
                    found.append(_difference("ONEOF_FIELD_REMOVED", (*path, oneof, str(number))))
                elif field.label == "required":
                    found.append(_difference("REQUIRED_FIELD_REMOVED", place))
            elif number not in before:
                if after[number][0].label == "required":
                    found.append(_difference("REQUIRED_FIELD_ADDED", place))
            else:
                oneof = after[number][1]
                at = (*path, oneof, str(number)) if oneof else place
                found += self._fields(before[number][0], after[number][0], scopes, at)
        self._open.discard(id(old))
        return found + self._types(old.messages, new.messages, scopes, path)

    def _moves(self, old: ProtoMessage, new: ProtoMessage, path: tuple[str, ...]) -> list[ProtoDifference]:
        """Fields that were set together, and are in one oneof now."""
        before = _by_number(old)
        found: list[ProtoDifference] = []
        for oneof in new.oneofs:
            known = [one.number for one in oneof.fields if one.number in before]
            alone = [number for number in known if not before[number][1]]
            origins = {before[number][1] for number in known if before[number][1]}
            if len(alone) + len(origins) > 1:
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(alone) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                found.append(_difference(kind, (*path, oneof.name)))
        return found

    def _fields(
        self, old: ProtoField, new: ProtoField, scopes: tuple[str, str], path: tuple[str, ...]
    ) -> list[ProtoDifference]:
        return self._kinds((old.type, new.type), (old.label, new.label), scopes, path)

    def _kinds(
        self, kinds: tuple[str, str], labels: tuple[str, str], scopes: tuple[str, str], path: tuple[str, ...]
    ) -> list[ProtoDifference]:
        types = (self._old.find(kinds[0], scopes[0]), self._new.find(kinds[1], scopes[1]))
        maps = (_map_of(kinds[0], types[0]), _map_of(kinds[1], types[1]))
        what = tuple(
            "map" if maps[at] else "scalar" if kinds[at] in SCALARS or _is_enum(types[at]) else "message"
            for at in (0, 1)
        )
        if what[0] != what[1]:
            return [_difference("FIELD_KIND_CHANGED", path)]
        if maps[0] is not None and maps[1] is not None:
            return [
                one
                for old, new in zip(maps[0], maps[1], strict=True)
                for one in self._kinds((old, new), ("", ""), scopes, path)
            ]
        if what[0] == "message":
            return self._named(kinds, types, path)
        before, after = (
            "GENERAL_NUMBER" if kinds[at] in _NUMBERS or _is_enum(types[at]) else _KINDS[kinds[at]] for at in (0, 1)
        )
        if before != after:
            return [_difference("FIELD_SCALAR_KIND_CHANGED", path)]
        if labels[0] and labels[1] and labels[0] != labels[1] and before != "STRING_OR_BYTES":
            return [_difference("FIELD_NUMERIC_LABEL_CHANGED", path)]
        return []

    def _named(
        self, kinds: tuple[str, str], types: tuple[NamedType | None, NamedType | None], path: tuple[str, ...]
    ) -> list[ProtoDifference]:
        old, new = types
        changed = _difference("FIELD_NAMED_TYPE_CHANGED", path)
        if old is None or new is None:
            return [] if kinds[0] == kinds[1] else [changed]
        if _local(old) != _local(new):
            return [changed]
        if not isinstance(old.type, ProtoMessage) or not isinstance(new.type, ProtoMessage):
            return []
        place = tuple(_local(old).split("."))
        found = self._messages(old.type, new.type, (old.name, new.name), place)
        return [*found, changed] if found else []


def _by_number(message: ProtoMessage) -> dict[int, tuple[ProtoField, str]]:
    """The fields by their numbers, each with the name of its oneof."""
    found = {one.number: (one, "") for one in message.fields}
    return found | {one.number: (one, oneof.name) for oneof in message.oneofs for one in oneof.fields}


def _map_of(kind: str, found: NamedType | None) -> tuple[str, str] | None:
    """The types of key and value, of a map field or of the message that a compiler makes of one."""
    if kind.startswith("map<"):
        return ProtoField("", 0, kind).map_types
    if found is None or not isinstance(found.type, ProtoMessage) or not found.type.is_map_entry:
        return None
    key, value = (next(one for one in found.type.fields if one.number == number) for number in (1, 2))
    return key.type, value.type


def _is_enum(found: NamedType | None) -> bool:
    return found is not None and isinstance(found.type, ProtoEnum)


def _local(one: NamedType) -> str:
    return one.name.removeprefix(f"{one.package}.") if one.package else one.name


def _difference(kind: str, path: tuple[str, ...]) -> ProtoDifference:
    return ProtoDifference(kind, "#/" + "/".join(path))
