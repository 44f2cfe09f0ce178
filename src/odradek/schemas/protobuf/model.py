"""A file of Protobuf's language as objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SCALARS = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
    "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
MAX_NUMBER = 536_870_911
"""The largest number of a field; ``max`` in a range."""


class ProtoWord(NamedTuple):
    """A value of an option that is no text: a number, a boolean, the name of an enum's value."""

    text: str


class ProtoOption(NamedTuple):
    """An option. ``value``: a str, a ProtoWord, a dict or a list of these."""

    name: str
    value: Any


@dataclass(slots=True)
class ProtoField:
    """A field. ``type``: a scalar, the name of a message or enum as the file has it, or ``map<KEY, VALUE>``. ``label``:
    ``""``, ``optional``, ``required`` or ``repeated``."""

    name: str
    number: int
    type: str
    label: str = ""
    options: list[ProtoOption] = field(default_factory=list)

    @property
    def map_types(self) -> tuple[str, str] | None:
        """The types of key and value of a map."""
        if not self.type.startswith("map<"):
            return None
        key, _, value = self.type[4:-1].partition(",")
        return key.strip(), value.strip()


@dataclass(slots=True)
class ProtoOneof:
    """Fields of which one is set."""

    name: str
    fields: list[ProtoField] = field(default_factory=list)
    options: list[ProtoOption] = field(default_factory=list)


@dataclass(slots=True)
class ProtoEnum:
    """An enum. ``values``: names with numbers and options. ``reserved``: names, numbers and ranges, as written."""

    name: str
    values: list[tuple[str, int, list[ProtoOption]]] = field(default_factory=list)
    reserved: list[list[str | int | tuple[int, int]]] = field(default_factory=list)
    options: list[ProtoOption] = field(default_factory=list)


@dataclass(slots=True)
class ProtoMessage:
    """A message. ``reserved``, ``extensions``: as in ``ProtoEnum``, one list for each statement."""

    name: str
    fields: list[ProtoField] = field(default_factory=list)
    oneofs: list[ProtoOneof] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)
    reserved: list[list[str | int | tuple[int, int]]] = field(default_factory=list)
    extensions: list[list[str | int | tuple[int, int]]] = field(default_factory=list)
    options: list[ProtoOption] = field(default_factory=list)
    extends: list[ProtoMessage] = field(default_factory=list)

    def all_fields(self) -> Iterator[ProtoField]:
        """The fields, then those of the oneofs."""
        yield from self.fields
        for one in self.oneofs:
            yield from one.fields

    @property
    def is_map_entry(self) -> bool:
        """Whether the message is what a compiler makes of a map field."""
        return any(one.name == "map_entry" and one.value == ProtoWord("true") for one in self.options)


@dataclass(slots=True)
class ProtoMethod:
    """A method of a service. ``streams``: whether request and response are streams."""

    name: str
    request: str
    response: str
    streams: tuple[bool, bool] = (False, False)
    options: list[ProtoOption] = field(default_factory=list)


@dataclass(slots=True)
class ProtoService:
    """A service."""

    name: str
    methods: list[ProtoMethod] = field(default_factory=list)
    options: list[ProtoOption] = field(default_factory=list)


@dataclass(slots=True)
class ProtoFile:
    """A file. ``syntax``: ``proto2``, ``proto3``, or "" if the file does not say it, which means proto2."""

    syntax: str = ""
    package: str = ""
    imports: list[str] = field(default_factory=list)
    public_imports: list[str] = field(default_factory=list)
    options: list[ProtoOption] = field(default_factory=list)
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)
    services: list[ProtoService] = field(default_factory=list)
    extends: list[ProtoMessage] = field(default_factory=list)
