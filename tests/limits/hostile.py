"""Valid requests with extreme values, generated from kio's message classes by a seeded random generator.

A message is written field by field as its class declares. Each request has one of `EXTREMES`: the longest strings, the
widest array, one element many times, nested arrays, batches that unpack to the most bytes, tagged fields. A plain
request has none of these. A further extreme, "parked", makes a request wait. Names are those of existing topics and
groups, or new ones. Numbers are in the range of their field. No message changes a setting that would lock out the test.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from functools import cache
from typing import Any, NamedTuple

from kio.serial._introspect import classify_field, get_field_tag, is_optional

from odradek.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from odradek.batches.encode import seal_records
from odradek.broker.handlers import handler_files
from odradek.core.varints import uvarint
from odradek.wire import frames, schemas
from odradek.wire.schemas import Kind

LONGEST = 32_767
MOST_BYTES = 90_000_000
"""The limit of one array: a broker accepts requests of up to 100 MiB."""
EXTREMES = ("plain", "longest", "widest", "repeated", "nested", "densest", "tagged")
SERIAL = b"\0SERIAL\0"
"""A placeholder in an element for a number of eight digits, which differs in each element of an array."""
NUMBER = b"\x5a\xa5\x5a\xa5"
"""A placeholder for a partition number, which differs in each element of an array."""

TOPIC_SETTINGS = ("retention.ms", "segment.bytes", "cleanup.policy", "retenton.ms", "max.message.bytes", "flush.ms")
BROKER_SETTINGS = ("log.cleaner.threads", "num.io.threads", "log.cleaner.backof.ms", "num.replica.fetchers")
GROUP_SETTINGS = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.sesion.timeout.ms")
METRICS_SETTINGS = ("interval.ms", "metrics", "match")
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_SETTINGS = {2: TOPIC_SETTINGS, 4: BROKER_SETTINGS, 16: METRICS_SETTINGS, 32: GROUP_SETTINGS}
PATTERNS = (
    "(" * 16_000 + "a" + ")" * 16_000, "((a{1,30}){1,30}){1,30}", "a?" * 10_000 + "a" * 10_000, "[a-z]{1000}",
    "." * LONGEST, "(?:" * 900 + ")*" * 900, "|".join(f"t{n}" for n in range(6000)), "(?i)" + "é" * 8000,
    "\\pL" * 10_000, "(x+x+)+y",
)  # fmt: skip
_TEXTS = ("x", "(", "[", "{", "é", "\x1b]0;x\x07", "\u2028", "🙂", '"', "\\", "\0")


class Known(NamedTuple):
    """The existing resources of the broker."""

    topics: tuple[str, ...]
    topic_ids: tuple[uuid.UUID, ...]
    groups: tuple[str, ...]


class Request(NamedTuple):
    """One request without its header, and its extreme."""

    api_key: int
    version: int
    extreme: str
    where: str
    body: bytes

    def __str__(self) -> str:
        name = schemas.api_name(self.api_key)
        return f"{name} v{self.version} {self.extreme} {self.where} ({len(self.body):,} bytes)"


class Scale(NamedTuple):
    """The size of the extremes."""

    widths: tuple[int, ...] = (10, 200, 2000, 10_000, 30_000)
    records: tuple[int, ...] = (1, 1000, 100_000, 1_000_000)
    usual_records: tuple[int, ...] = (1, 10, 1000)
    partitions: tuple[int, ...] = (1, 3, -1, 50, 20_000)
    pipelined: tuple[int, ...] = (10, 300, 1500)
    connections: tuple[int, ...] = (50,)


SHORT_SCALE = Scale()
LONG_SCALE = Scale(
    widths=(10, 200, 200, 2000, 2000, 5000, 10_000, 30_000, 100_000, 250_000),
    records=(1, 1000, 1000, 100_000, 1_000_000, 12_000_000),
    partitions=(1, 3, -1, 50, 300, 1000, 20_000),
    pipelined=(10, 100, 300, 1500, 4000),
    connections=(20, 50, 300),
)


class Generator:
    """The same seed generates the same requests, for brokers with the same resources."""

    def __init__(self, seed: int, known: Known, scale: Scale) -> None:
        self.dice = random.Random(seed)
        self.known = known
        self.scale = scale
        self.tag = f"{seed:x}"
        self._made = 0

    def request(self, *, api_key: int | None = None, extreme: str | None = None) -> Request:
        """Returns a request of some API and version, with ``extreme`` (None: a random one) if its schema allows it."""
        key = self.dice.choice([api.key for api in handler_files("client") if api_key in (None, api.key)])
        return self._request(key, self.dice.choice(versions_of(key)), extreme)

    def of_each_version(self, newest: int = 100) -> Iterator[Request]:
        """A plain request of each API and version, or of the ``newest`` versions of each API."""
        for api in handler_files("client"):
            for version in versions_of(api.key)[-newest:]:
                yield self._request(api.key, version, "plain")

    def of_each_api(self, extreme: str) -> Iterator[Request]:
        """For each place of each API's schema where this extreme is possible, yields a request of the newest
        version. Without such a place, yields one request of the API."""
        for api in handler_files("client"):
            key, version = api.key, versions_of(api.key)[-1]
            entity = schemas.message_type(key, version, Kind.REQUEST)
            for where in places_of(entity, extreme) or [""]:
                yield self._request(key, version, extreme, where)

    def widest(self, api_key: int, where: str) -> Request:
        """Returns a request of the newest version with the widest array at this place."""
        return self._request(api_key, versions_of(api_key)[-1], "widest", where)

    def _request(self, key: int, version: int, extreme: str | None, where: str | None = None) -> Request:
        entity = schemas.message_type(key, version, Kind.REQUEST)
        wanted = extreme or self.dice.choice(EXTREMES)
        if where is None:
            places = places_of(entity, wanted)
            where = self.dice.choice(places) if places else ""
        message = _Message(self, wanted, where)
        body = _numbered(message.entity(entity, ""), self.serial(), 0)
        return Request(key, version, wanted, where, body)

    def small(self) -> Request:
        return self.request(extreme="plain")

    def serial(self) -> int:
        self._made += 1
        return self._made


@cache
def versions_of(api_key: int) -> list[int]:
    ((oldest, newest),) = [api.versions for api in handler_files("client") if api.key == api_key]
    known_oldest, known_newest = schemas.known_versions(api_key)
    return list(range(max(oldest, known_oldest), min(newest, known_newest) + 1))


@cache
def places_of(entity: Any, extreme: str) -> list[str]:
    """Returns the paths of the fields where this extreme is possible. An extreme of the whole message has no paths."""
    wanted: Callable[[Field[Any]], bool] = {
        "longest": lambda field: field.metadata.get("kafka_type") in ("string", "bytes"),
        "widest": lambda field: classify_field(field).is_array,
        "repeated": lambda field: classify_field(field).is_array,
        "densest": lambda field: field.metadata.get("kafka_type") == "records",
    }.get(extreme, lambda field: False)
    found: list[str] = []

    def walk(entity: Any, path: str) -> None:
        for field in fields(entity):
            here = f"{path}/{field.name}"
            if wanted(field):
                found.append(here)
            if field.metadata.get("kafka_type") is None:
                walk(classify_field(field).type_, here)

    walk(entity, "")
    return found


@cache
def dense_batch(count: int, codec: int, flavour: int) -> bytes:
    """Returns a batch of the smallest records, of records with and without a key in turn, or of records with headers.

    These records are the most work per byte.
    """
    now_ms = 1_750_000_000_000
    shapes = (
        (bytes((12, 0, 0, 0, 1, 1, 0)),),
        (bytes((12, 0, 0, 0, 1, 1, 0)), bytes((14, 0, 0, 0, 2, 0, 1, 0))),
        (bytes((20, 0, 0, 0, 1, 1, 4, 0, 1, 0, 1)),),
    )[flavour]
    body = b"".join(shapes) * (count // len(shapes))
    return seal_records(body, count // len(shapes) * len(shapes), (now_ms, now_ms), codec)


class _Message:
    """Writes one message."""

    def __init__(self, generator: Generator, extreme: str, where: str) -> None:
        self._g = generator
        self._dice = generator.dice
        self._extreme = extreme
        self._where = where
        self._resource_type = 2

    # --- structure ----------------------------------------------------------------------------------------------

    def entity(self, entity: Any, path: str) -> bytes:
        flexible = bool(entity.__flexible__)
        out = [self._field(field, f"{path}/{field.name}", flexible) for field in fields(entity) if _untagged(field)]
        if flexible:
            out.append(self._tags(entity, path))
        return b"".join(out)

    def _tags(self, entity: Any, path: str) -> bytes:
        if self._extreme != "tagged" or self._dice.random() < 0.5:
            return b"\0"
        if not path and self._dice.random() < 0.5:
            count = self._dice.choice(self._g.scale.widths)
            return uvarint(count) + b"\x63\0" * count
        data = bytes(self._dice.choice((0, 1, 300, 100_000) if not path else (0, 1)))
        return b"\2\x63" + uvarint(len(data)) + data + b"\x64\0"

    def _field(self, field: Field[Any], path: str, flexible: bool) -> bytes:
        if classify_field(field).is_array:
            return self._array(field, path, flexible)
        if field.metadata.get("kafka_type") is not None:
            return self._value(field, path, flexible)
        if is_optional(field):
            if self._dice.random() < 0.5:
                return b"\xff"
            return b"\1" + self.entity(classify_field(field).type_, path)
        return self.entity(classify_field(field).type_, path)

    def _array(self, field: Field[Any], path: str, flexible: bool) -> bytes:
        here = path == self._where
        if is_optional(field) and not here and self._dice.random() < 0.3:
            return b"\0" if flexible else b"\xff\xff\xff\xff"
        count, distinct = 1, False
        if here and self._extreme in ("widest", "repeated"):
            count, distinct = self._dice.choice(self._g.scale.widths), self._extreme == "widest"
        elif self._extreme in ("nested", "parked"):
            count, distinct = self._dice.choice((1, 3, 20, 60)), self._dice.random() < 0.5
        elements = self._elements(field, path, flexible, count, distinct)
        return (uvarint(len(elements) + 1) if flexible else len(elements).to_bytes(4, "big")) + b"".join(elements)

    def _elements(self, field: Field[Any], path: str, flexible: bool, count: int, distinct: bool) -> list[bytes]:
        if field.metadata.get("kafka_type") is not None:
            element = self._value(field, path, flexible, serial=distinct)
        else:
            element = self.entity(classify_field(field).type_, path)
        count = max(min(count, MOST_BYTES // len(element)), 1)
        if not distinct or (SERIAL not in element and NUMBER not in element):
            return [_numbered(element, self._g.serial(), 0)] * count
        first = self._g.serial() * 1000
        return [_numbered(element, first + number, number) for number in range(count)]

    # --- values -------------------------------------------------------------------------------------------------

    def _value(self, field: Field[Any], path: str, flexible: bool, *, serial: bool = False) -> bytes:
        kafka_type, name = field.metadata["kafka_type"], field.name
        if kafka_type in ("string", "bytes", "records"):
            data: bytes | None
            if kafka_type == "string":
                data = self.text_of(field, path, serial)
            elif kafka_type == "bytes":
                data = self._bytes(path)
            else:
                data = self._records()
            size = 2 if kafka_type == "string" else 4
            return _sized(data, flexible, size)
        if kafka_type == "uuid":
            ids = (*self._g.known.topic_ids, uuid.UUID(int=self._dice.getrandbits(128)), uuid.UUID(int=0))
            return self._dice.choice(ids).bytes
        if kafka_type == "bool":
            return bytes([self._dice.random() < 0.5])
        if kafka_type == "float64":
            return struct.pack(">d", 1e9)  # a quota that throttles no client, so that the test is not delayed
        code = {
            "int8": "b",
            "int16": "h",
            "uint16": "H",
            "int32": "i",
            "int64": "q",
            "error_code": "h",
            "timedelta_i32": "i",
            "timedelta_i64": "q",
            "datetime_i64": "q",
        }
        if name in _PARTITIONS and kafka_type == "int32" and (serial or self._dice.random() < 0.6):
            return NUMBER
        bits = 8 * struct.calcsize(code[kafka_type])
        value = self._number(name, (1 << (bits - 1)) - 1)
        if kafka_type == "uint16" and value < 0:
            value += 1 << 16
        return struct.pack(f">{code[kafka_type]}", value)

    def _number(self, name: str, most: int) -> int:
        dice = self._dice
        if name == "resource_type":
            self._resource_type = dice.choice((2, 2, 2, 4, 8, 16, 32))
            return self._resource_type
        if self._extreme == "parked" and name in _PARKED:
            return _PARKED[name]
        if name in _CHOICES:
            return min(dice.choice(_CHOICES[name]), most)
        if name == "num_partitions":
            return dice.choice(self._g.scale.partitions)
        if name == "count":
            return dice.choice((1, 4, 20, 20_000))
        if name in _PARTITIONS:
            return dice.choice((0, 1, 3, most))
        if name.endswith("epoch"):
            return dice.choice((-1, -1, 0, 0, 1))
        return dice.choice((0, 0, 1, -1, most))

    def _bytes(self, path: str) -> bytes:
        if path == self._where:
            return bytes(self._dice.choice((LONGEST, 200_000, 900_000)))
        topics = [name.encode() for name in self._g.known.topics] * self._dice.choice((1, 1, 500))
        rows = b"".join(len(name).to_bytes(2, "big") + name for name in topics)
        return b"\0\0" + len(topics).to_bytes(4, "big") + rows + b"\xff\xff\xff\xff"

    def _records(self) -> bytes | None:
        if self._extreme != "densest":
            return dense_batch(self._dice.choice(self._g.scale.usual_records), NONE, 0)
        count = self._dice.choice(self._g.scale.records)
        codec = self._dice.choice((NONE, GZIP, SNAPPY, LZ4, ZSTD) if count <= 100_000 else (GZIP, LZ4, ZSTD))
        return dense_batch(max(count, 2), codec, self._dice.randrange(3))

    def text_of(self, field: Field[Any], path: str, serial: bool) -> bytes | None:
        if path == self._where and self._extreme == "longest":
            return self._long_text(field.name)
        if is_optional(field) and not classify_field(field).is_array and self._dice.random() < 0.4:
            return None
        known = self._known_text(field.name, path)
        if serial or not known or (field.name not in _FIXED and self._dice.random() < 0.3):
            return b"new-" + self._g.tag.encode() + b"-" + SERIAL
        return self._dice.choice(known).encode()

    def _long_text(self, name: str) -> bytes:
        if name == "subscribed_topic_regex":
            return self._dice.choice(PATTERNS).encode()[:LONGEST]
        text = self._dice.choice(_TEXTS).encode()
        length = self._dice.choice((249, 250, 4097, LONGEST, LONGEST, LONGEST))
        return (text * (length // len(text) + 1))[: length // len(text) * len(text)]

    def _known_text(self, name: str, path: str) -> tuple[str, ...]:
        known = self._g.known
        if path.endswith(("configs/name", "configuration_keys")):
            return _SETTINGS.get(self._resource_type, TOPIC_SETTINGS)
        if path.endswith("ops/key"):
            return QUOTAS
        if name == "resource_name":
            return {2: known.topics, 4: ("1", ""), 32: known.groups}.get(self._resource_type, ("a", ""))
        if name in _FIXED:
            return _FIXED[name]
        if "group" in name or name in ("key", "coordinator_keys"):
            return known.groups
        if "topic" in path.lower() and name in ("name", "topic", "topic_name", "topic_names", "subscribed_topic_names"):
            return known.topics
        return ()


_PARTITIONS = {"partition", "partition_index", "index", "partitions", "partition_indexes"}
_FIXED: dict[str, tuple[str, ...]] = {
    "protocol_type": ("consumer",), "protocol_name": ("range",), "member_id": ("",),
    "server_assignor": ("uniform", "range"),
    "entity_type": ("client-id", "user"), "value": ("1", "86400000", "1048576", "compact", "-1"),
    "client_software_name": ("a",), "client_software_version": ("1",), "feature": ("metadata.version",),
    "states_filter": ("Stable", "Empty", "nonsense"), "types_filter": ("classic", "consumer"),
    "subscribed_topic_regex": ("known.*", "a(b|c)*d"), "path": ("/nowhere",),
}  # fmt: skip
_PARKED = {"max_wait": 10_000, "min_bytes": 1 << 30, "rebalance_timeout": 300_000, "session_timeout": 300_000}
"""Values that make a request wait.

