"""Values with the id of their schema, in Confluent's wire format: JSON from bytes, and bytes from JSON.

A value begins with a zero byte and the id in four bytes. In Protobuf, indexes of the message follow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from odradek.core.errors import OdradekError
from odradek.registry.client import RegistryClient, RegistryRefusal, RegistrySchema
from odradek.schemas import json_text
from odradek.schemas.errors import InvalidValue
from odradek.schemas.parsed import ParsedSchema

_HEAD = struct.Struct(">bI")
_UNKNOWN_ID = 40403


class Undecodable(OdradekError):
    """A value is no value of a schema that the registry has. The message says why, and the remedy."""


class RegistryDecoder:
    """Decodes values by the ids in them."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._decoders: dict[int, Callable[[bytes], Any]] = {}

    def decode(self, value: bytes) -> Any:
        """Returns the JSON value. Raises Undecodable, RegistryUnavailable."""
        if len(value) < _HEAD.size or value[0] != 0:
            first = f"it begins with {value[:1].hex() or 'no byte'}, and not with 00"
            raise Undecodable(f"it has no schema id ({first}): omit --schema-registry to see its bytes")
        schema_id = _HEAD.unpack_from(value)[1]
        decode = self._decoders.get(schema_id)
        if decode is None:
            decode = self._decoders[schema_id] = decoder_of(self._schema(schema_id))
        try:
            return decode(value[_HEAD.size :])
        except InvalidValue as error:
            raise Undecodable(f"it is no value of schema {schema_id}: {error}") from None

    def _schema(self, schema_id: int) -> ParsedSchema:
        try:
            return self._client.schema(schema_id)
        except RegistryRefusal as error:
            if error.code != _UNKNOWN_ID:
                raise
            text = f"the registry {self._client.url} has no schema {schema_id}: give the registry of its producer"
            raise Undecodable(text) from error


class RegistryEncoder:
    """Encodes JSON values with one schema."""

    def __init__(self, schema: RegistrySchema) -> None:
        self._head = _HEAD.pack(0, schema.id)
        self._encode = encoder_of(schema.parsed)

    def encode(self, value: object) -> bytes:
        """Returns the bytes of a JSON value. Raises InvalidValue with the place that does not fit."""
        return self._head + self._encode(value)


def decoder_of(schema: ParsedSchema) -> Callable[[bytes], object]:
    """Returns what makes JSON values of a schema's bytes, behind the id."""
    if schema.language == "AVRO":
        from odradek.schemas.avro import binary
        from odradek.schemas.avro.schema import AvroSchema

        assert isinstance(schema, AvroSchema)
        root = schema.root
        return lambda data: binary.decode(root, data)
    if schema.language == "PROTOBUF":
        return _protobuf_decoder(schema)
    return _json_value


def _json_value(data: bytes) -> object:
    import json

    try:
        return json.loads(data)
    except ValueError:
        raise InvalidValue("it is no JSON") from None


def _protobuf_decoder(schema: ParsedSchema) -> Callable[[bytes], object]:
    from odradek.schemas.protobuf.binary import ProtobufCodec, message_at, read_indexes
    from odradek.schemas.protobuf.schema import ProtobufSchema

    assert isinstance(schema, ProtobufSchema)
    file, codec = schema.file, ProtobufCodec(schema.names)

    def decode(data: bytes) -> Any:
        indexes, rest = read_indexes(data)
        return codec.decode(*message_at(file, indexes), rest)

    return decode


def encoder_of(schema: ParsedSchema) -> Callable[[Any], bytes]:
    """Returns what makes bytes of JSON values, to follow the id. Protobuf: of the first message of the file."""
    if schema.language == "AVRO":
        from odradek.schemas.avro import binary
        from odradek.schemas.avro.schema import AvroSchema

        assert isinstance(schema, AvroSchema)
        root = schema.root
        return lambda value: binary.encode(root, value)
    if schema.language == "PROTOBUF":
        from odradek.schemas.protobuf.binary import ProtobufCodec, message_at
        from odradek.schemas.protobuf.schema import ProtobufSchema

        assert isinstance(schema, ProtobufSchema)
        message, scope = message_at(schema.file, (0,))
        codec = ProtobufCodec(schema.names)
        return lambda value: b"\0" + codec.encode(message, scope, value)
    return lambda value: json_text.compact(value).encode()
