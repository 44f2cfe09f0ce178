"""Columns of tables and of rows: what is equal, what a change is, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.columns import RowColumns, changes, columns_of, merged, shown, struct_of
from odradek.pipelines.commit.state import TableState, of_json, to_json


def listed(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind}


def test_nullability_and_metadata_are_no_part_of_a_type() -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {"a": 1}}]}
    kinds = {
        "a": {"type": "array", "elementType": inner, "containsNull": False},
        "m": {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True},
    }
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    point = struct_of({"x": "long"})
    assert columns_of({"fields": fields}) == {
        "a": {"type": "array", "elementType": point},
        "m": {"type": "map", "keyType": "string", "valueType": point},
    }


def test_the_order_of_columns_and_fields_has_no_meaning() -> None:
    one = {"a": "long", "b": listed(struct_of({"x": "long", "y": "string"}))}
    other = {"b": listed(struct_of({"y": "string", "x": "long"})), "a": "long"}
    assert list(changes(one, other)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("byte", "short"), ("byte", "integer"), ("byte", "long"), ("short", "integer"), ("short", "long"),
     ("integer", "long"), ("float", "double")],
)  # fmt: skip
def test_a_type_becomes_wider_and_never_narrower(old: str, new: str) -> None:
    wide, narrow = RowColumns({"c": new}, may_change=True), RowColumns({"c": old}, may_change=True)
    wide.check({"c": old}, "t")
    assert wide.after({"c": old}) == {"c": new}
    with pytest.raises(ConfigError, match=f"column c of the table t is {shown(new)}, not {shown(old)}"):
        narrow.check({"c": new}, "t")
    with pytest.raises(ConfigError, match=r"--schema-evolution add makes it wider$"):
        RowColumns({"c": new}).check({"c": old}, "t")


@pytest.mark.parametrize(
    ("old", "new"),
    [("integer", "double"), ("long", "double"), ("integer", "float"), ("string", "binary"), ("date", "timestamp"),
     ("timestamp", "timestamp_ntz"), ("decimal(5,2)", "decimal(9,2)"), ("long", struct_of({"x": "long"})),
     (listed("integer"), listed("long")), (struct_of({"x": "long"}), "string"),
     ({"type": "map", "keyType": "string", "valueType": "integer"},
      {"type": "map", "keyType": "string", "valueType": "long"})],
)  # fmt: skip
def test_other_changes_of_a_type_are_refused(old: Any, new: Any) -> None:
    with pytest.raises(ConfigError, match="a column may only become wider") as error:
        RowColumns({"c": new}, may_change=True).check({"c": old}, "t")
    assert f"is {shown(old)}, not {shown(new)}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_names_the_field_of_a_record() -> None:
    held = {"v": struct_of({"p": struct_of({"x": "integer"})})}
    with pytest.raises(ConfigError, match=r"column v\.p\.x of the table t is int, not string"):
        RowColumns({"v": struct_of({"p": struct_of({"x": "string"})})}, may_change=True).check(held, "t")
    with pytest.raises(ConfigError, match=r"has the column v\.p\.x \(int\), and the schema lacks it"):
        RowColumns({"v": struct_of({"p": struct_of({"y": "string"})})}, may_change=True).check(held, "t")
    more = {"v": struct_of({"p": struct_of({"y": "string", "x": "long"})})}
    RowColumns(more, may_change=True).check(held, "t")
    assert merged(held, more) == {"v": struct_of({"p": struct_of({"x": "long", "y": "string"})})}


def test_a_table_may_have_more_columns_of_other_writers_and_no_more_fields() -> None:
    rows = RowColumns({"a": "long", "v": struct_of({"x": "long"})})
    rows.check({"a": "long", "v": struct_of({"x": "long"}), "theirs": "string"}, "t", may_lack=True)
    with pytest.raises(ConfigError, match=r"has the column v\.y"):
        rows.check({"a": "long", "v": struct_of({"x": "long", "y": "long"})}, "t", may_lack=True)


def test_a_line_is_short_and_plain() -> None:
    wide = struct_of({f"field{number}\n\x1b[31m": "long" for number in range(100)})
    with pytest.raises(ConfigError) as error:
        RowColumns({"c\n": wide}, may_change=True).check({"c\n": "long"}, "t")
    assert len(str(error.value)) < 500
    assert not {"\n", "\x1b"} & set(str(error.value))


def test_the_notes_have_the_columns() -> None:
    state = TableState(columns={"a": "long", "v": struct_of({"x": "long"})})
    assert of_json(to_json(state)).columns == state.columns
    assert of_json(to_json(TableState())).columns is None
