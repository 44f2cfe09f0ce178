"""Defaults of random Avro schemas, as Avro for Java resolves and refuses them. Its jar is one of PySpark's.

We refuse some defaults that Java changes: a fixed of another length, which Java cuts or pads, and a default that is of
another type of its union than its JSON says. A schema that Java refuses is refused here.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from test_avro_defaults import EMPTY, ROWS, is_same
from test_avro_names import schemas

from odradek.core.errors import ConfigError
from odradek.pipelines.values.avro import _parse
from odradek.pipelines.values.avro_defaults import with_values

pyspark = pytest.importorskip("pyspark")
JARS = Path(pyspark.__file__).parent / "jars"
CHECKED = 3000
JAVAS_FAULT = "org.apache.avro.AvroRuntimeException: Not an array: ["
"""Avro 1.12.1 fails for an empty array that is the default of a union. We read an empty array."""
WHOLE = [0, -1, 7, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63]
REAL = [0.5, -2.25, 1e300, -1e-300, 3.0, 0, 12, "NaN", "1.5", "x"]
TEXTS = ["", "a", "\u00ff\u0000", "\u20ac", "\U0001f600a"]
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
]


class Schemas:
    """Random schemas of a record with a default in each field. Every fifth value may be of another type."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"N{self.count}"

    def record(self) -> dict[str, Any]:
        self.count = 0
        return {"type": "record", "name": "R", "fields": [self.field(at, 3, has_default=True) for at in range(3)]}

    def field(self, at: int, depth: int, *, has_default: bool) -> dict[str, Any]:
        kind = self.kind(depth)
        made = {"name": f"f{at}", "type": kind}
        return made | ({"default": self.value(kind)} if has_default else {})

    def kind(self, depth: int, *, union: bool = True) -> Any:
        words = ["null", "boolean", "int", "long", "float", "double", "string", "bytes", "logical", "enum", "fixed"]
        if depth:
            words += ["array", "map", "record"] * 2 + (["union"] * 4 if union else [])
        match self.random.choice(words):
            case "logical":
                return self.random.choice(LOGICAL)
            case "enum":
                return {"type": "enum", "name": self.name(), "symbols": ["A", "B"]}
            case "fixed":
                return {"type": "fixed", "name": self.name(), "size": self.random.choice([0, 1, 2])}
            case "array":
                return {"type": "array", "items": self.kind(depth - 1)}
            case "map":
                return {"type": "map", "values": self.kind(depth - 1)}
            case "record":
                made = [self.field(at, depth - 1, has_default=self.random.random() < 0.6) for at in range(2)]
                return {"type": "record", "name": self.name(), "fields": made}
            case "union":
                return self.union(depth)
            case word:
                return word

    def union(self, depth: int) -> list[Any]:
        found: dict[str, Any] = {}
        for _ in range(self.random.randint(1, 3)):
            one = self.kind(depth - 1, union=False)
            found.setdefault(one if isinstance(one, str) else one["type"], one)
        return list(found.values())

    def value(self, kind: Any) -> Any:
        if self.random.random() < 0.04:
            return self.random.choice([None, True, 1, "a", [], {}])
        if isinstance(kind, list):
            return self.value(self.random.choice(kind))
        if isinstance(kind, str):
            kind = {"type": kind}
        match kind["type"]:
            case "null":
                return None
            case "boolean":
                return self.random.random() < 0.5
            case "int" | "long":
                return self.random.choice(WHOLE)
            case "float" | "double":
                return self.random.choice(REAL)
            case "string":
                return self.random.choice(TEXTS)
            case "bytes" if "logicalType" in kind:
                return self.random.choice(TEXTS[1:3])  # no bytes are no decimal for Java
            case "bytes":
                return self.random.choice(TEXTS[:3])
            case "enum":
                return self.random.choice("AB")
            case "fixed":
                return "".join(self.random.choices("a\u00ff\u0000", k=kind["size"]))
            case "array":
                return [self.value(kind["items"]) for _ in range(self.random.randint(0, 2))]
            case "map":
                return {name: self.value(kind["values"]) for name in "kl"[: self.random.randint(0, 2)]}
        names = [one for one in kind["fields"] if "default" not in one or self.random.random() < 0.5]
        return {one["name"]: self.value(one["type"]) for one in names}


