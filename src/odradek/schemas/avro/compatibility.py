"""Whether a reader's schema can read what a writer's schema wrote, as Java's ``SchemaCompatibility`` decides it."""

from __future__ import annotations

from typing import NamedTuple

from odradek.schemas.avro.types import AvroType

_WIDER = {
    "long": ("int",), "float": ("int", "long"), "double": ("int", "long", "float"), "bytes": ("string",),
    "string": ("bytes",),
}  # fmt: skip
"""The types that a reader's type can also read."""


class AvroIncompatibility(NamedTuple):
    """A difference that no reader can bridge. ``kind`` is Java's name of it, ``path`` a JSON pointer into the reader's
    schema."""

    kind: str
    path: str
    detail: str

    @property
    def text(self) -> str:
        """The message of a registry, with ``%s`` in place of the words for the reader and the writer."""
        about = _TEXTS[self.kind].format(path=self.path, detail=self.detail)
        return f"{{errorType:'{self.kind}', description:'{about}', additionalInfo:'{self.detail}'}}"


_TEXTS = {
    "FIXED_SIZE_MISMATCH": (
        "The size of FIXED type field at path '{path}' in the %s schema does not match with the %s schema"
    ),
    "TYPE_MISMATCH": "The type (path '{path}') of a field in the %s schema does not match with the %s schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": "The %s schema is missing enum symbols '{detail}' at path '{path}' in the %s schema",
    "MISSING_UNION_BRANCH": ("The %s schema is missing a type inside a union field at path '{path}' in the %s schema"),
    "READER_FIELD_MISSING_DEFAULT_VALUE": (
        "The field '{detail}' at path '{path}' in the %s schema has no default value and is missing in the %s schema"
    ),
}


def incompatibilities(reader: AvroType, writer: AvroType) -> list[AvroIncompatibility]:
    """Returns the differences because of which the reader cannot read the writer's values. Raises ValueError if a
    reader's field has several fields of the writer by its aliases."""
    return _AvroComparison().compare(reader, writer, ())


class _AvroComparison:
    """Compares pairs of types, each pair once. A pair within its own comparison counts as compatible: it is a record
    that contains itself."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], list[AvroIncompatibility] | None] = {}

    def compare(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[AvroIncompatibility]:
        pair = (id(reader), id(writer))
        if pair in self._results:
            return self._results[pair] or []
        self._results[pair] = None
        found = self._results[pair] = self._compare(reader, writer, path)
        return found

    def _compare(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[AvroIncompatibility]:
        if reader.kind == writer.kind:
            return self._same_kind(reader, writer, path)
        if writer.kind == "union":
            return [
                one
                for number, branch in enumerate(writer.branches)
                for one in self.compare(reader, branch, (*path, str(number)))
            ]
        if reader.kind == "union":
            if any(not self.compare(branch, writer, ()) for branch in reader.branches):
                return []
            return [_lacks_branch(writer, path)]
        if writer.kind in _WIDER.get(reader.kind, ()):
            return []
        detail = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
        return [AvroIncompatibility("TYPE_MISMATCH", _pointer(path), detail)]

    def _same_kind(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[AvroIncompatibility]:
        if reader.kind == "array":
            return self.compare(reader.element, writer.element, (*path, "items"))
        if reader.kind == "map":
            return self.compare(reader.element, writer.element, (*path, "values"))
        if reader.kind == "union":
            return [
                _lacks_branch(branch, (*path, str(number)))
                for number, branch in enumerate(writer.branches)
                if self.compare(reader, branch, ())
            ]
        if not reader.is_named:
            return []
        found: list[AvroIncompatibility] = []
        if reader.short_name != writer.short_name and writer.name not in reader.aliases:
            found.append(AvroIncompatibility("NAME_MISMATCH", _pointer((*path, "name")), f"expected: {writer.name}"))
        if reader.kind == "record":
            return found + self._fields(reader, writer, (*path, "fields"))
        if reader.kind == "fixed":
            if reader.size != writer.size:
                detail = f"expected: {writer.size}, found: {reader.size}"
                found.append(AvroIncompatibility("FIXED_SIZE_MISMATCH", _pointer((*path, "size")), detail))
            return found
        missing = sorted(set(writer.symbols) - set(reader.symbols))
        if missing and reader.enum_default is None:
            shown = f"[{', '.join(missing)}]"
            found.append(AvroIncompatibility("MISSING_ENUM_SYMBOLS", _pointer((*path, "symbols")), shown))
        return found

    def _fields(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> list[AvroIncompatibility]:
        found: list[AvroIncompatibility] = []
        for number, one in enumerate(reader.fields):
            place = (*path, str(number))
            names = [name for name in (one.name, *one.aliases) if writer.by_name(name) is not None]
            if len(names) > 1:
                raise ValueError(f"Reader record field {one.name} matches multiple fields in writer record schema")
            if names:
                match = writer.by_name(names[0])
                assert match is not None
                found += self.compare(one.type, match.type, (*place, "type"))
            elif not one.has_default:
                if one.type.kind == "enum" and one.type.enum_default is not None:
                    found += self.compare(one.type, writer, (*place, "type"))
                else:
                    found.append(AvroIncompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", _pointer(place), one.name))
        return found


def _lacks_branch(writer: AvroType, path: tuple[str, ...]) -> AvroIncompatibility:
    detail = f"reader union lacking writer type: {writer.kind.upper()}"
    return AvroIncompatibility("MISSING_UNION_BRANCH", _pointer(path), detail)


def _pointer(path: tuple[str, ...]) -> str:
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)
