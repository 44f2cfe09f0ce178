"""Runs many members of one group in one process and one event loop.

Usage: ``python group_chaos_members.py BOOTSTRAP TOPIC GROUP SESSION_MS``.

Reads one command per line: ``start NAME odradek|aiokafka``, or ``stop NAME``, which closes the consumer. The end of the
input stops all members. Prints one event per line:

- ``read NAME PARTITION FIRST NEXT``: a member has read the offsets from FIRST to NEXT - 1; a commit of NEXT follows.
- ``refused NAME ERROR``: the commit failed.
- ``failed NAME REASON``: the member ended with an error that no consumer should raise.
- ``left NAME``: the member has ended.

Each line is written at once, so that kill -9 loses no line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError as AioKafkaError

from odradek.aio import Consumer
from odradek.client.group.errors import CommitFailed
from odradek.core.errors import OdradekError

BOOTSTRAP, TOPIC, GROUP = sys.argv[1:4]
SESSION_MS = int(sys.argv[4])
REBALANCE_MS = 20_000


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _settings(name: str) -> dict[str, Any]:
    """The settings of a member. Both clients use the same names for them."""
    return {
        "bootstrap_servers": BOOTSTRAP,
        "group_id": GROUP,
        "client_id": name,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": 500,
    }


async def odradek_member(name: str, stop: asyncio.Event) -> None:
    consumer = Consumer(_settings(name), max_poll_interval_ms=REBALANCE_MS, partition_assignment_strategy="range")
    await consumer.subscribe([TOPIC])
    while not stop.is_set():
        polled = await consumer.poll(0.2)
        for tp, batches in polled.items():
            report("read", name, tp.partition, batches[0]["offset"][0].as_py(), polled.next_offsets[tp].offset)
        if polled:
            try:
                await consumer.commit(polled.next_offsets, timeout=5.0)
            except (CommitFailed, OdradekError) as error:  # the next owner of the partition reads the records again
                report("refused", name, type(error).__name__)
    await consumer.close()


async def aiokafka_member(name: str, stop: asyncio.Event) -> None:
    while True:
        consumer = _aiokafka_consumer(name)
        try:
            await consumer.start()
            break
        except AioKafkaError:  # aiokafka's consumer starts only when a broker is available
            await consumer.stop()
            await asyncio.sleep(0.2)
    while not stop.is_set():
        found = await consumer.getmany(timeout_ms=200)
        offsets = {}
        for tp, rows in found.items():
            report("read", name, tp.partition, rows[0].offset, rows[-1].offset + 1)
            offsets[AioTopicPartition(tp.topic, tp.partition)] = rows[-1].offset + 1
        if offsets:
            try:
                await consumer.commit(offsets)
            except (TimeoutError, AioKafkaError) as error:
                report("refused", name, type(error).__name__)
    await consumer.stop()


def _aiokafka_consumer(name: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        TOPIC,
        **_settings(name),
        rebalance_timeout_ms=REBALANCE_MS,
        partition_assignment_strategy=(RangePartitionAssignor,),
        retry_backoff_ms=100,
    )


KINDS = {"odradek": odradek_member, "aiokafka": aiokafka_member}


async def live(kind: str, name: str, stop: asyncio.Event) -> None:
    try:
        await KINDS[kind](name, stop)
    except Exception:
        report("failed", name, traceback.format_exc().replace("\n", " | "))
    report("left", name)


async def main() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    members: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
    while line := (await reader.readline()).decode():
        command, name, *rest = line.split()
        if command == "start":
            stop = asyncio.Event()
            members[name] = (asyncio.create_task(live(rest[0], name, stop)), stop)
        else:
            members[name][1].set()
    for _, stop in members.values():
        stop.set()
    await asyncio.gather(*(task for task, _ in members.values()))


logging.disable(logging.WARNING)  # rebalances, refused commits and lost connections are expected here
asyncio.run(main())
