"""The settings of producers, with Kafka's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from odradek.batches.compression import CODES
from odradek.client.config import SECURITY, ClientConfig, as_config, check_whole, take_security, unknown_setting
from odradek.client.producer.accumulator import MAX_IN_FLIGHT
from odradek.client.settings.java_settings import effective
from odradek.core.errors import ConfigError
from odradek.security.client_security import NO_SECURITY
from odradek.text.units import plain_number

_ACKS = {"all": -1, -1: -1, "-1": -1, 1: 1, "1": 1, 0: 0, "0": 0}
_NUMBERS = ("batch_size", "linger_ms", "retries", "delivery_timeout_ms", "max_block_ms", "buffer_memory",
            "max_in_flight_requests_per_connection", "max_request_size", "transaction_timeout_ms")  # fmt: skip
_POSITIVE = ("delivery_timeout_ms", "transaction_timeout_ms")


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Kafka's names and defaults; times in milliseconds, sizes in bytes. Raises ConfigError.

    With ``acks`` 0 brokers do not reply: records count as delivered when they are written to a connection, and their
    offsets are -1. ``retries`` limits how often a batch is sent again within ``delivery_timeout_ms``.
    ``max_in_flight_requests_per_connection`` limits the batches of one partition that are in flight.

    ``transactional_id`` makes the producer transactional; the broker aborts a transaction that is open for
    ``transaction_timeout_ms``. Such a producer is idempotent.
    """

    acks: str | int = "all"
    enable_idempotence: bool = True
    compression_type: str = "none"
    batch_size: int = 16_384
    linger_ms: int = 5
    retries: int = 2_147_483_647
    delivery_timeout_ms: int = 120_000
    max_in_flight_requests_per_connection: int = 5
    max_block_ms: int = 60_000
    buffer_memory: int = 33_554_432
    max_request_size: int = 1_048_576
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        if isinstance(self.acks, bool) or not isinstance(self.acks, str | int) or self.acks not in _ACKS:
            raise ConfigError(f"acks: expected all, 1 or 0, not {self.acks!r}")
        if self.enable_idempotence and self.required_acks != -1:
            raise ConfigError(f"acks={self.acks} needs enable_idempotence=False: an idempotent producer needs acks=all")
        self._check_transactional_id()
        if self.compression_type not in CODES:
            raise ConfigError(f"compression_type {self.compression_type!r}: one of {', '.join(CODES)}")
        for name in _NUMBERS:
            check_whole(name, getattr(self, name), 1 if name in _POSITIVE else 0)
        in_flight = self.max_in_flight_requests_per_connection
        if not 1 <= in_flight <= MAX_IN_FLIGHT:
            raise ConfigError(f"max_in_flight_requests_per_connection: expected 1 to {MAX_IN_FLIGHT}, not {in_flight}")

    def _check_transactional_id(self) -> None:
        given: object = self.transactional_id
        if given is None:
            return
        if not isinstance(given, str) or not given:
            raise ConfigError(f"transactional_id: expected a name, not {given!r}")
        if not self.enable_idempotence:
            raise ConfigError("transactional_id needs acks=all and enable_idempotence=True: leave both out")

    @property
    def required_acks(self) -> int:
        """The number in the request: -1 for all."""
        return _ACKS[self.acks]


def split_settings(
    servers: ClientConfig | Mapping[str, object] | Sequence[str] | str, settings: Mapping[str, object]
) -> tuple[ProducerConfig, ClientConfig]:
    """Splits settings by Kafka's names, with dots or underscores, into those of the producer and of its connections.

    As in Kafka, ``acks`` other than all disables idempotence unless ``enable_idempotence`` is set. Brokers may create
    missing topics unless ``allow_auto_create_topics`` is false. Raises ConfigError.
    """
    given: dict[str, tuple[str, object]] = {}
    more = servers if isinstance(servers, Mapping) else {}
    for name, value in [*more.items(), *settings.items()]:
        key = name.replace(".", "_")
        if key in given:
            raise ConfigError(f"{name} is set twice")
        given[key] = name, value
    kinds = {one.name: str(one.type) for one in fields(ProducerConfig)}
    own = {key: _convert(*given.pop(key), kinds[key]) for key in list(given) if key in kinds}
    if own.get("acks") in (0, 1, "0", "1"):
        own.setdefault("enable_idempotence", False)
    known = [*kinds, *(one.name for one in fields(ClientConfig) if one.name != SECURITY)]
    security, others = take_security(dict(given.values()))
    rest = effective(others, known)
    for name in rest:
        if name.replace(".", "_") not in known:
            raise unknown_setting(name, known)
    if security != NO_SECURITY:
        rest[SECURITY] = security
    client = ClientConfig.of(rest) if isinstance(servers, Mapping) else as_config(servers, **rest)
    if client.allow_auto_create_topics is None:
        client = replace(client, allow_auto_create_topics=True)
    return ProducerConfig(**own), client


def _convert(name: str, value: object, kind: str) -> Any:
    """Converts a value that is text, as in a file of settings. Raises ConfigError."""
    if not isinstance(value, str) or kind.startswith("str"):
        return value
    if kind == "bool" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind == "int" and value.strip().isdigit():
        return int(value)
    expected = "true or false" if kind == "bool" else "a whole number"
    hint = "" if kind == "bool" else plain_number(name, str(value))
    raise ConfigError(f"{name}: expected {expected}, not {value!r}{hint}")
