"""Names in Avro schemas. ``tests/property/test_avro_defaults_java.py`` compares this table with Java's parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.values.avro import AvroDecoder

FIELDS = [{"name": "a", "type": "int"}]
NAMES = {
    "a": True, "_1": True, "n.a": True, ".a": True, "é": True, "a\u0660": True, "record": True, "n.string": True,
    "": False, "1a": False, "a-b": False, "a b": False, "a$b": False, "a\n": False, "\u0660": False, "𝒜": False,
    "a..b": False, "a.": False, ".": False, "..a": False, "n.1b": False, "n-m.a": False, "string": False,
}  # fmt: skip
"""Names of records, and whether Java accepts them."""
SPACES = {"n": True, "": True, "é.b": True, "n-m": False, "a..b": False, ".": False, "a.": False, "1": False}
SYMBOLS = {"A": True, "é": True, "a\u0660": True, "_": True, "int": True, "": False, "1": False, "a-b": False,
           "a.b": False, "a b": False, "𝒜": False, "\u0660": False, "a\n": False}  # fmt: skip
FIELD_NAMES = {"é": True, "int": True, "a-b": False, "a.b": False, "": False, "1": False, "a b": False}


def schemas() -> list[tuple[str, dict[str, Any], bool]]:
    """Returns (title, schema, whether Java accepts it)."""
    record = {"type": "record", "name": "R", "fields": FIELDS}
    found = [(f"name {name!r}", record | {"name": name}, good) for name, good in NAMES.items()]
    found += [(f"inner {name!r}", record | {"fields": [{"name": "x", "type": record | {"name": name}}]}, good)
              for name, good in NAMES.items() if name != "R"]  # fmt: skip
    found += [(f"namespace {name!r}", record | {"namespace": name}, good) for name, good in SPACES.items()]
    found += [(f"field {name!r}", record | {"fields": [{"name": name, "type": "int"}]}, good)
              for name, good in FIELD_NAMES.items()]  # fmt: skip
    for symbol, good in SYMBOLS.items():
        enum = {"type": "enum", "name": "E", "symbols": ["Z", symbol]}
        found.append((f"symbol {symbol!r}", record | {"fields": [{"name": "x", "type": enum}]}, good))
        found.append((f"symbol {symbol!r} as default", enum | {"default": symbol}, good))
    found.append(("symbol twice", {"type": "enum", "name": "E", "symbols": ["é", "é"]}, False))
    found.append(("default without symbol", {"type": "enum", "name": "E", "symbols": ["é"], "default": "è"}, False))
    found.append(("alias", record | {"aliases": ["a-b"]}, False))
    found.append(("reference", record | {"fields": [
        {"name": "x", "type": {"type": "fixed", "name": "a..b", "size": 2}}, {"name": "y", "type": "a..b"},
    ]}, False))  # fmt: skip
    return found


@pytest.mark.parametrize(("schema", "is_good"), [one[1:] for one in schemas()], ids=[one[0] for one in schemas()])
def test_a_name_that_java_refuses_is_one_line_with_the_remedy(schema: dict[str, Any], is_good: bool) -> None:
    text = json.dumps(schema)
    if is_good:
        AvroDecoder(text)
        return
    with pytest.raises(
        ConfigError, match=r"^the schema is not a valid Avro schema: .*( name.*: rename it|symbol.*): "
    ) as refused:
        AvroDecoder(text)
    assert "\n" not in str(refused.value)


def test_symbols_of_every_script_are_values() -> None:
    """fastavro parses symbols of ASCII only."""
    import pyarrow as pa

    color = {
        "type": "enum",
        "name": "Color",
        "symbols": ["gr\u00fcn", "\u0441\u0438\u043d\u0438\u0439", "red"],
        "default": "gr\u00fcn",
    }
    fields = [
        {"name": "a", "type": color},
        {"name": "b", "type": ["null", "Color"]},
        {"name": "c", "type": "Color", "default": "red"},
    ]
    reader = json.dumps({"type": "record", "name": "R", "fields": fields})
    values, errors = AvroDecoder(reader).decode(pa.array([b"\0\2\2\4", b"\2\0\0", b"\6\0\0"], pa.binary()))
    assert values.to_pylist()[:2] == [
        {"a": "gr\u00fcn", "b": "\u0441\u0438\u043d\u0438\u0439", "c": "red"},
        {"a": "\u0441\u0438\u043d\u0438\u0439", "b": None, "c": "gr\u00fcn"},
    ]
    assert errors.to_pylist()[:2] == [None, None]
    assert errors.to_pylist()[2] is not None
    old = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": color | {"symbols": ["a-b", "\u0441\u0438\u043d\u0438\u0439"], "default": "a-b"}},
            {"name": "b", "type": "null"},
        ],
    }
    framed = AvroDecoder(reader, "confluent", {7: json.dumps(old)})
    values, errors = framed.decode(pa.array([b"\0\0\0\0\7\2", b"\0\0\0\0\7\0"], pa.binary()))
    assert (values.to_pylist()[0], errors.to_pylist()) == (
        {"a": "\u0441\u0438\u043d\u0438\u0439", "b": None, "c": "red"},
        [None, None],
    )
    assert values.to_pylist()[1]["a"] == "gr\u00fcn", "the default of the reader's enum"


def test_a_writer_schema_may_have_names_that_no_parser_has_checked() -> None:
    """Registries keep such schemas, and their values are readable."""
    reader = json.dumps({"type": "record", "name": "R", "fields": FIELDS})
    odd = {"type": "record", "name": "R", "namespace": "my-space", "fields": [*FIELDS, {"name": "b-c", "type": "int"}]}
    decoder = AvroDecoder(reader, "confluent", {7: json.dumps(odd)})
    import pyarrow as pa

    values, errors = decoder.decode(pa.array([b"\0\0\0\0\x07\x02\x04"], pa.binary()))
    assert (values.to_pylist(), errors.to_pylist()) == ([{"a": 1}], [None])
    own = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": {"type": "fixed", "name": "string", "size": 2}}],
    }
    with pytest.raises(ConfigError, match=r"^writer_schemas 7: .* the name of Avro's own type string: rename it"):
        AvroDecoder(reader, "confluent", {7: json.dumps(own)})
