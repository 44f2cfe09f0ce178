"""The topics that benchmarks read. Each is filled once, and used by all cases and, with ``--directory``, by later runs.

Record ``n`` has a key of eight bytes and a timestamp ``step_ms`` after that of record ``n - 1``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from bench.workload import create_topic
from odradek.client.admin import Admin
from odradek.client.producer import Producer
from odradek.core.ids import LATEST

PARTITIONS = 4
T0 = 1_700_000_000_000
BATCH_ROWS = 10_000
BlockValues = Callable[[int], pa.Array]
"""Returns the values of a block of ``BATCH_ROWS`` records, by the block's number."""

JSON_SCHEMA = "id bigint, user string, action string, at bigint, price double, paid boolean"
JSON_BYTES = 100


def event_values(size: int, *, are_distinct: bool = False) -> BlockValues:
    """JSON values of ``size`` bytes that compress like typical events.

    All blocks have the same ``BATCH_ROWS`` values. With ``are_distinct``, each value also has the block's number.
    """
    rows = []
    for n in range(BATCH_ROWS):
        number = n * 2_654_435_761 % (1 << 32)
        head = f'{{"id":{number},"user":"user-{number % 9973}","action":"{["view", "buy", "leave"][n % 3]}","at":'
        rows.append((head + f"{T0 + n}" + ',"note":"' + f"{number:x}" * 200)[: size - 10].encode() + b'"}')
    same = pa.array(rows, pa.binary())
    if not are_distinct:
        return lambda block: same
    return lambda block: pa.array([row[:-10] + b"%08d" % block + row[-2:] for row in rows], pa.binary())


def json_values(block: int) -> pa.Array:
    """JSON objects of six fields (``JSON_SCHEMA``) and ``JSON_BYTES`` bytes, different in each block."""
    rows = []
    for n in range(BATCH_ROWS):
        number = (block * BATCH_ROWS + n) * 2_654_435_761 % (1 << 32)
        action, paid = ("view", "buy", "leave")[n % 3], ("true", "false")[n % 2]
        head = f'{{"id":{number},"action":"{action}","at":{T0 + n},"price":{number % 100_000 / 100},"paid":{paid},'
        user = f'"user":"user-{number % 9973}'
        rows.append((head + user + "x" * JSON_BYTES)[: JSON_BYTES - 2] + '"}')
    return pa.array(rows, pa.string()).cast(pa.binary())


def random_values(size: int) -> BlockValues:
    """Values of ``size`` bytes that do not compress, different in each block."""
    ends = pa.py_buffer(np.arange(0, (BATCH_ROWS + 1) * size, size, dtype=np.int32))

    def values(block: int) -> pa.Array:
        data = pa.py_buffer(np.random.default_rng(block).bytes(BATCH_ROWS * size))
        return pa.Array.from_buffers(pa.binary(), BATCH_ROWS, [None, ends, data])

    return values


def fill(bootstrap: str, topic: str, rows: int, values: BlockValues, codec: str, step_ms: float) -> None:
    """Sends ``rows`` records. Record ``n`` goes to partition ``n % PARTITIONS``, with time ``T0 + step_ms * n``."""
    keys = [b"%08d" % (n % 5000) for n in range(BATCH_ROWS)]
    numbers = np.arange(BATCH_ROWS)
    columns: dict[str, Any] = {"key": pa.array(keys, pa.binary())}
    columns["partition"] = pa.array(numbers % PARTITIONS, pa.int32())
    with Producer(bootstrap, compression_type=codec, buffer_memory=256 << 20) as producer:
        for first in range(0, rows, BATCH_ROWS):
            columns["value"] = values(first // BATCH_ROWS)
            times = T0 + ((first + numbers) * step_ms).astype(np.int64)
            columns["timestamp"] = pa.array(times, pa.timestamp("ms", tz="UTC"))
            producer.send_batch(topic, pa.RecordBatch.from_pydict(columns).slice(0, min(BATCH_ROWS, rows - first)))
        producer.flush()


def held(admin: Admin, topic: str) -> int:
    """The sum of the end offsets of a topic's partitions."""
    partitions = admin.partitions(topic)
    return sum(listed.offset for listed in admin.list_offsets(dict.fromkeys(partitions, LATEST)).values())


def filled(
    bootstrap: str, admin: Admin, topic: str, rows: int, values: BlockValues, codec: str, step_ms: float = 0.1
) -> str:
    """Creates and fills a topic of ``rows`` records unless an earlier run has done so. Returns the topic's name.

    Raises RuntimeError if the topic has another number of records.
    """
    topic = f"{topic}-{rows}"
    if topic not in admin.topics():
        create_topic(bootstrap, topic, PARTITIONS, {"retention.ms": "-1"})
        fill(bootstrap, topic, rows, values, codec, step_ms)
    if (found := held(admin, topic)) != rows:
        raise RuntimeError(f"topic {topic} holds {found} records instead of {rows}: remove the directory")
    return topic
