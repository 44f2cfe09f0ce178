"""The parser of Avro's schemas, with the checks of Java's ``Schema.Parser``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from odradek.schemas import json_text
from odradek.schemas.avro.types import PRIMITIVES, AvroField, AvroType, are_equal
from odradek.schemas.errors import InvalidSchema

_RESERVED = {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
_FIELD_RESERVED = {"default", "doc", "name", "order", "type", "aliases"}
_ORDERS = ("ascending", "descending", "ignore")
_INT, _LONG = 1 << 31, 1 << 63


def parse(text: str, references: Iterable[str] = (), *, checks_defaults: bool = True) -> AvroType:
    """Parses the text of a schema. ``references``: the texts of schemas whose names it may use, each after those that
    it uses itself. ``checks_defaults``: refuses a default that does not fit its field. Raises InvalidSchema."""
    parser = _AvroParser(checks_defaults)
    for reference in references:
        parser.read_whole(json_text.parse(reference))
    return parser.read_whole(json_text.parse(text))


class _AvroParser:
    def __init__(self, checks_defaults: bool) -> None:
        self._checks_defaults = checks_defaults
        self._names: dict[str, AvroType] = {}
        self._open: set[str] = set()
        self._awaited: dict[str, AvroType] = {}

    def read_whole(self, given: object) -> AvroType:
        """Reads a schema whose names are all defined at its end. Raises InvalidSchema."""
        try:
            found = self.read(given, "")
        except RecursionError:
            raise InvalidSchema("it is nested too deeply") from None
        for name in self._awaited:
            raise InvalidSchema(f'Undefined schema: "{name}"')
        return found

    def read(self, given: object, space: str) -> AvroType:
        """Reads a schema inside a namespace."""
        if isinstance(given, str):
            return self._by_name(given, space)
        if isinstance(given, list):
            return self._union(given, space)
        if not isinstance(given, dict):
            raise InvalidSchema(f"a schema is a text, a list or an object, not {json_text.compact(given)}")
        kind = given.get("type")
        if not isinstance(kind, str):
            raise InvalidSchema(f"No type: {json_text.compact(given)}")
        if kind in ("record", "error", "enum", "fixed"):
            found = self._named(kind, given, space)
        elif kind == "array":
            found = AvroType(kind, items=self._part(given, "items", space))
        elif kind == "map":
            found = AvroType(kind, items=self._part(given, "values", space))
        elif kind in PRIMITIVES:
            found = AvroType(kind)
        else:
            return self._by_name(kind, space)
        found.props = _props_of(kind, given)
        return found

    def _part(self, given: dict[str, object], key: str, space: str) -> AvroType:
        if key not in given:
            raise InvalidSchema(f"No {key} type: {json_text.compact(given)}")
        return self.read(given[key], space)

    def _by_name(self, name: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not space else f"{space}.{name}"
        # A name of the null namespace is found from inside another one, too.
        found = self._names.get(full) or self._names.get(name)
        if found is not None:
            return found
        return self._awaited.setdefault(full, AvroType("", full))  # a later part may define it

    def _union(self, given: list[object], space: str) -> AvroType:
        branches = tuple(self.read(one, space) for one in given)
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == "union":
                raise InvalidSchema(f"Nested union: {json_text.compact(given)}")
            name = branch.name or branch.kind
            if name in seen:
                raise InvalidSchema(f"Duplicate in union: {name}")
            seen.add(name)
        return AvroType("union", branches=branches)

    def _named(self, kind: str, given: dict[str, Any], space: str) -> AvroType:
        name, own_space = _full_name(given, space)
        if name in self._open:
            raise InvalidSchema(f"Can't redefine: {name}")
        found = self._awaited.pop(name, None) or AvroType("", name)
        found.kind, found.is_error = "record" if kind == "error" else kind, kind == "error"
        found.doc = _text_of(given, "doc")
        found.aliases = tuple(
            alias if "." in alias or not own_space else f"{own_space}.{alias}" for alias in _aliases(given)
        )
        if kind == "enum":
            self._add_symbols(found, given)
        elif kind == "fixed":
            size = given.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidSchema(f"Invalid or no size: {json_text.compact(given)}")
            found.size = size
        earlier = self._names.get(name)
        self._names[name] = found
        if found.kind == "record":
            self._open.add(name)
            self._add_fields(found, given, own_space)
            self._open.remove(name)
        if earlier is None:
            return found
        found.props = _props_of(kind, given)
        if not are_equal(earlier, found):
            raise InvalidSchema(f"Can't redefine: {name}")
        self._names[name] = earlier  # an equal definition is another mention of the type
        return earlier

    def _add_symbols(self, found: AvroType, given: dict[str, Any]) -> None:
        symbols = given.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise InvalidSchema(f"Enum has no symbols: {json_text.compact(given)}")
        for symbol in symbols:
            _check_name(symbol)
        if len(set(symbols)) < len(symbols):
            double = next(one for one in symbols if symbols.count(one) > 1)
            raise InvalidSchema(f"Duplicate enum symbol: {double}")
        default = given.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchema(f"The Enum Default: {default} is not in the enum symbol set: {symbols}")
        found.symbols, found.enum_default = tuple(symbols), default

    def _add_fields(self, found: AvroType, given: dict[str, object], space: str) -> None:
        rows = given.get("fields")
        if not isinstance(rows, list):
            raise InvalidSchema(f"Record has no fields: {json_text.compact(given)}")
        fields: list[AvroField] = []
        for row in rows:
            one = self._field(row, space)
            if any(other.name == one.name for other in fields):
                raise InvalidSchema(f"Duplicate field {one.name} in record {found.name}")
            fields.append(one)
        found.fields = tuple(fields)

    def _field(self, row: object, space: str) -> AvroField:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise InvalidSchema(f"No field name: {json_text.compact(row)}")
        name = row["name"]
        _check_name(name)
        if "type" not in row:
            raise InvalidSchema(f"No field type: {name}")
        kind = self.read(row["type"], space)
        default, has_default = row.get("default"), "default" in row
        if has_default and kind.kind in ("float", "double") and isinstance(default, str):
            default = _double(default, name)
        if has_default and self._checks_defaults and not _fits_default(kind, default):
            shown = json_text.compact(default)
            raise InvalidSchema(f"Invalid default for field {name}: {shown} not a {_shown_kind(kind)}")
        order = row.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise InvalidSchema(f"Invalid order of field {name}: {order}")
        props = {key: value for key, value in row.items() if key not in _FIELD_RESERVED}
        return AvroField(
            name, kind, _text_of(row, "doc"), default, has_default, order.lower(), tuple(_aliases(row)), props
        )


def _full_name(given: dict[str, object], space: str) -> tuple[str, str]:
    """Returns the full name of a named type and its namespace."""
    name = given.get("name")
    if not isinstance(name, str):
        raise InvalidSchema(f"No name in schema: {json_text.compact(given)}")
    own = given.get("namespace")
    if not isinstance(own, str):
        own = space
    if "." in name:
        own, _, name = name.rpartition(".")
    _check_name(name)
    for part in own.split(".") if own else ():
        _check_name(part)
    if not own and name in PRIMITIVES:
        raise InvalidSchema(f"Schemas may not be named after primitives: {name}")
    return (f"{own}.{name}" if own else name), own


def _props_of(kind: str, given: dict[str, object]) -> dict[str, object]:
    reserved = _RESERVED | {"default"} if kind == "enum" else _RESERVED
    return {name: value for name, value in given.items() if name not in reserved}


def _check_name(name: str) -> None:
    """Raises InvalidSchema for a name that Avro does not allow. Java's letters are those of all alphabets."""
    if not name:
        raise InvalidSchema("Empty name")
    if not (name[0].isalpha() or name[0] == "_"):
        raise InvalidSchema(f"Illegal initial character: {name}")
    wrong = next((one for one in name if not (one.isalpha() or one.isdecimal() or one == "_")), None)
    if wrong is not None:
        raise InvalidSchema(f"Illegal character in: {name}")