class Java:
    """Avro for Java."""

    def __init__(self, gateway: JavaGateway) -> None:
        self.error = ""
        """Why Java refused the last schema that it refused."""
        self._jvm = gateway.jvm
        self._avro = gateway.jvm.org.apache.avro

    def accepts(self, schema: str) -> bool:
        """Returns whether Java's parser accepts a schema."""
        try:
            self._avro.Schema.Parser().parse(schema)
        except Py4JJavaError:
            return False
        return True

    def default(self, schema: str) -> bytes | None:
        """Returns the record that a writer without fields gives, in Avro; None if Java refuses the schema."""
        avro, io_package = self._avro, self._avro.io
        try:
            reader_schema = avro.Schema.Parser().parse(schema)
            reader = avro.generic.GenericDatumReader(avro.Schema.Parser().parse(EMPTY), reader_schema)
            record = reader.read(None, io_package.DecoderFactory.get().binaryDecoder(bytearray(), None))
            out = self._jvm.java.io.ByteArrayOutputStream()
            encoder = io_package.EncoderFactory.get().directBinaryEncoder(out, None)
            avro.generic.GenericDatumWriter(reader_schema).write(record, encoder)
            return bytes(out.toByteArray())
        except Py4JJavaError as error:
            self.error = str(error.java_exception)
            return None


@pytest.fixture(scope="module")
def java() -> Iterator[Java]:
    (py4j_jar,) = JARS.glob("py4j*.jar")
    gateway = JavaGateway.launch_gateway(classpath=f"{JARS}/*", jarpath=str(py4j_jar), die_on_exit=True)
    yield Java(gateway)
    gateway.shutdown()


def ours(schema: str) -> tuple[bytes | None, str]:
    """The same record in Avro, or why the schema is refused."""
    try:
        reader = with_values(_parse(schema))
        record = fastavro.schemaless_reader(io.BytesIO(b""), fastavro.parse_schema(json.loads(EMPTY)), reader)
    except (ConfigError, ValueError) as error:
        return None, str(error)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parse(schema), record)
    return out.getvalue(), repr(record)


def without_logical_types(schema: Any) -> Any:
    """The schema of the stored values."""
    if isinstance(schema, dict):
        return {name: without_logical_types(part) for name, part in schema.items() if name != "logicalType"}
    return [without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


def value_of(data: bytes | None, schema: str) -> str | None:
    """The value in Avro. Which of a union's types has a number of the same value and Python type does not count."""
    kind = without_logical_types(json.loads(schema))
    return None if data is None else repr(fastavro.schemaless_reader(io.BytesIO(data), kind))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_defaults_are_those_of_java(seed: int, java: Java) -> None:
    schemas, seen = Schemas(seed), Counter[str]()
    for number in range(CHECKED // 3):
        schema = json.dumps(schemas.record())
        expected, (found, shown) = java.default(schema), ours(schema)
        if found is None and expected is not None:
            assert shown.startswith("the default of ")
            seen["stricter"] += 1
        elif expected is None and java.error.startswith(JAVAS_FAULT) and found is not None:
            seen["fault"] += 1
        else:
            assert value_of(found, schema) == value_of(expected, schema), f"{number}: {shown}: {java.error}: {schema}"
            seen["refused" if found is None else "equal"] += 1
    print(seed, dict(seen))
    assert min(seen["refused"], seen["equal"]) > 100
    assert max(seen["stricter"], seen["fault"]) < 100


@pytest.mark.slow
def test_the_names_of_the_table_are_those_that_java_accepts(java: Java) -> None:
    assert [title for title, schema, is_good in schemas() if java.accepts(json.dumps(schema)) is not is_good] == []


@pytest.mark.slow
def test_the_stored_rows_are_those_of_java(java: Java) -> None:
    for row in map(json.loads, ROWS):
        data = java.default(json.dumps(row["schema"]))
        assert data is not None
        record = fastavro.schemaless_reader(io.BytesIO(data), without_logical_types(row["schema"]))
        assert is_same(record, row["java"]), row
