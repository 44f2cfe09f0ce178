"""The options and columns of ``write.format("odradek")``: those of Spark's Kafka sink, and a few more. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from odradek.client.config import SECURITY, ClientConfig
from odradek.client.producer import ProducerConfig
from odradek.core.errors import ConfigError
from odradek.spark.options import check_names, client_config, flag

KNOWN = {
    name.lower(): name
    for name in (
        "topic",
        "includeHeaders",  # accepted, as in Spark's sink: headers are written whenever the column exists
        "includeTimestamp",
        "strictOptions",
        "checkpointLocation",  # Spark's own option, which Spark also passes to the sink
    )
}
REFUSED = {
    "key.serializer": "keys are written as bytes; encode them with DataFrame operations",
    "value.serializer": "values are written as bytes; encode them with DataFrame operations",
    "interceptor.classes": "interceptors could change what is written",
    "transactional.id": "the sink writes at least once, without transactions; in a streaming query, "
    "foreachBatch(odradek.spark.transactional_writer(…)) writes each micro-batch in one transaction",
}
# Settings of Kafka's producer without effect here. They are accepted, so that a query only has to change its format.
WITHOUT_EFFECT = frozenset({
    "client.dns.lookup", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level",
    "connections.max.idle.ms", "enable.metrics.push", "max.in.flight.requests.per.connection",
    "metadata.max.idle.ms", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
    "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms", "receive.buffer.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms", "transaction.timeout.ms",
})  # fmt: skip
# The default of the broker's transaction.max.timeout.ms. Many micro-batches take longer than the default of Kafka's
# producer, one minute.
TRANSACTION_TIMEOUT_MS = 900_000
_PRODUCER = {item.name.replace("_", "."): item.type for item in fields(ProducerConfig)}
_HEADERS = "array<struct<key:string,value:binary>>"
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (_HEADERS,),
    "partition": ("int",),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of one write. ``topic``: the topic of all rows; None: the column ``topic`` has it. Hashable."""

    client: ClientConfig
    producer: ProducerConfig
    topic: str | None = None
    include_timestamp: bool = False


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Checks the user's options. Raises ConfigError with the option's name, and the nearest name if it is unknown."""
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, KNOWN, REFUSED, ("kafka.bootstrap.servers", "kafka.compression.type"))
    kafka = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    own = {name: kafka.pop(name) for name in list(kafka) if name in _PRODUCER}
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("topic: no topic given")
    return WriteOptions(
        client=client_config(kafka, WITHOUT_EFFECT, _PRODUCER, strict=flag(options, "strictOptions", True)),
        producer=_producer_config(own),
        topic=None if topic is None else topic.strip(),
        include_timestamp=flag(options, "includeTimestamp", False),
    )


def connection_options(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the connection options of a source, in lower case, for a writer to the same cluster.

    Options of SASL and TLS are included. A reader's
    ``kafka.allow.auto.create.topics`` is not included, because it does not concern a writer.
    """
    known = {f"kafka.{item.name.replace('_', '.')}" for item in fields(ClientConfig) if item.name != SECURITY}
    known.remove("kafka.allow.auto.create.topics")
    options = {name.lower(): value for name, value in given.items()}
    secure = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
    return {name: value for name, value in options.items() if name in known or name.startswith(secure)}


def _producer_config(given: Mapping[str, str]) -> ProducerConfig:
    values: dict[str, str | int | bool] = {}
    for name, text in given.items():
        kind, field = _PRODUCER[name], name.replace(".", "_")
        if kind == "bool":
            values[field] = flag({field: text}, field, True)
        elif kind == "int":
            if not text.strip().isdigit():
                raise ConfigError(f"kafka.{name}: expected a whole number of at least 0, not {text!r}")
            values[field] = int(text)
        else:
            values[field] = text.strip()
    if values.get("acks", "all") not in ("all", "-1") and "enable_idempotence" not in values:
        values["enable_idempotence"] = False  # as in Kafka's producer
    return ProducerConfig(**values)  # type: ignore[arg-type]


def check_columns(types: Mapping[str, str], options: WriteOptions) -> None:
    """Checks that rows with these columns (name → Spark's type as text) can be written. Raises ConfigError.

    Columns with other names are ignored, as in Spark's sink.
    """
    if "value" not in types:
        near = difflib.get_close_matches("value", types, 1)
        raise ConfigError(
            f"required attribute 'value' not found among {', '.join(types) or 'no columns'}"
            + (f"; is it {near[0]!r}? Names are compared with case" if near else "")
        )
    if options.topic is None and "topic" not in types:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic"
        )
    wanted = dict(COLUMN_TYPES)
    if options.topic is not None:
        del wanted["topic"]  # the option has precedence, so the column's type does not matter
    if options.include_timestamp:
        wanted["timestamp"] = ("timestamp",)
        if "timestamp" not in types:
            raise ConfigError("includeTimestamp=true needs a column 'timestamp'")
    for name, allowed in wanted.items():
        if name in types and types[name] not in allowed:
            raise ConfigError(
                f"{name} attribute unsupported type {types[name]}. {name} must be a(n) {' or '.join(allowed)}"
            )


def columns_to_send(names: list[str], options: WriteOptions) -> list[str]:
    """Returns the existing columns that become parts of records."""
    wanted = ["key", "value", "headers", "partition", *(["timestamp"] if options.include_timestamp else [])]
    return [name for name in wanted if name in names]
