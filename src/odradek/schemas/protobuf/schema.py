"""Protobuf as a language of a registry."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import cached_property

from odradek.schemas.errors import InvalidSchema
from odradek.schemas.parsed import ParsedSchema
from odradek.schemas.protobuf import comparison, descriptor, parser, text
from odradek.schemas.protobuf.model import SCALARS, ProtoFile, ProtoMessage
from odradek.schemas.protobuf.names import TypeNames, joined
from odradek.schemas.protobuf.well_known import well_known


def parse_protobuf(given: str, references: Mapping[str, str], *, is_new: bool) -> ProtobufSchema:
    """See ``parsed.Parse``. ``given``: the text of a file, or its descriptor in base64."""
    others = {name: _read(one) for name, one in references.items()}
    file = _read(given)
    _add_imports(file, others, set())
    found = ProtobufSchema(file, others)
    if is_new:
        found.check_types()
    return found


def _read(given: str) -> ProtoFile:
    try:
        return parser.parse(given)
    except InvalidSchema as error:
        try:
            return descriptor.decode(base64.b64decode(given, validate=True))
        except (binascii.Error, ValueError):
            raise error from None


def _add_imports(file: ProtoFile, others: dict[str, ProtoFile], done: set[str]) -> None:
    """Adds the well-known files. Raises InvalidSchema for an import without a reference."""
    for name in (*file.imports, *file.public_imports):
        if name in done:
            continue
        done.add(name)
        found = others.get(name) or well_known(name)
        if found is None:
            raise InvalidSchema(f"No reference found for import {name}: add it to the references")
        others[name] = found
        _add_imports(found, others, done)


class ProtobufSchema:
    """See ``parsed.ParsedSchema``. ``file``: the file; ``names``: its types and those of its imports."""

    language = "PROTOBUF"

    def __init__(self, file: ProtoFile, imported: Mapping[str, ProtoFile]) -> None:
        self.file = file
        self.names = TypeNames(file, imported)

    @cached_property
    def canonical(self) -> str:
        return text.canonical_text(self.file)

    @cached_property
    def normalized(self) -> str:
        return text.canonical_text(self.file, self.names)

    @property
    def structure(self) -> str:
        return self.normalized

    def formatted(self, form: str) -> str:
        """``serialized``: the descriptor in base64."""
        if form == "serialized":
            return base64.b64encode(descriptor.encode(self.file, self.names)).decode()
        return self.canonical

    def unreadable(self, written: ParsedSchema, *, lenient: bool = False) -> list[str]:
        """Returns the changes from ``written`` to this schema that change what bytes mean."""
        assert isinstance(written, ProtobufSchema)
        found = comparison.differences(written.file, self.file, (written.names, self.names))
        return [one.text for one in found]

    def check_types(self) -> None:
        """Raises InvalidSchema for a field whose type neither the file nor an import has."""
        for message in self.file.messages:
            self._check(message, self.file.package)

    def _check(self, message: ProtoMessage, scope: str) -> None:
        full = joined(scope, message.name)
        for one in message.all_fields():
            kind = one.map_types[1] if one.map_types is not None else one.type
            if kind not in SCALARS and self.names.find(kind, full) is None:
                raise InvalidSchema(f"{full}.{one.name}: the type {kind} is unknown")
        for nested in message.messages:
            self._check(nested, full)
