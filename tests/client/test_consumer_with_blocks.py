"""Failed ``with`` blocks, iterations that end early, wrong commits, and a worker that is killed at random moments.

Also the default assignors and lookups of topics.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually

import odradek.aio
from odradek import Admin, Consumer, TopicPartition
from odradek.client import NewTopic
from odradek.client.errors import UnknownTopic
from odradek.client.group.errors import Wakeup

QUICK = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "default_api_timeout_ms": 20_000}


@pytest.fixture
def ten(admin: Admin, publish: Any, topic: str) -> TopicPartition:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 10})
    return TopicPartition(topic, 0)


def committed(admin: Admin, group: str, tp: TopicPartition) -> int | None:
    found = admin.list_group_offsets(group, [tp])
    return found[tp].offset if found else None


def polled(one: Consumer) -> list[int]:
    return [record.offset for record in eventually(lambda: one.poll(0.5), within_s=30).records()]


class Failure(Exception):
    pass


@pytest.mark.claim(23, 37, part=True)
def test_a_failed_block_does_not_commit_its_last_poll(
    bootstrap: str, admin: Admin, ten: TopicPartition, group: str
) -> None:
    """The automatic commit at the end of a failed ``with`` block excludes the records of the last poll."""

    def block(fail: bool) -> list[int]:
        found: list[int] = []
        try:
            with Consumer(bootstrap, group_id=group, max_poll_records=4, **QUICK) as one:
                one.assign([ten])
                found += polled(one)
                found += polled(one)
                if fail:
                    raise Failure
        except Failure:
            return found
        return found

    assert block(fail=True) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert committed(admin, group, ten) == 4
    assert block(fail=False) == [4, 5, 6, 7, 8, 9]
    assert committed(admin, group, ten) == 10


def test_a_failed_block_commits_the_position_after_a_wakeup_or_a_commit_or_a_seek(
    bootstrap: str, admin: Admin, ten: TopicPartition, group: str
) -> None:
    settings: dict[str, Any] = {"group_id": group, "max_poll_records": 4} | QUICK

    def wake(one: Consumer) -> None:
        one.wakeup()
        one.poll(5)  # a poll confirms the records of the poll before it

    def commit(one: Consumer) -> None:
        one.commit({ten: 6})
        raise Failure

    def seek(one: Consumer) -> None:
        one.seek(ten, 1)
        raise Failure

    for act, first, then in ((wake, 0, 4), (commit, 4, 6), (seek, 6, 1)):

        def block(act: Callable[[Consumer], None] = act, first: int = first) -> None:
            with Consumer(bootstrap, **settings) as one:
                one.assign([ten])
                assert polled(one) == list(range(first, first + 4))
                act(one)

        with pytest.raises(Wakeup if act is wake else Failure):
            block()
        assert committed(admin, group, ten) == then


def test_an_iteration_that_ends_early_loses_no_record(bootstrap: str, ten: TopicPartition, group: str) -> None:
    """An asynchronous iteration on the caller's loop. The record at which it ends counts as not returned."""

    async def main() -> list[int]:
        found: list[int] = []
        async with odradek.aio.Consumer(bootstrap, group_id=group, **QUICK) as one:
            await one.assign([ten])
            for last in (3, 7):
                async for record in one:
                    found.append(record.offset)
                    if record.offset == last:
                        break
            found += [record.offset for record in (await one.poll(10)).records()]
            await one.commit()
            assert await one.partitions_for(ten.topic) == [ten]
            assert ten.topic in await one.list_topics()
        return found

    assert asyncio.run(main()) == [0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9]

    async def failing() -> None:
        async with odradek.aio.Consumer(bootstrap, group_id=group, **QUICK) as one:
            await one.assign([ten])
            await one.seek(ten, 2)
            async for record in one:
                if record.offset == 6:
                    raise Failure

    with pytest.raises(Failure):
        asyncio.run(failing())
    with Consumer(bootstrap, group_id=group, **QUICK) as after:
        assert after.committed([ten])[ten].offset == 6


@pytest.mark.claim(41, 42)
@pytest.mark.parametrize(
    ("commit", "first"),
    [(20, 20), (5, 5), (10, 10)],
    ids=["loses 10 to 19", "repeats 5 to 9", "neither"],
)
def test_a_wrong_commit_loses_or_repeats_records(
    bootstrap: str, admin: Admin, publish: Any, topic: str, group: str, commit: int, first: int
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 30})
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap, group_id=group, enable_auto_commit=False, max_poll_records=10, **QUICK) as one:
        one.assign([tp])
        assert polled(one) == list(range(10))
        one.commit({tp: commit})
    with Consumer(bootstrap, group_id=group, enable_auto_commit=False, **QUICK) as after:
        after.assign([tp])
        assert polled(after) == list(range(first, 30))


