"""Settings of a client connection, most with Kafka's names and defaults."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from odradek.client.other_names import SETTINGS
from odradek.client.settings.java_settings import effective
from odradek.core.errors import ConfigError
from odradek.net.transports import RECEIVE_BYTES, Address
from odradek.security.client_security import NO_SECURITY, ClientSecurity
from odradek.security.protocols import PLAINTEXT, PROTOCOLS
from odradek.text.units import plain_number

SECURITY = "security"
"""The field of ``ClientConfig`` with all settings of TLS and SASL."""
FETCH_OVERHEAD_BYTES = 1 << 20
"""The maximum size of a fetch reply without its records."""

_SLIP = 0.9
"""A name this similar to a known one is a typing error, not a setting of another client."""
# Settings of Java's clients without a counterpart here, by the prefix of their names.
_NOT_HERE = {
    "sasl_": "it has no effect without security.protocol: set it to SASL_SSL or SASL_PLAINTEXT, or leave both out",
    "ssl_": "it has no effect without security.protocol: set it to SSL or SASL_SSL, or leave both out",
    "security_providers": "security providers of Java are not supported: leave it out",
    "key_deserializer": "keys are returned as bytes: leave it out",
    "value_deserializer": "values are returned as bytes: leave it out",
    "key_serializer": "keys are passed as bytes: leave it out",
    "value_serializer": "values are passed as bytes: leave it out",
    "transactional_id": "this client has no transactions: use odradek.Producer in Python",
    "transaction_timeout_ms": "this client has no transactions: use odradek.Producer in Python",
    "enable_auto_offset_store": "leave it out: a poll commits the records of earlier polls, or you commit",
    "interceptor_classes": "interceptors are not supported",
    "metric": "metrics reporters are not supported",
    "enable_metrics_push": "the client pushes no metrics to the broker: leave it out",
    "auto_include_jmx_reporter": "JMX is not supported: leave it out",
    "receive_buffer_bytes": "the operating system sets the size of socket buffers: leave it out",
    "send_buffer_bytes": "the operating system sets the size of socket buffers: leave it out",
    "connections_max_idle_ms": "connections stay open until the client is closed: leave it out",
    "reconnect_backoff": "retry_backoff_ms and retry_backoff_max_ms apply to connections, too",
    "socket_connection_setup_timeout_max_ms": "socket_connection_setup_timeout_ms applies to every attempt",
    "client_dns_lookup": "the client tries all addresses of a host name: leave it out",
    "metadata_recovery": "a client without a reachable broker uses bootstrap_servers again: leave it out",
    "metadata_max_idle_ms": "the client looks topics up when it uses them: leave it out",
    "exclude_internal_topics": "patterns do not match internal topics",
    "internal_": "the setting is internal to Java's client: leave it out",
    "share_": "share consumers are not supported",
    "partitioner_class": "the partitioner is that of Java's default; send(partition=…) sets a partition",
    "partitioner_": "the partitioner is that of Java's default: leave it out",
    "compression_gzip_level": "the compression level cannot be set",
    "compression_lz4_level": "the compression level cannot be set",
    "compression_zstd_level": "the compression level cannot be set",
}


def unknown_setting(name: str, known: Iterable[str]) -> ConfigError:
    """Returns the error for a setting that is not in ``known``, with a reason or a similar known name if there is one.

    ``name`` may have dots or underscores."""
    key = name.replace(".", "_")
    known = [*known, "security_protocol"]
    near = difflib.get_close_matches(key, known, 1)
    if near and difflib.SequenceMatcher(None, key, near[0]).ratio() > _SLIP:
        return ConfigError(f"unknown setting {name}; did you mean {_with_dots_of(name, near[0])}?")
    for start, reason in (SETTINGS | _NOT_HERE).items():
        if key.startswith(start):
            return ConfigError(f"setting {name}: {reason}")
    listed = "docs/reference/client-settings.md lists all settings"
    return ConfigError(
        f"unknown setting {name}; " + (f"did you mean {_with_dots_of(name, near[0])}?" if near else listed)
    )


def _with_dots_of(name: str, known: str) -> str:
    return known.replace("_", ".") if "." in name else known


_IPV6 = re.compile(r"[0-9a-fA-F:.]+(%\S+)?")
_NO_HOST = re.compile(r"[\s;,/@?#]")


def parse_address(text: str, protocol: str = PLAINTEXT) -> Address:
    """Reads ``host:port``, ``[v6]:port`` or ``PROTOCOL://host:port``.

    Raises ConfigError, also for another protocol than that of ``security.protocol``."""
    rest = text.strip()
    scheme, separator, after = rest.partition("://")
    if separator:
        if scheme.upper() not in PROTOCOLS:
            raise ConfigError(f"bootstrap server {text!r}: expected HOST:PORT without {scheme}://")
        if scheme.upper() != protocol:
            more = f"; set security.protocol={scheme.upper()}"
            raise ConfigError(f"bootstrap server {text!r}: the protocol of this client is {protocol}{more}")
        rest = after
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if host and port.isascii() and port.isdigit() and not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap server {text!r}: a port is a number from 1 to 65535")
    if not host or not port.isascii() or not port.isdigit():
        raise ConfigError(f"bootstrap server {text!r}: expected HOST:PORT, for example 127.0.0.1:9092")
    if (":" in host and _IPV6.fullmatch(host) is None) or _NO_HOST.search(host):
        raise ConfigError(f"bootstrap server {text!r}: expected HOST:PORT, and commas between several")
    return Address(host, int(port))


def parse_addresses(text: str, protocol: str = PLAINTEXT) -> tuple[Address, ...]:
    """Reads one or more comma-separated addresses. Raises ConfigError."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError("bootstrap servers: at least one HOST:PORT is needed")
    return tuple(dict.fromkeys(parse_address(part, protocol) for part in parts))


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """The settings of every client's connections and requests, with one default for all. Times in milliseconds.

    ``request_timeout_ms`` limits one request on one connection, ``default_api_timeout_ms`` a whole call with its
    retries. ``bootstrap_timeout_ms`` limits the time until the first connection opens (0: each address gets one
    attempt). A larger value waits for a broker that starts later; a log line says so within a second.
    ``receive_message_max_bytes``, a setting of librdkafka, limits a reply. Its default grows with the setting that
    limits a fetch.
    """

    bootstrap_servers: str
    client_id: str = "odradek"
    client_rack: str = ""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    bootstrap_timeout_ms: int = 5_000
    socket_connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    receive_message_max_bytes: int = RECEIVE_BYTES
    security: ClientSecurity = NO_SECURITY


