"""Settings of a client connection, with Kafka's names and defaults."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from odradek.core.errors import ConfigError
from odradek.net.endpoint import RECEIVE_BYTES, Address

FETCH_OVERHEAD_BYTES = 1 << 20
"""What a fetch's reply may hold beside records."""

# Settings of Java's clients that have no counterpart here, by how their names begin.
_NOT_HERE = {
    "security_protocol": "only PLAINTEXT is supported: leave it out",
    "sasl_": "only PLAINTEXT without authentication is supported",
    "ssl_": "only PLAINTEXT is supported",
    "key_deserializer": "keys come as bytes",
    "value_deserializer": "values come as bytes",
    "key_serializer": "keys are given as bytes",
    "value_serializer": "values are given as bytes",
    "transactional_id": "transactions are not supported yet",
    "transaction_timeout_ms": "transactions are not supported yet",
    "interceptor_classes": "there are no interceptors",
    "metric": "there are no metrics reporters",
    "enable_metrics_push": "no metrics are pushed to the broker: leave it out",
    "auto_include_jmx_reporter": "there is no JMX here: leave it out",
    "receive_buffer_bytes": "the system sizes the sockets' buffers: leave it out",
    "send_buffer_bytes": "the system sizes the sockets' buffers: leave it out",
    "connections_max_idle_ms": "connections stay open until the client is closed: leave it out",
    "reconnect_backoff": "retry_backoff_ms and retry_backoff_max_ms hold for connections, too",
    "socket_connection_setup_timeout_max_ms": "socket_connection_setup_timeout_ms holds for every try",
    "client_dns_lookup": "every address that a name stands for is tried: leave it out",
    "metadata_recovery": "who finds no broker any more begins again at bootstrap_servers: leave it out",
    "metadata_max_idle_ms": "topics are looked up when they are used: leave it out",
    "exclude_internal_topics": "patterns leave internal topics out",
    "internal_": "it is internal to Java's client: leave it out",
    "share_": "there are no share consumers",
    "partitioner_class": "partitions are chosen as Java's default does; send(partition=…) chooses another",
    "partitioner_": "partitions are chosen as Java's default does: leave it out",
    "compression_gzip_level": "each codec has one level",
    "compression_lz4_level": "each codec has one level",
    "compression_zstd_level": "each codec has one level",
}


