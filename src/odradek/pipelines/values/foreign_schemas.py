"""Schemas of other kinds than a job wants: what a given text is, and what to give instead, in one line."""

from __future__ import annotations

import re

from odradek.core.errors import ConfigError
from odradek.text.json_depth import parse_json
from odradek.text.printable import printable, shortened

_COMMENTS = re.compile(r"\A(?:\s+|//[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_TEXTS = (
    (re.compile(r"syntax\s*=|edition\s*=\s*[\"']|package\s+[\w.]+\s*;|message\s+\w+\s*\{"),
     "is Protobuf, which is not supported"),
    (re.compile(r"(@\w+\s*\(.*?\)\s*)*(protocol|namespace|schema|record|import\s+(idl|schema|protocol))\s+[^:,]*[;{\"]",
                re.DOTALL),
     "is Avro IDL: convert it with avro-tools (idl2schemata), and give the .avsc file of the values"),
    (re.compile(r"<(!doctype\s+html|html)\b", re.IGNORECASE),
     "is an HTML page, not a schema: check the address and the login with which it was fetched"),
    (re.compile(r"<"), "is XML"),
)  # fmt: skip
_AVRO_NAMES = ("boolean", "int", "long", "float", "double", "bytes", "string")
_GIVEN = {"avro": "an Avro schema", "json": "DDL (such as 'id bigint, name string') or Spark's JSON"}
_DOCUMENTS = {"openapi": "OpenAPI", "swagger": "OpenAPI", "asyncapi": "AsyncAPI"}
_DDL = re.compile(r"[`\w]+\s*:?\s+\w+(\(|<|\s|,|\Z)")


def check_kind(text: str, wanted: str) -> None:
    """Raises ConfigError for a text that is certainly a schema of another kind than ``wanted``, ``avro`` or ``json``.

    The message says what the text is, and what to give instead.
    """
    problem = _problem(text.removeprefix("\ufeff"), wanted)
    if problem is not None:
        raise ConfigError(f"the schema {shortened(text)!r} {problem}")


def _problem(text: str, wanted: str) -> str | None:
    begin = _COMMENTS.match(text)
    bare = text[begin.end() if begin else 0 :]
    if not bare.strip():
        return "is empty"
    if bare[0] in "{[":
        try:
            given = parse_json(bare)
        except ValueError:
            return None  # the reader of the schema says where it is wrong
        return _list_problem(given, wanted) if isinstance(given, list) else _json_problem(given, wanted)
    if (problem := _value_problem(bare, wanted)) is not None:
        return problem
    for pattern, problem in _TEXTS:
        if pattern.match(bare):
            return problem
    if re.fullmatch(r"\S*[/\\]\S+|\S+\.(avdl|avpr|avro|proto|xsd)", bare.strip()):
        return "looks like the name of a file, and no such file exists"
    if wanted == "avro" and _DDL.match(bare) and not bare.startswith('"'):
        return "is not a valid Avro schema: it looks like Spark's DDL, which is for value format json"
    return None


def _value_problem(text: str, wanted: str) -> str | None:
    """Returns what is wrong with a text that is a value in JSON, but no object and no list."""
    if wanted == "avro" and text.strip() in _AVRO_NAMES:
        return f"is a name without quotes: write '\"{text.strip()}\"'"
    try:
        given = parse_json(text)
    except ValueError:
        return None
    if isinstance(given, str):
        if given.lstrip().startswith(("{", "[")):
            return "is a schema as a text in JSON: give the text inside of the quotes, without its escapes"
        return None
    return f"is no schema, but the value {text.strip()} in JSON"


def _list_problem(given: list[object], wanted: str) -> str | None:
    records = sum(isinstance(one, dict) for one in given)
    if wanted == "json" or records > 1:
        return f"is a list of {len(given)} schemas: give the one of the values"
    return None


def _registry_problem(given: dict[str, object]) -> str | None:
    """Returns what is wrong with an answer of a schema registry: Confluent's errors, Glue's and Apicurio's answers."""
    if given.get("type") not in (None, "AVRO", "JSON", "PROTOBUF"):
        return None  # a schema, which may have properties of any name
    if "error_code" in given and "message" in given:
        reason = shortened(printable(str(given["message"])))
        return f"is the error {given['error_code']} of a schema registry ({reason}): fetch the schema again"
    for name, whose in (("SchemaDefinition", "AWS Glue"), ("content", "Apicurio Registry")):
        if isinstance(given.get(name), str):
            return f"is an answer of {whose}: give only the content of its field {name}"
    return None


def _json_problem(given: dict[str, object], wanted: str) -> str | None:
    kind = given.get("type")
    if (problem := _registry_problem(given)) is not None:
        return problem
    if "schema" in given and kind is None:
        whose = "Connect's message" if "payload" in given else "the answer of a schema registry"
        return f"is {whose}: give only the content of its field schema"
    for name, what in _DOCUMENTS.items():
        if name in given:
            return f"is an {what} document: give the schema of the values alone, as {_GIVEN[wanted]}"
    if "protocol" in given and "types" in given:
        return "is an Avro protocol: give the one of its types that the values have"
    if "$schema" in given or "$ref" in given or (kind == "object" and "properties" in given):
        return f"is JSON Schema, which is not supported: give {_GIVEN[wanted]}"
    fields = given.get("fields")
    if (
        kind == "struct"
        and isinstance(fields, list)
        and any(isinstance(one, dict) and "field" in one for one in fields)
    ):
        return "is a schema of Connect's JSON converter, which is not supported"
    if kind == "struct" and wanted == "avro":
        return "is Spark's JSON, which is for value format json: give an Avro schema"
    if kind in ("record", "enum", "fixed") and wanted == "json":
        return "is an Avro schema, which is for value format avro"
    return None
