"""JSON Schema as a language of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from odradek.schemas import json_text
from odradek.schemas.json_schema import comparison, loader, verdicts
from odradek.schemas.json_schema.nodes import JsonSchemaNode
from odradek.schemas.parsed import ParsedSchema


def parse_json(given: str, references: Mapping[str, str], *, is_new: bool) -> JsonSchema:
    """See ``parsed.Parse``."""
    content = json_text.parse(given)
    others = {name: json_text.parse(text) for name, text in references.items()}
    return JsonSchema(content, loader.load(content, others))


class JsonSchema:
    """See ``parsed.ParsedSchema``. ``content``: the JSON; ``root``: its node."""

    language = "JSON"

    def __init__(self, content: object, root: JsonSchemaNode) -> None:
        self.content = content
        self.root = root

    @cached_property
    def canonical(self) -> str:
        return json_text.compact(self.content)

    @cached_property
    def normalized(self) -> str:
        return json_text.compact(json_text.ordered(self.content))

    @property
    def structure(self) -> str:
        return self.normalized

    def formatted(self, form: str) -> str:
        """The canonical text: JSON Schema has no other format."""
        return self.canonical

    def unreadable(self, written: ParsedSchema, *, lenient: bool = False) -> list[str]:
        """Returns the changes from ``written`` to this schema because of which this one refuses its values."""
        assert isinstance(written, JsonSchema)
        allowed = verdicts.LENIENT if lenient else verdicts.COMPATIBLE
        found = comparison.differences(written.root, self.root, allowed)
        return [verdicts.text(one.kind, one.path.replace("%", "%%")) for one in found if one.kind not in allowed]