The broker does not read from a connection with 1,000 such requests. So it notices that the client has disconnected only
when it has replied to them.
"""
_CHOICES: dict[str, tuple[int, ...]] = {
    "max_wait": (0, 0, 20, 100), "timeout": (0, 100, 1000), "acks": (-1, 1), "min_bytes": (0, 1, 1 << 30),
    "max_bytes": (1, 50 << 20, 0x7FFFFFFF), "session_timeout": (6000, 10_000, 300_000, 1),
    "rebalance_timeout": (1, 100, 300),
    "session_id": (0,), "session_epoch": (-1, 0), "isolation_level": (0, 1), "replication_factor": (1, -1),
    "key_type": (0, 0, 0, 1), "replica_id": (-1,),
    "timestamp": (-1, -2, -3, -4, 0, 1_750_000_000_000, 1_750_000_000_001),
    "config_operation": (0, 1, 2, 3), "match_type": (0, 1, 2), "endpoint_type": (1, 2), "election_type": (0, 1),
    "response_partition_limit": (1, 2000, 0x7FFFFFFF), "replicas": (1,), "broker_ids": (1,), "retention_time": (-1,),
    "fetch_offset": (0, 0, 1, 5), "offset": (0, -1, 1), "upgrade_type": (1, 2, 3), "resource_types": (2, 4, 8, 16, 32),
    "max_version_level": (0, 1), "member_epoch": (0, 0, -1, 1), "partition_max_bytes": (1, 1 << 20, 0x7FFFFFFF),
}  # fmt: skip


def _untagged(field: Field[Any]) -> bool:
    return get_field_tag(field) is None


def _sized(data: bytes | None, flexible: bool, size: int) -> bytes:
    if flexible:
        return b"\0" if data is None else uvarint(len(data) + 1) + data
    return (-1 if data is None else len(data)).to_bytes(size, "big", signed=True) + (data or b"")


def _numbered(element: bytes, serial: int, number: int) -> bytes:
    return element.replace(SERIAL, b"%08d" % (serial % 100_000_000)).replace(NUMBER, number.to_bytes(4, "big"))


def packed(request: Request, correlation_id: int, client_id: str = "hostile") -> bytes:
    return frames.encode_request(request.api_key, request.version, correlation_id, client_id, request.body)
