"""``kill -9`` of Python workers, the broker and the driver of a query with ``transactional_writer``.

Afterwards the committed output has each row of the input once. The source's group has the offsets of the checkpoint.
The query's own group has the number of the last micro-batch. With ODRADEK_TEST_ORACLE=1 the broker is Apache Kafka.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import RunningBroker, eventually
from support.publish import create_topic, numbers, publish
from support.three_brokers import Deployment, ThreeBrokers, replicas
from support.transactions import restart

from odradek import Consumer
from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition

ON_APACHE = bool(os.environ.get("ODRADEK_TEST_ORACLE"))
TOPIC, TARGET, GROUP = "input", "output", "the-query"
BATCH_RECORDS = 20
RUN_S, READ_S = 1500, 120

IN_A_RUN = [
    "all workers before its rows", "all workers before the flush", "all workers after its rows",
    "worker before its rows", "worker before the flush", "worker after its rows",
    "broker in a task before its rows", "broker in a task before the flush", "broker in a task after its rows",
    "broker after InitProducerId", "broker after the stage", "broker before EndTxn", "broker after EndTxn",
]  # fmt: skip
"""Faults that the driver survives: kills of one task's process, of all Python processes of the executor, and of the
broker."""
OF_THE_DRIVER = [
    "driver after InitProducerId", "driver after the stage", "driver before EndTxn", "driver with EndTxn unanswered",
    "driver before Spark's mark",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="kills processes by signal 9"),
]


class DrivenQuery:
    """A query in a process of its own, which starts again after each kill. ``faults``: one for each micro-batch."""

    def __init__(self, broker: Deployment, place: Path, faults: list[str]) -> None:
        self.broker, self.place, self.faults = broker, place, faults
        (place / "faults.json").write_text(json.dumps(dict(enumerate(faults))))
        create_topic(broker.bootstrap, TOPIC, 2, replicas(broker))
        create_topic(broker.bootstrap, TARGET, 3, replicas(broker))
        self.count = BATCH_RECORDS * (len(faults) + 1)
        for partition in (0, 1):
            values = [b"%d-%s" % (partition, value) for value in numbers(self.count // 2)]
            publish(broker.bootstrap, TOPIC, values, partition=partition)
        self.kills = 0

    def start(self, log: str) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("transaction_driver.py")
        command = [sys.executable, str(script), self.broker.bootstrap, TOPIC, TARGET, GROUP, str(self.place)]
        with (self.place / log).open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out)

    def run(self) -> None:
        """Starts the driver again until the query has read its topic."""
        deadline = time.monotonic() + RUN_S
        while True:
            process = self.start("driver.log")
            try:
                while process.poll() is None:
                    assert time.monotonic() < deadline, self.log()
                    self.replace_broker_if_asked()
                    time.sleep(0.02)  # the driver asks for a kill by a file, which no event reports
            finally:  # also if the broker's restart skips the test
                process.kill()
                process.wait()
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, self.log()
        done = {int(path.name.removeprefix("done-")) for path in self.place.glob("done-*")}
        assert done == set(range(len(self.faults))), "a fault has not happened"

    def replace_broker_if_asked(self) -> None:
        for path in self.place.glob("kill-*"):
            self.replace_broker()
            path.unlink()
            (self.place / f"back-{path.name.removeprefix('kill-')}").touch()

    def replace_broker(self) -> None:
        assert not isinstance(self.broker, ThreeBrokers)
        restart(self.broker)

    def log(self) -> str:
        return (self.place / "driver.log").read_text()[-4000:]

    def check(self) -> None:
        with Admin(self.broker.bootstrap) as admin:
            sent, found = (Counter(committed(admin, topic, self.broker.bootstrap)) for topic in (TOPIC, TARGET))
            assert sent.total() == self.count
            assert found == sent, {"missing": sent - found, "twice": found - sent}
            checkpoint = self.place / "checkpoint"
            last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
            end = json.loads((checkpoint / "offsets" / str(last)).read_text().splitlines()[-1])[TOPIC]
            group = admin.list_group_offsets(GROUP)
            assert {str(tp.partition): commit.offset for tp, commit in group.items()} == end
            name = "odradek-" + json.loads((checkpoint / "metadata").read_text())["id"]
            assert admin.list_group_offsets(name)[TopicPartition(TARGET, 0)].offset == last


def committed(admin: Admin, topic: str, bootstrap: str) -> list[bytes]:
    """The values of all committed records of a topic."""
    places = admin.partitions(topic)
    ends = {tp: end.offset for tp, end in admin.list_offsets(dict.fromkeys(places, -1)).items()}
    found: list[bytes] = []
    with Consumer(bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as reader:
        reader.assign(places)
        deadline = time.monotonic() + READ_S
        while any(reader.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline, f"{len(found)} records within {READ_S} s, log ends {ends}"
            for rows in (one for batches in reader.poll(5).values() for one in batches):
                found += rows.column("value").to_pylist()
    return found


def driven(own_broker: Callable[..., RunningBroker], place: Path, faults: list[str]) -> DrivenQuery:
    return DrivenQuery(own_broker(), place, faults)


def test_each_row_is_there_once_after_kills_of_workers_and_brokers(
    own_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    """39 kills on odradek's broker, 13 on Apache Kafka."""
    query = driven(own_broker, tmp_path, IN_A_RUN * (1 if ON_APACHE else 3))
    query.run()
    query.check()


def test_each_row_is_there_once_after_kills_of_the_driver(
    own_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    """21 kills on odradek's broker, 7 on Apache Kafka."""
    faults = [*OF_THE_DRIVER, *OF_THE_DRIVER[2:4]] * (1 if ON_APACHE else 3)
    query = driven(own_broker, tmp_path, faults)
    query.run()
    query.check()


def test_of_two_drivers_in_two_processes_the_later_one_continues(
    own_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    query = driven(own_broker, tmp_path, ["wait before EndTxn"])
    earlier = query.start("earlier.log")
    eventually((tmp_path / "waiting").exists, within_s=300, what="a transaction of the earlier driver")
    query.run()
    (tmp_path / "go-on").touch()
    assert earlier.wait(300) == 1
    assert "another driver runs the query" in (tmp_path / "earlier.log").read_text()
    query.check()
