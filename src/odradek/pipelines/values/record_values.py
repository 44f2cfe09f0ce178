"""The columns of a table for a record: its offset, its key as bytes, and its value in the format of the options.

Columns: ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``headers`` if requested, ``value``. Formats json
and avro add ``raw`` and ``error``. For an unreadable value, ``value`` is null, ``error`` has the reason and ``raw`` has
the bytes. If ``error`` is null, ``value`` is the record's value, null for a tombstone.

Spark's ``from_json`` reads JSON, but it accepts too much: it reads the first of several values and ignores the rest,
turns an empty text into null, and replaces invalid UTF-8 by U+FFFD. So each text is read a second time, as the first
element of an array of two; the second element is a random mark. If the mark is not the second element of the result,
the text is not exactly one JSON value. The bytes are checked as UTF-8. Workers read JSON without Spark
(``json_values.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError, OdradekError
from odradek.pipelines.values.arguments import ArgumentError, Shown, wrong
from odradek.pipelines.values.formats import Framing, ValueFormat
from odradek.pipelines.values.json_overflow import has_overflow, times_as_text
from odradek.pipelines.values.reader import BAD_TIME, ERROR
from odradek.pipelines.values.schema_text import field_names
from odradek.text.encodings import encoding_problem
from odradek.text.json_depth import check_depth, parse_json
from odradek.text.printable import one_line, shortened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key")
RAW = "raw"
MAX_DDL_DEPTH = 100
# Strict: the extensions of JSON that Jackson accepts are refused.
_JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "mode": "PERMISSIVE"}
_BAD = "_odradek_unreadable"
_MARK = uuid.uuid4().hex


class BadRecords(OdradekError):
    """A record has an unreadable value, and the options say that such a value ends the query."""


KEEP_BAD = " (on_bad='keep', or --on-bad keep, keeps such values in the column raw)"
"""The remedy for BadRecords: the end of its message."""


@dataclass(frozen=True)
class Values:
    """The conversion of values to columns. ``schema``: a text; for JSON the fields, in Spark's DDL or Spark's JSON; for
    Avro an Avro schema. ``flat``: fields of ``value`` become columns. ``keep_raw``: ``raw`` has the bytes of every
    value. ``writer_schemas``: Avro schemas by Confluent's ids. A value with another id is unreadable. Without
    ``writer_schemas``, all values are read with ``schema``.
    """

    format: ValueFormat = ValueFormat.RAW
    schema: str | None = None
    framing: Framing = Framing.NONE
    writer_schemas: Mapping[int, str] = field(default_factory=dict)
    flat: bool = False
    headers: bool = False
    keep_raw: bool = False

    def check(self) -> None:
        """Raises ConfigError for a missing or invalid Avro schema, and for options that contradict each other."""
        if self.format is ValueFormat.AVRO:
            from odradek.pipelines.values.avro import AvroDecoder

            if self.schema is None:
                raise ArgumentError(
                    lambda shown: (
                        f"{shown('value_format')} avro needs {shown('schema')}: the Avro schema, or a file with it"
                    )
                )
            AvroDecoder(self.schema, self.framing, self.writer_schemas)
        elif self.framing is not Framing.NONE or self.writer_schemas:
            raise ArgumentError(
                lambda shown: (
                    f"{shown('framing')} and {shown('writer_schemas')} are for {shown('value_format')} avro, not "
                    f"{self.format}"
                )
            )
        if self.format is ValueFormat.RAW and self.schema is not None:
            raise ArgumentError(
                lambda shown: f"{shown('schema')} needs {shown('value_format')} json or avro: raw does not change bytes"
            )
        if self.format is ValueFormat.RAW and self.keep_raw:
            raise ArgumentError(
                lambda shown: (
                    f"{shown('value_format')} raw has the bytes as the value: {shown('keep_raw')} is for json and avro"
                )
            )
        if self.flat and (self.format is ValueFormat.RAW or self.schema is None):
            raise ArgumentError(self._lacks_of_flat)
        self.columns()

    def _lacks_of_flat(self, shown: Shown) -> str:
        is_raw = self.format is ValueFormat.RAW
        formats = f"{shown('value_format')} json or avro, and " if is_raw else ""
        return f"{shown('flat')} needs fields: give {formats}{shown('schema')} with the fields of the values"

    def source_options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the options of the source: in a table with a column for errors, a time that no column holds makes its
        record unreadable and does not end the query. ``given``: options that the user has set."""
        return {} if self.format is ValueFormat.RAW else null_bad_timestamps(given)

    def columns(self) -> list[str] | None:
        """Returns the names of the table's columns, without Spark; None if only Spark knows the fields of the schema.
        Raises ConfigError for a schema that is wrong, and for fields that cannot be columns."""
        names = [*RECORD_COLUMNS, *(["headers"] if self.headers else [])]
        fields = self.fields()
        if not self.flat:
            return [*names, "value", *([] if self.format is ValueFormat.RAW else [RAW, ERROR])]
        if fields is None:
            return None
        taken = sorted({name.lower() for name in fields} & {*names, RAW, ERROR})
        if taken:
            raise wrong("flat", f": a field {taken[0]!r} has the same name as a column of the record")
        return [*fields, *names, RAW, ERROR]

    def fields(self) -> list[str] | None:
        """Returns the names of the value's fields; None if it has none, or if only Spark can tell. Raises
        ConfigError."""
        if self.schema is None or self.format is ValueFormat.RAW:
            return None
        if self.format is ValueFormat.JSON:
            return field_names(self.schema)
        from odradek.pipelines.values.avro import AvroDecoder

        kind: Any = AvroDecoder(self.schema, self.framing, self.writer_schemas).decoded
        return [kind.field(at).name for at in range(kind.num_fields)] if str(kind).startswith("struct<") else None

    def table(self, records: DataFrame, bytes_as: str | None = None) -> DataFrame:
        """Returns the table's columns for records of the source, and the bytes of each value in a column with the name
        ``bytes_as``, if it is given. Raises ConfigError."""
        names = [*RECORD_COLUMNS, *(["headers"] if self.headers else [])]
        match self.format:
            case ValueFormat.RAW:
                return records.select(
                    *names, "value", *([] if bytes_as is None else [records["value"].alias(bytes_as)])
                )
            case ValueFormat.JSON:
                read = _read_json(records, names, self.schema)
            case ValueFormat.AVRO:
                from odradek.pipelines.values.avro import AvroDecoder

                assert self.schema is not None
                read = AvroDecoder(self.schema, self.framing, self.writer_schemas).read(records.select(*names, "value"))
        return self._table_columns(read, names, bytes_as)

    def _table_columns(self, read: DataFrame, names: list[str], bytes_as: str | None) -> DataFrame:
        """Returns the table's columns from ``names``, ``value``, ``raw`` (the bytes) and ``error``."""
        from pyspark.sql import functions as f

        bad_time = f.col("timestamp").isNull()
        read = read.withColumns(
            {
                ERROR: f.coalesce(f.col(ERROR), f.when(bad_time, BAD_TIME)),
                "value": f.when(~bad_time, f.col("value")),
            }
        )
        raw = f.col(RAW) if self.keep_raw else f.when(f.col(ERROR).isNotNull(), f.col(RAW)).alias(RAW)
        more = [] if bytes_as is None else [f.col(RAW).alias(bytes_as)]
        if not self.flat:
            return read.select(*names, "value", raw, ERROR, *more)
        fields = read.schema["value"].dataType.names
        taken = sorted({name.lower() for name in fields} & {*names, RAW, ERROR})
        if taken:
            raise wrong("flat", f": a field {taken[0]!r} has the same name as a column of the record")
        return read.select("value.*", *names, raw, ERROR, *more)