def unknown_setting(name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name, dotted or with underscores, that is not among ``known``: the reason, or the nearest."""
    key = name.replace(".", "_")
    for start, reason in _NOT_HERE.items():
        if key.startswith(start):
            return ConfigError(f"setting {name}: {reason}")
    near = difflib.get_close_matches(key, list(known), 1)
    shown = near[0].replace("_", ".") if near and "." in name else "".join(near)
    return ConfigError(f"unknown setting {name}" + (f"; did you mean {shown}?" if shown else ""))


def parse_address(text: str) -> Address:
    """Reads ``host:port``, ``[v6]:port`` or ``PROTOCOL://host:port``. Raises ConfigError."""
    rest = text.strip()
    scheme, found, after = rest.partition("://")
    if found:
        if scheme.upper() != "PLAINTEXT":
            raise ConfigError(f"bootstrap server {text!r}: only PLAINTEXT listeners are supported")
        rest = after
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap server {text!r}: expected HOST:PORT, for example 127.0.0.1:9092")
    return Address(host, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Reads comma-separated addresses; at least one. Raises ConfigError."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError("bootstrap servers: at least one HOST:PORT is needed")
    return tuple(dict.fromkeys(parse_address(part) for part in parts))


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How to reach a cluster, and for how long to try. Hashable and picklable; times in milliseconds.

    ``request_timeout_ms`` bounds one request on one connection, ``default_api_timeout_ms`` a whole call with its
    retries, ``bootstrap_timeout_ms`` the part of it that may pass until any address answers for the first time
    (0: every address is tried once). ``allow_auto_create_topics`` lets a broker whose auto.create.topics.enable is true
    create a topic that is looked up. None is the client's own default: true for a producer, as in Java, and false for
    every other client.

    ``receive_message_max_bytes``, librdkafka's setting, bounds a reply. Left at its default it grows with what a fetch
    may bring.
    """

    bootstrap_servers: str
    client_id: str = "odradek"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    bootstrap_timeout_ms: int = 60_000
    socket_connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    max_partition_fetch_bytes: int = 4_194_304
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    client_rack: str = ""
    allow_auto_create_topics: bool | None = None
    receive_message_max_bytes: int = RECEIVE_BYTES

    def __post_init__(self) -> None:
        parse_addresses(self.bootstrap_servers)
        for field in fields(self):
            if field.type != "int":
                continue
            check_whole(field.name, getattr(self, field.name), 0)
        if self.request_timeout_ms == 0 or self.max_partition_fetch_bytes == 0:
            raise ConfigError("request_timeout_ms and max_partition_fetch_bytes must be at least 1")
        _ = self.max_reply_bytes

    @property
    def max_reply_bytes(self) -> int:
        """Of any reply. Raises ConfigError."""
        return reply_bytes(self.receive_message_max_bytes, "max_partition_fetch_bytes", self.max_partition_fetch_bytes)

    @property
    def addresses(self) -> tuple[Address, ...]:
        return parse_addresses(self.bootstrap_servers)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ClientConfig:
        """Builds from Kafka's names, dotted or with underscores, values as text or typed.

        Raises ConfigError naming the setting, and the nearest one where the name is unknown.
        """
        kinds = {field.name: field.type for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in settings.items():
            key = name.replace(".", "_")
            if key not in kinds:
                raise unknown_setting(name, kinds)
            if key in values:
                raise ConfigError(f"{name} is set twice")
            if key == "bootstrap_servers" and isinstance(value, list | tuple):
                value = ",".join(map(str, value))
            values[key] = typed(name, str(kinds[key]), value)
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap_servers is required, for example 127.0.0.1:9092")
        return cls(**values)


def reply_bytes(most: int, fetching: str, fetch_bytes: int) -> int:
    """How large a reply may be, where a fetch may bring so many bytes by the setting ``fetching``. Raises ConfigError.

    A broker sends a first batch that is larger than a fetch may bring; without it, no client could read on. So the
    default stays where it is more.
    """
    least = fetch_bytes + FETCH_OVERHEAD_BYTES
    if most < least and most != RECEIVE_BYTES:
        raise ConfigError(
            f"receive_message_max_bytes: expected at least {fetching} and {FETCH_OVERHEAD_BYTES:,} more, so "
            f"{least}, not {most}"
        )
    return max(most, least)


def check_whole(name: str, value: object, least: int) -> None:
    """Raises ConfigError for what is no whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, not {value!r}")


def typed(name: str, kind: str, value: Any) -> Any:
    """A setting's value as a str, bool or int (``kind``), which may have come as text. Raises ConfigError."""
    if kind == "str":
        if not isinstance(value, str):
            raise ConfigError(f"{name}: expected text, not {value!r}")
        return value
    if kind.startswith("bool"):
        if isinstance(value, bool) or (value is None and kind.endswith("None")):
            return value
        if not isinstance(value, str) or value.lower() not in ("true", "false"):
            raise ConfigError(f"{name}: expected true or false, not {value!r}")
        return value.lower() == "true"
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}: expected a whole number, not {value!r}") from None


def as_config(config: ClientConfig | Mapping[str, Any] | Sequence[str] | str, **settings: Any) -> ClientConfig:
    """A config from itself, from ``host:port[,host:port]`` or a list of those, or from a mapping of Kafka's names; with
    settings. Raises ConfigError."""
    if isinstance(config, ClientConfig):
        if settings:
            merged = {field.name: getattr(config, field.name) for field in fields(config)}
            return ClientConfig.of({**merged, **{k.replace(".", "_"): v for k, v in settings.items()}})
        return config
    if isinstance(config, Mapping):
        twice = {name.replace(".", "_") for name in config} & {name.replace(".", "_") for name in settings}
        if twice:
            raise ConfigError(f"{min(twice)} is set twice")
        return ClientConfig.of({**config, **settings})
    return ClientConfig.of({"bootstrap_servers": config, **settings})