@dataclass(frozen=True, slots=True)
class ClientConfig(ConnectionConfig):
    """The settings of a client. Hashable and picklable.

    ``allow_auto_create_topics``: a broker with auto.create.topics.enable creates a topic that is looked up. None means
    true for a producer, as in Java, and false for every other client.
    """

    max_partition_fetch_bytes: int = 4_194_304
    allow_auto_create_topics: bool | None = None

    def __post_init__(self) -> None:
        parse_addresses(self.bootstrap_servers, self.security.protocol)
        for field in fields(self):
            if field.type != "int":
                continue
            check_whole(field.name, getattr(self, field.name), 0)
        if self.request_timeout_ms == 0 or self.max_partition_fetch_bytes == 0:
            raise ConfigError("request_timeout_ms and max_partition_fetch_bytes must be at least 1")
        _ = self.max_reply_bytes

    @property
    def max_reply_bytes(self) -> int:
        """The maximum size of a reply. Raises ConfigError."""
        return reply_bytes(self.receive_message_max_bytes, "max_partition_fetch_bytes", self.max_partition_fetch_bytes)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of ``bootstrap_servers``, without duplicates."""
        return parse_addresses(self.bootstrap_servers, self.security.protocol)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ClientConfig:
        """Makes a config from Kafka's names. Raises the errors of ``read_settings``."""
        kinds = {field.name: str(field.type) for field in fields(cls) if field.name != SECURITY}
        return cls(**read_settings(settings, kinds, convert))


def read_settings(
    settings: Mapping[str, object],
    kinds: Mapping[str, str],
    as_value: Callable[[str, str, Any], object],
    twice: str = "",
) -> dict[str, Any]:
    """Returns the values of fields from Kafka's names, with dots or underscores; values are text or typed.

    ``kinds``: the types of the fields, without ``security``. ``as_value``: makes a value from name, type and text.
    ``twice``: what a setting that is given twice may mean. Raises ConfigError with the setting's name. The error for an
    unknown name has a reason or a similar known name, if there is one.
    """
    security, others = take_security(settings)
    values: dict[str, Any] = {SECURITY: security}
    for name, value in effective(others, kinds).items():
        key = name.replace(".", "_")
        if key not in kinds:
            raise unknown_setting(name, kinds)
        if key in values:
            raise ConfigError(f"{name} is set twice{twice if key == 'bootstrap_servers' else ''}")
        if key == "bootstrap_servers" and isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        values[key] = as_value(name, kinds[key], value)
    if "bootstrap_servers" not in values:
        raise ConfigError("bootstrap_servers is required, for example 127.0.0.1:9092")
    return values


def take_security(settings: Mapping[str, object]) -> tuple[ClientSecurity, dict[str, Any]]:
    """Splits settings into those of TLS and SASL and the others. Raises ConfigError.

    ``security`` may hold a ClientSecurity; then no other setting of security is allowed."""
    given = {name: value for name, value in settings.items() if name != SECURITY}
    is_secure = any(name.replace(".", "_") == "security_protocol" for name in given)
    present = settings.get(SECURITY)
    if not is_secure:
        return present if isinstance(present, ClientSecurity) else NO_SECURITY, given
    from odradek.client.settings.security_settings import split_security

    security, others = split_security(given)
    if isinstance(present, ClientSecurity) and present not in (NO_SECURITY, security):
        raise ConfigError("security.protocol is set twice")
    return security, others


def reply_bytes(most: int, fetching: str, fetch_bytes: int) -> int:
    """Returns the maximum size of a reply: ``most``, or the size of a full fetch reply if that is larger.

    The setting ``fetching`` limits a fetch to ``fetch_bytes``. A small fetch limit does not lower ``most``: a broker
    sends the first batch even if that batch alone exceeds the limit, since no client could read past it otherwise.
    Raises ConfigError if ``most`` is not the default and is smaller than a full fetch reply.
    """
    least = fetch_bytes + FETCH_OVERHEAD_BYTES
    if most < least and most != RECEIVE_BYTES:
        raise ConfigError(
            f"receive_message_max_bytes: expected at least {fetching} + {FETCH_OVERHEAD_BYTES:,} = {least}, not {most}"
        )
    return max(most, least)


def check_whole(name: str, value: object, least: int) -> None:
    """Raises ConfigError unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, not {value!r}")


def convert(name: str, kind: str, value: object) -> object:
    """Converts a setting's value, text or typed, to a str, bool or int (``kind``). Raises ConfigError."""
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
        raise ConfigError(f"{name}: expected a whole number, not {value!r}{plain_number(name, value)}") from None


def as_config(config: ClientConfig | Mapping[str, object] | Sequence[str] | str, **settings: object) -> ClientConfig:
    """Makes a config from a config, from ``host:port[,host:port]``, from a list of addresses or from a mapping.

    ``settings`` replace values of a ClientConfig, and add to the other forms. Raises ConfigError."""
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
