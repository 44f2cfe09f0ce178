"""The columns of a table, and how the micro-batches of a run may change them. Pure.

A type is in the JSON form of Spark's schemas (``"long"``, ``{"type": "struct", "fields": …}``), without what says
whether a part may be null: every part of a table's columns may. Order has no meaning: readers find columns by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from odradek.core.errors import ConfigError
from odradek.text.printable import printable, shortened

Columns = Mapping[str, Any]
"""The types by the names of columns."""
_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
"""What each type may become: the readers of all formats read the narrow values as the wide type."""
_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_ELSE = "or write into another table (another --output, and for ingest another --group)"
_MOST_SHOWN = 120


class ColumnChange(NamedTuple):
    """A difference between a table's columns and those of a run. ``path``: the names down to the part. ``old``: its
    type in the table; None: the table lacks it. ``new``: its type in the rows; None: they lack it. ``twin``: the name
    beside it in the table that differs only by case; empty: there is none."""

    path: tuple[str, ...]
    old: Any
    new: Any
    twin: str = ""

    @property
    def is_wider(self) -> bool:
        return isinstance(self.old, str) and self.new in _WIDER.get(self.old, ())


@dataclass(frozen=True)
class RowColumns:
    """The columns of the rows that a run writes. ``may_change``: whether the table may get new columns and wider types
    by them. ``kept``: the columns that keep their type, because the table is partitioned by them."""

    types: Columns
    may_change: bool = False
    kept: tuple[str, ...] = ()

    def check(self, held: Columns | None, table: str, *, may_lack: bool = False) -> None:
        """Raises ConfigError if a table with the columns ``held`` cannot get these rows. None: they are not known.
        ``table``: its name for messages. ``may_lack``: whether the table may have more columns."""
        for change in () if held is None else changes(held, self.types):
            is_more = change.new is None and len(change.path) == 1
            if not (is_more and may_lack) and not self._is_allowed(change):
                raise ConfigError(self._fault(change, table))

    def _is_allowed(self, change: ColumnChange) -> bool:
        if not self.may_change or change.new is None:
            return False
        is_new = change.old is None and not change.twin
        return is_new or (change.is_wider and change.path[0] not in self.kept)

    def _fault(self, change: ColumnChange, table: str) -> str:
        """Returns why a change is refused, in one line."""
        path, old, new = printable(".".join(change.path)), shown(change.old), shown(change.new)
        if change.new is None:
            return (
                f"the table {table} has the column {path} ({old}), and the schema lacks it: give the schema with this "
                f"field, {_ELSE}"
            )
        if change.old is None and change.twin:
            return (
                f"the schema has the field {path} ({new}), and the table {table} has {printable(change.twin)} in this "
                f"place: readers ignore case, so give the field the name in the table, {_ELSE}"
            )
        if change.old is None:
            return (
                f"the schema has the field {path} ({new}), and the table {table} has no column {path} ({new}): "
                "--schema-evolution add adds it"
            )
        of_table = f"column {path} of the table {table} is {old}, not {new} as in the schema"
        if change.is_wider and change.path[0] in self.kept:
            return f"{of_table}: the table is partitioned by it, so it keeps its type. Give the type {old}, {_ELSE}"
        if change.is_wider:
            return f"{of_table}: --schema-evolution add makes it wider"
        return (
            f"{of_table}: a column may only become wider (int to bigint, float to double). Give the type {old}, {_ELSE}"
        )

    def after(self, held: Columns | None) -> Columns:
        """Returns the columns of a table with the columns ``held`` after it got these rows."""
        return self.types if held is None else merged(held, self.types)


def columns_of(schema: Mapping[str, Any]) -> dict[str, object]:
    """Returns the columns of a schema in Spark's JSON."""
    return {str(field["name"]): _plain(field["type"]) for field in schema["fields"]}


def _plain(kind: object) -> Any:
    """Returns a type without what says whether its parts may be null, and without metadata."""
    if not isinstance(kind, Mapping):
        return kind
    match kind.get("type"):
        case "struct":
            return struct_of(columns_of(kind))
        case "array":
            return {"type": "array", "elementType": _plain(kind["elementType"])}
        case "map":
            return {"type": "map", "keyType": _plain(kind["keyType"]), "valueType": _plain(kind["valueType"])}
    return dict(kind)


def struct_of(fields: Columns) -> dict[str, object]:
    """Returns the type of a struct with these fields."""
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def _fields(kind: Any) -> dict[str, Any] | None:
    """Returns the fields of a struct; None for another type."""
    is_struct = isinstance(kind, Mapping) and kind.get("type") == "struct"
    return {field["name"]: field["type"] for field in kind["fields"]} if is_struct else None


def changes(held: Columns, wanted: Columns, above: tuple[str, ...] = ()) -> Iterator[ColumnChange]:
    """Yields the differences. Fields of structs are compared one by one, what is in lists and maps as a whole."""
    lowered = {name.lower(): name for name in held}
    for name, new in wanted.items():
        old = held.get(name)
        fields, others = _fields(old), _fields(new)
        if old is None:
            yield ColumnChange((*above, name), None, new, lowered.get(name.lower(), ""))
        elif fields is not None and others is not None:
            yield from changes(fields, others, (*above, name))
        elif not _is_equal(old, new):
            yield ColumnChange((*above, name), old, new)
    for name, old in held.items():
        if name not in wanted:
            yield ColumnChange((*above, name), old, None)


def _is_equal(one: object, other: object) -> bool:
    """Returns whether two types are equal. The order of a struct's fields has no meaning."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping) or one.get("type") != other.get("type"):
        return bool(one == other)
    fields, others = _fields(one), _fields(other)
    if fields is None or others is None:
        return one.keys() == other.keys() and all(_is_equal(one[part], other[part]) for part in one)
    return fields.keys() == others.keys() and all(_is_equal(kind, others[name]) for name, kind in fields.items())


def merged(held: Columns, wanted: Columns) -> dict[str, object]:
    """Returns the columns after allowed changes: the wider type of each, and new ones behind the others."""
    found = {name: _merged_type(kind, wanted[name]) if name in wanted else kind for name, kind in held.items()}
    return found | {name: kind for name, kind in wanted.items() if name not in held}


def _merged_type(held: object, wanted: object) -> object:
    fields, others = _fields(held), _fields(wanted)
    if fields is not None and others is not None:
        return struct_of(merged(fields, others))
    return wanted if ColumnChange((), held, wanted).is_wider else held


def shown(kind: object) -> str:
    """Returns a type in Spark's DDL, shortened for a message."""
    return "nothing" if kind is None else shortened(printable(_ddl(kind)), _MOST_SHOWN)


def _ddl(kind: object) -> str:
    fields = _fields(kind)
    if fields is not None:
        return f"struct<{','.join(f'{name}:{_ddl(part)}' for name, part in fields.items())}>"
    if isinstance(kind, Mapping) and kind.get("type") == "array":
        return f"array<{_ddl(kind['elementType'])}>"
    if isinstance(kind, Mapping) and kind.get("type") == "map":
        return f"map<{_ddl(kind['keyType'])},{_ddl(kind['valueType'])}>"
    return _SQL.get(str(kind), str(kind))


__all__ = ["ColumnChange", "Columns", "RowColumns", "changes", "columns_of", "merged", "shown", "struct_of"]
