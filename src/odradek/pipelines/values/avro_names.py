"""The names and symbols in an Avro schema: those that Java's parser refuses, in one plain line.

Registries keep schemas whose names no parser has checked, and their values are readable all the same. So a writer
schema may have any names except those of Avro's own types, with which a reference would mean two types.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from odradek.pipelines.values.avro_shape import parts_of
from odradek.text.printable import printable, shortened

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RULE = "a name has letters, digits and _, and begins with no digit: rename it"


def name_problem(parsed: object, *, any_names: bool = False) -> str | None:
    """Returns what is wrong with a name, or None. ``parsed``: a schema of ``parsed_with_symbols``, with full names.

    ``any_names``: only the names of Avro's own types are refused.
    """
    for part in _all_parts(parsed):
        if (problem := _own_problem(part)) or (problem := None if any_names else _form_problem(part)):
            return problem
    return None


def _all_parts(parsed: object) -> Iterator[dict[str, Any]]:
    left = [parsed]
    while left:
        part = left.pop()
        if isinstance(part, dict) and "name" in part:
            yield part
        left += reversed([inner for _, inner in parts_of("", part)])


def parsed_with_symbols(schema: object, parse: Callable[[object], object]) -> object:
    """Returns ``parse(schema)``, whose enums may have any texts as symbols.

    ``parse`` is ``fastavro.parse_schema``, which refuses symbols with letters that are not ASCII. It gets others, which
    are replaced in its result. All references to a named type are the same object in the result."""
    texts: dict[str, str] = {}
    parsed = parse(_with_plain_symbols(schema, texts))
    given = {plain: text for text, plain in texts.items()}
    for part in _all_parts(parsed) if given else ():
        if part["type"] == "enum":
            part["symbols"] = [given.get(one, one) for one in part["symbols"]]
            if "default" in part:
                part["default"] = given.get(part["default"], part["default"])
    return parsed


def _with_plain_symbols(schema: object, texts: dict[str, str]) -> object:
    """Returns a copy with other symbols. ``texts`` gets each replaced symbol with its new name."""
    if isinstance(schema, list):
        return [_with_plain_symbols(one, texts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = ("type", "items", "values", "fields")
    made: dict[str, Any] = {
        name: _with_plain_symbols(one, texts) if name in inner else one for name, one in schema.items()
    }
    if made.get("type") == "enum" and isinstance(made.get("symbols"), list):
        made["symbols"] = [_plain(one, texts) for one in made["symbols"]]
        if "default" in made:
            made["default"] = _plain(made["default"], texts)
    return made


def _plain(symbol: object, texts: dict[str, str]) -> object:
    if not isinstance(symbol, str) or _PLAIN.fullmatch(symbol):
        return symbol
    return texts.setdefault(symbol, f"odradek_replaces_symbol_{len(texts)}")


def _own_problem(part: dict[str, object]) -> str | None:
    if part["name"] in _PRIMITIVES:
        return f"the {part['type']} has the name of Avro's own type {part['name']}: rename it"
    return None


def _form_problem(part: dict[str, Any]) -> str | None:
    kind = part["type"]
    given = [(f"the {kind}", part["name"])]
    given += [(f"an alias of {part['name']}", alias) for alias in part.get("aliases") or () if isinstance(alias, str)]
    for what, full in given:
        space, _, name = full.rpartition(".")
        if not _is_name(name):
            return f"{what} has the name {_shown(full)}: {_RULE}"
        if space and not all(map(_is_name, space.split("."))):
            return f"{what} has the namespace {_shown(space)}, a part of which is no name: {_RULE}"
    for symbol in part.get("symbols", ()):
        if not _is_name(symbol):
            return f"a symbol of {part['name']} has the name {_shown(symbol)}: {_RULE}"
    for field in part.get("fields", ()):
        if not _is_name(field["name"]):
            return f"a field of {part['name']} has the name {_shown(field['name'])}: {_RULE}"
    return None


def _is_name(text: str) -> bool:
    """Returns whether Java's parser accepts a name: letters and digits of every script, in one UTF-16 unit each."""
    kinds = [unicodedata.category(char) if char <= "\uffff" else "" for char in text.replace("_", "a")]
    return bool(kinds) and kinds[0][:1] == "L" and all(kind[:1] == "L" or kind == "Nd" for kind in kinds)


def _shown(name: str) -> str:
    return repr(shortened(printable(name)))
