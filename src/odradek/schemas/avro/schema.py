"""Avro as a language of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from odradek.schemas.avro import compatibility, parser, text
from odradek.schemas.avro.types import AvroType
from odradek.schemas.parsed import ParsedSchema


def parse_avro(given: str, references: Mapping[str, str], *, is_new: bool) -> AvroSchema:
    """See ``parsed.Parse``."""
    root = parser.parse(given, references.values(), checks_defaults=is_new)
    known = [parser.parse(one, list(references.values())[:at]).name for at, one in enumerate(references.values())]
    return AvroSchema(root, tuple(name for name in known if name))


class AvroSchema:
    """See ``parsed.ParsedSchema``. ``root``: the type. ``known``: the names that referenced schemas define."""

    language = "AVRO"

    def __init__(self, root: AvroType, known: tuple[str, ...] = ()) -> None:
        self.root = root
        self._known = known

    @cached_property
    def canonical(self) -> str:
        return text.canonical_text(self.root, self._known)

    @cached_property
    def normalized(self) -> str:
        return text.canonical_text(text.normalized(self.root), self._known)

    @cached_property
    def structure(self) -> str:
        return text.structure(self.root)

    def formatted(self, form: str) -> str:
        """``resolved``: with the referenced types in place of their names."""
        return text.canonical_text(self.root) if form == "resolved" else self.canonical

    def unreadable(self, written: ParsedSchema, *, lenient: bool = False) -> list[str]:
        """Returns the differences that Java's ``SchemaCompatibility`` finds."""
        assert isinstance(written, AvroSchema)
        try:
            return [one.text for one in compatibility.incompatibilities(self.root, written.root)]
        except ValueError as error:
            return [f"Unexpected exception during compatibility check: {error}".replace("%", "%%")]
