"""The interface that all languages of schemas have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ParsedSchema(Protocol):
    """A schema that has been parsed, with its references."""

    @property
    def language(self) -> str:
        """``AVRO``, ``JSON`` or ``PROTOBUF``."""

    @property
    def canonical(self) -> str:
        """The text that a registry stores."""

    @property
    def normalized(self) -> str:
        """The text that a registry stores with ``normalize``: equal for schemas that differ in the order of parts."""

    @property
    def structure(self) -> str:
        """Two schemas with equal structures are one schema for a look-up."""

    def formatted(self, form: str) -> str:
        """Returns the text in a format of the language; the canonical text for a format that it lacks."""

    def unreadable(self, written: ParsedSchema, *, lenient: bool = False) -> list[str]:
        """Returns why this schema cannot read what ``written``, of the same language, wrote; empty if it can.

        The texts have ``%s`` in place of the words for this schema and for the other one. ``lenient``: the policy of
        JSON Schema that allows a new optional property."""


class Parse(Protocol):
    """A parser. ``references``: the texts of the referenced schemas by their names, each after those that it uses.

    ``is_new``: also refuses what older registries have accepted, such as defaults of a wrong type. Raises
    InvalidSchema."""

    def __call__(self, text: str, references: Mapping[str, str], /, *, is_new: bool) -> ParsedSchema: ...
