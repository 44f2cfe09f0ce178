"""The first records of a test's topic: from the forms that tests write to Kafka records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek.client.producer import Producer

_FIELDS = ("value", "key", "headers", "partition", "timestamp")


def send_records(bootstrap_servers: str, topic: str, records: Iterable[object]) -> None:
    """Sends records and returns when the broker has acknowledged all of them.

    A record is its value, or a pair of key and value, or a mapping with any of ``value``, ``key``, ``headers``,
    ``partition`` and ``timestamp`` (in ms). Keys, values and the values of headers are bytes, texts (sent as UTF-8) or
    None. Headers are a mapping, or a list of pairs.

    Raises TypeError for any other record, with its place in the list, and for one value in place of a list; and the
    errors of ``Producer``.
    """
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise TypeError(f"records is a list of records, not {records!r}: write records=[{records!r}]")
    errors: list[BaseException] = []

    def delivered(_: object, error: BaseException | None) -> None:
        if error is not None:
            errors.append(error)

    fields = [_fields(place, record) for place, record in enumerate(records)]
    if not fields:
        return
    with Producer(bootstrap_servers) as producer:
        for one in fields:
            producer.send(topic, **one, on_delivery=delivered)
        producer.flush()
    if errors:
        raise errors[0]


def _fields(place: int, record: object) -> dict[str, Any]:
    if isinstance(record, Mapping):
        unknown = [name for name in record if name not in _FIELDS]
        if unknown:
            raise TypeError(f"record {place} has the field {unknown[0]!r}; the fields are {', '.join(_FIELDS)}")
        fields = dict(record)
    elif isinstance(record, tuple) and len(record) == 2:
        fields = {"key": record[0], "value": record[1]}
    else:
        fields = {"value": record}
    for name in ("key", "value"):
        if name in fields:
            fields[name] = _data(place, name, fields[name])
    if fields.get("headers") is not None:
        fields["headers"] = _headers(place, fields["headers"])
    return fields


def _headers(place: int, given: object) -> list[tuple[str, bytes | None]]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, list | tuple) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in pairs):
        raise TypeError(f"record {place}: the headers are a mapping or a list of pairs, not {given!r}")
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"record {place}: the name of a header is a text, not {name!r}")
    return [(name, _data(place, f"header {name!r}", value)) for name, value in pairs]


def _data(place: int, name: str, given: object) -> bytes | None:
    if isinstance(given, str):
        return given.encode()
    if given is None or isinstance(given, bytes):
        return given
    raise TypeError(f"record {place}: the {name} is bytes, a text or None, not {type(given).__name__}")
