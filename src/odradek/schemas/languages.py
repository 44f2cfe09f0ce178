"""The languages of schemas by their names in a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from odradek.schemas.errors import InvalidSchema
from odradek.schemas.parsed import Parse, ParsedSchema


def _avro() -> Parse:
    from odradek.schemas.avro.schema import parse_avro

    return parse_avro


def _json() -> Parse:
    from odradek.schemas.json_schema.schema import parse_json

    return parse_json


def _protobuf() -> Parse:
    from odradek.schemas.protobuf.schema import parse_protobuf

    return parse_protobuf


_LANGUAGES: dict[str, Callable[[], Parse]] = {"JSON": _json, "PROTOBUF": _protobuf, "AVRO": _avro}
NAMES = tuple(_LANGUAGES)
"""The languages, in the order in which a registry names them."""
_KEPT = 1_000


def parse(language: str, text: str, references: Mapping[str, str], *, is_new: bool = False) -> ParsedSchema:
    """Parses a schema of any language; remembers the last ones. Raises InvalidSchema."""
    if language not in _LANGUAGES:
        raise InvalidSchema(f"Invalid schema type {language}")
    return _parse(language, text, tuple(references.items()), is_new)


@lru_cache(_KEPT)
def _parse(language: str, text: str, references: tuple[tuple[str, str], ...], is_new: bool) -> ParsedSchema:
    return _LANGUAGES[language]()(text, dict(references), is_new=is_new)