def _text_of(given: dict[str, object], key: str) -> str | None:
    value = given.get(key)
    return value if isinstance(value, str) else None


def _aliases(given: dict[str, object]) -> list[str]:
    aliases = given.get("aliases", [])
    if not isinstance(aliases, list):
        raise InvalidSchema(f"aliases not an array: {json_text.compact(given)}")
    if not all(isinstance(one, str) for one in aliases):
        raise InvalidSchema(f"alias not a string: {json_text.compact(aliases)}")
    return list(dict.fromkeys(aliases))


def _double(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidSchema(f"Invalid default for field {name}: {text!r} is no number") from None


def _shown_kind(kind: AvroType) -> str:
    if kind.kind == "union":
        return "union of " + ", ".join(one.name or one.kind for one in kind.branches)
    return f'"{kind.name or kind.kind}"'


def _fits_default(kind: AvroType, value: object) -> bool:
    """Returns whether a JSON value is a default of this type. A default of a union fits any of its branches."""
    if kind.kind == "union":
        return any(_fits_default(branch, value) for branch in kind.branches)
    if kind.kind in ("string", "bytes", "enum", "fixed"):
        return isinstance(value, str)
    if kind.kind in ("int", "long"):
        limit = _INT if kind.kind == "int" else _LONG
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind.kind in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind.kind == "boolean":
        return isinstance(value, bool)
    if kind.kind == "null":
        return value is None
    if kind.kind == "array":
        return isinstance(value, list) and all(_fits_default(kind.element, one) for one in value)
    if kind.kind == "map":
        return isinstance(value, dict) and all(_fits_default(kind.element, one) for one in value.values())
    if not isinstance(value, dict):
        return False
    return all(
        _fits_default(one.type, value.get(one.name, one.default))
        for one in kind.fields
        if one.name in value or one.has_default
    ) and all(one.name in value or one.has_default for one in kind.fields)
