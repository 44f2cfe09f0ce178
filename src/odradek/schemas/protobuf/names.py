"""The names of messages and enums: which type a field means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from odradek.schemas.protobuf.model import ProtoEnum, ProtoFile, ProtoMessage


class NamedType(NamedTuple):
    """A message or an enum with its full name, without a leading dot, and with the package of its file."""

    name: str
    package: str
    type: ProtoMessage | ProtoEnum
    file: str = ""


class TypeNames:
    """The types of a file and of those that it imports. ``file``: the name of an imported one."""

    def __init__(self, own: ProtoFile, imported: Mapping[str, ProtoFile]) -> None:
        self._types: dict[str, NamedType] = {}
        for name, file in imported.items():
            self._types |= {one.name: one for one in _types(file, name)}
        self._types |= {one.name: one for one in _types(own, "")}

    def find(self, name: str, scope: str) -> NamedType | None:
        """Returns the type that ``name`` means inside ``scope``, the full name of a message or package."""
        if name.startswith("."):
            return self._types.get(name[1:])
        while True:
            found = self._types.get(f"{scope}.{name}" if scope else name)
            if found is not None or not scope:
                return found
            scope = scope.rpartition(".")[0]


def joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _types(file: ProtoFile, name: str) -> Iterator[NamedType]:
    for enum in file.enums:
        yield NamedType(joined(file.package, enum.name), file.package, enum, name)
    for message in file.messages:
        yield from _within(message, file.package, file.package, name)


def _within(message: ProtoMessage, scope: str, package: str, file: str) -> Iterator[NamedType]:
    full = joined(scope, message.name)
    yield NamedType(full, package, message, file)
    for enum in message.enums:
        yield NamedType(joined(full, enum.name), package, enum, file)
    for nested in message.messages:
        yield from _within(nested, full, package, file)