def null_bad_timestamps(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the source's option for null timestamps, unless the user's options have it."""
    return {} if "onbadtimestamp" in {name.lower() for name in given} else {"onBadTimestamp": "null"}


def _read_json(records: DataFrame, names: list[str], schema: str | None) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    text = f.col("value").cast("string")
    # Spark reads objects without known fields quickly. Without a schema, any JSON value is accepted.
    mark = f'"{_MARK}"' if schema is None else f'{{"{_MARK}":"{_MARK}"}}'
    kind = "array<string>" if schema is None else f"array<struct<`{_MARK}`:string>>"
    whole = f.from_json(f.concat(f.lit("["), text, f.lit(f",{mark}]")), kind, _JSON).alias("_odradek_whole")
    value: Column = text
    problem = f.when(f.col("value").isNull(), None).when(~f.is_valid_utf8("value"), "it is not valid UTF-8")
    if schema is not None:
        fields = StructType([*json_fields(schema).fields, StructField(_BAD, StringType())])
        value = f.from_json(text, fields, _JSON | {"columnNameOfCorruptRecord": _BAD})
    columns = (value.alias("_odradek_read"), whole, f.col("value").alias(RAW))
    read = records.select(*names, "value", *columns)
    second = f.get("_odradek_whole", f.lit(1))
    second = second if schema is None else second[_MARK]
    is_one = (f.size("_odradek_whole") == 2) & (second == _MARK)
    problem = problem.when(~f.coalesce(is_one, f.lit(False)), not_json_reason(is_object=schema is not None))
    read_value = f.col("_odradek_read")
    if schema is not None:
        problem = problem.when(read_value.isNull() | read_value[_BAD].isNotNull(), "it does not fit the schema")
        texts = times_as_text(json_fields(schema))
        if texts is not None:
            times = f.from_json(text, texts, _JSON)
            problem = problem.when(has_overflow(times, texts), "it does not fit the schema")
        read_value = read_value.dropFields(_BAD)
    error = problem.alias(ERROR)
    read = read.select(*names, read_value.alias("value"), RAW, error)
    return read.withColumn("value", f.when(f.col(ERROR).isNull() & f.col(RAW).isNotNull(), f.col("value")))


def not_json_reason(*, is_object: bool) -> str:
    """Returns the error for a value that is not JSON."""
    return "it is not one JSON object" if is_object else "it is not one JSON value"


def json_fields(schema: str) -> StructType:
    """Returns the fields in a schema's text: Spark's DDL (``id bigint, name string``) or Spark's JSON.

    Needs a running Spark. Raises ConfigError.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        text = schema.strip()
        if text.startswith("{"):
            fields = StructType.fromJson(parse_json(text))
        else:
            check_depth(text, "<(", ">)", MAX_DDL_DEPTH)
            fields = StructType.fromDDL(text)
        if not isinstance(fields, StructType) or not fields.names:
            raise ConfigError(f"the schema {schema!r} has no fields")
    except (PySparkException, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = one_line(error)[:200]
        raise ConfigError(
            f"the schema {shortened(schema)!r} is neither DDL (such as 'id bigint, name string') nor Spark's JSON: "
            f"{reason}"
        ) from error
    lowered = [name.lower() for name in fields.names]
    if len(set(lowered)) != len(lowered):
        raise ConfigError(f"the schema {schema!r} has a field twice (Spark ignores case)")
    return fields


def read_schema(given: str) -> str:
    """Returns a schema's text, or the text of the file with the name ``given``. Raises ConfigError."""
    try:
        is_file = Path(given).is_file()
    except (OSError, ValueError):  # too long for a file name, or not a file name
        is_file = False
    if not is_file:
        if given.endswith((".avsc", ".json", ".ddl", ".sql")):
            raise wrong("schema", f": the file {given} does not exist")
        return given.removeprefix("\ufeff")
    try:
        data = Path(given).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"the schema file {given} cannot be read: {one_line(error)}") from error
    except UnicodeDecodeError as error:
        what = encoding_problem(data)
        if data.startswith(b"Obj\x01"):
            what = "it is a file of Avro records: give a text file in UTF-8 with the schema"
        raise ConfigError(f"the schema file {given}: {what}") from error


def read_writer_schemas(given: Mapping[int, str]) -> dict[int, str]:
    """Does the same as ``read_schema`` for writer schemas by id. Raises ConfigError with the id."""
    found = {}
    for number, text in given.items():
        try:
            found[number] = read_schema(text)
        except ConfigError as error:
            raise wrong("writer_schemas", f" {number}: {error}") from None
    return found