@pytest.mark.claim(44)
def test_skipped_records_can_be_read_again(bootstrap: str, admin: Admin, ten: TopicPartition, group: str) -> None:
    """After a commit of offset 6 the next consumer starts there, and a seek to 1 reads the skipped records from 1 on.

    After a commit of offset 5, record 5 comes again.
    """
    with Consumer(bootstrap, group_id=group, enable_auto_commit=False, max_poll_records=6, **QUICK) as one:
        one.assign([ten])
        *_, fifth = eventually(lambda: one.poll(0.5), within_s=30).records()
        assert (fifth.offset, fifth.next_offset) == (5, 6)
        one.commit(fifth.next_offsets)
    with Consumer(bootstrap, group_id=group, enable_auto_commit=False, **QUICK) as after:
        after.assign([ten])
        assert polled(after) == [6, 7, 8, 9]
        after.seek(ten, 1)
        assert polled(after) == list(range(1, 10))
        after.commit({ten: fifth.offset})
    with Consumer(bootstrap, group_id=group, enable_auto_commit=False, **QUICK) as again:
        again.assign([ten])
        assert polled(again)[0] == 5


@pytest.mark.claim(65, part="ab")
def test_the_default_assignor_is_range(bootstrap: str, admin: Admin, ten: TopicPartition, group: str) -> None:
    with Consumer(bootstrap, group_id=group, **QUICK) as one:
        one.subscribe([ten.topic])
        eventually(lambda: (one.poll(0.2), one.assignment())[1], within_s=30)
        assert admin.describe_groups([group])[group].protocol == "range"
        cooperative = {"partition_assignment_strategy": ["cooperative-sticky"], "heartbeat_interval_ms": 100}
        with Consumer(bootstrap, group_id=group, **(QUICK | cooperative)) as other:
            other.subscribe([ten.topic])

            def together() -> bool:
                one.poll(0.1)
                other.poll(0.1)
                found = admin.describe_groups([group])[group]
                return (found.protocol, found.state, len(found.members)) == ("cooperative-sticky", "Stable", 2)

            eventually(together, within_s=60)  # our consumer's second default assignor: both members have it


def test_topics_are_looked_up(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1)])
    with Consumer(bootstrap, default_api_timeout_ms=5_000) as one:
        assert eventually(lambda: one.partitions_for(topic)) == [TopicPartition(topic, n) for n in range(3)]
        found = one.list_topics()[topic]
        assert [row.leader for row in found.partitions] == [1, 1, 1]
        with pytest.raises(UnknownTopic):
            one.partitions_for("no-" + topic)


WORKER = """
import sqlite3, sys
from odradek import Consumer, TopicPartition

bootstrap, topic, path, count = sys.argv[1:]
tp = TopicPartition(topic, 0)
database = sqlite3.connect(path, timeout=30)
with Consumer(bootstrap, max_poll_records=3) as one:
    one.assign([tp])
    one.seek(tp, database.execute("select next from progress").fetchone()[0])
    done = 0
    while done < int(count):
        polled = one.poll(1.0)
        if polled:
            with database:
                database.executemany("insert into result values (?)", [(r.offset,) for r in polled.records()])
                done = polled.next_offsets[tp].offset
                database.execute("update progress set next = ?", (done,))
            print(done, flush=True)
"""


@pytest.mark.claim(98)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_each_result_is_stored_once_although_the_worker_is_killed_repeatedly(
    bootstrap: str, admin: Admin, publish: Any, topic: str, tmp_path: Path, seed: int
) -> None:
    """One transaction stores each poll's results and next offset. kill -9 comes after a random number of polls."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    count, kills, chance = 3_000, 0, random.Random(seed)
    publish(topic, {0: count})
    path = tmp_path / "results.db"
    database = sqlite3.connect(path, timeout=30)
    with database:
        database.execute("create table result (record integer)")
        database.execute("create table progress (next integer)")
        database.execute("insert into progress values (0)")
    done = 0
    while done < count:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, bootstrap, topic, str(path), str(count)], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        lines = chance.randrange(1, 150) if kills < 8 else count
        for line in worker.stdout:
            done = int(line)
            lines -= 1
            if lines == 0:
                os.kill(worker.pid, signal.SIGKILL)
                kills += 1
                break
        worker.stdout.close()
        worker.wait(60)
    assert kills == 8
    found = [number for (number,) in database.execute("select record from result order by rowid")]
    assert found == list(range(count))
    database.close()
