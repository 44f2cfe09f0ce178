"""``python -m bench.brokers_for_tests``: brokers that a test suite can start, in turn in one run.

For each broker: the seconds from nothing to the first record that a consumer group has read and committed, the CPU
seconds and the resident memory of the broker at that moment, and the seconds of a kill -9 and a new start, with a check
of the records and the commit. The client is confluent-kafka in a process that has already imported it, the same for all
brokers. kfake (franz-go) is built before the first round. Apache Kafka has an own data directory in each round, with
the time of its formatting counted, because a container's entry point does the same.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import report
from bench.apache import class_path, free_port
from bench.pages import BROKERS_FOR_TESTS, option_help
from bench.sides import Apache, Odradek, cpu_seconds, resident_bytes, start, with_descendants

NAME = "brokers for tests"
SOURCES = Path(__file__).with_name("kfake")
TOPIC, GROUP = "orders", "billing"
RECORDS = 1000
_PATIENCE_S = 60.0


class Kfake:
    """franz-go's broker for tests, in a process of its own, with a data directory."""

    name = "kfake"

    def __init__(self, program: Path, directory: Path) -> None:
        port = free_port()
        self._command = [str(program), str(directory / "data"), str(port)]
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = f"127.0.0.1:{port}"

    def install(self) -> None:
        pass

    def spawn(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    @property
    def pids(self) -> list[int]:
        return with_descendants([self._process.pid]) if self._process is not None else []


Broker = Odradek | Apache | Kfake


def first_use(bootstrap: str) -> None:
    """Creates a topic, sends ``RECORDS`` records, reads them as a group and commits the last offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for one in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        one.result(_PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"order %d" % number)
    assert producer.flush(_PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + _PATIENCE_S
    seen = 0
    while seen < RECORDS and time.monotonic() < deadline:
        seen += len([one for one in consumer.consume(RECORDS, 0.1) if one.error() is None])
    assert seen == RECORDS, seen
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, RECORDS)], asynchronous=False)
    consumer.close()


def kept(bootstrap: str) -> bool:
    """Whether all records and the commit are there. A new start of a broker may need a moment for its coordinator."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < deadline:
            try:
                _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=5)
                (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=5)
            except KafkaException as error:
                if error.args and error.args[0].code() in (
                    KafkaError.UNKNOWN_TOPIC_OR_PART,
                    KafkaError._UNKNOWN_PARTITION,
                ):
                    return False
                continue
            return (end, committed.offset) == (RECORDS, RECORDS)
    finally:
        consumer.close()
    return False


def one_round(make: Callable[[Path], Broker]) -> dict[str, Any]:
    """The figures of one broker in one round, with an empty directory."""
    directory = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    broker = make(directory)
    try:
        began = time.perf_counter()
        broker.install()
        start(broker)
        ready = time.perf_counter()
        first_use(broker.bootstrap)
        used = time.perf_counter()
        figures: dict[str, Any] = {"ready_s": ready - began, "first_use_s": used - began}
        figures["cpu_s"], figures["memory_mb"] = cpu_seconds(broker.pids), resident_bytes(broker.pids) / 1e6
        broker.kill()
        again = time.perf_counter()
        start(broker)
        figures["kept"] = kept(broker.bootstrap)
        figures["again_s"] = time.perf_counter() - again
        return figures
    finally:
        broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


def program() -> Path:
    """Builds kfake. Raises FileNotFoundError without Go."""
    path = Path(tempfile.mkdtemp(prefix="odradek-kfake-")) / "kfake"
    subprocess.run(["go", "build", "-o", path, "."], cwd=SOURCES, check=True)
    return path


COLUMNS = {
    "ready_s": "start until it accepts requests, s",
    "first_use_s": "start until a group has read and committed 1,000 records, s",
    "cpu_s": "CPU of the broker until then, s",
    "memory_mb": "memory of the broker then, MB",
    "again_s": "kill -9, new start, records and commit read, s",
}


def section(results: dict[str, list[dict[str, Any]]]) -> str:
    """The table of the page."""
    names = list(results)
    lines = ["| figure | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for key, title in COLUMNS.items():
        cells = [
            report.spread([one[key] for one in results[name] if one["kept"] or key != "again_s"]) for name in names
        ]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    kept_cells = ["yes" if all(one["kept"] for one in results[name]) else "no" for name in names]
    lines.append("| records and commits after kill -9 | " + " | ".join(kept_cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.brokers_for_tests", description="Brokers that a test suite can start."
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a JSON file with all rounds")
    parser.add_argument("--page", type=Path, default=BROKERS_FOR_TESTS, help=option_help(BROKERS_FOR_TESTS))
    options = parser.parse_args(arguments)
    built, jars = program(), class_path()
    sides: dict[str, Callable[[Path], Broker]] = {
        Odradek.name: Odradek,
        Kfake.name: lambda directory: Kfake(built, directory),
        Apache.name: lambda directory: Apache(directory, jars),
    }
    measured: dict[str, Callable[[], dict[str, Any]]] = {name: partial(one_round, make) for name, make in sides.items()}
    results = report.measure_rounds(measured, options.rounds)
    command = " ".join(["python -m bench.brokers_for_tests", *sys.argv[1:]])
    table = f"{report.head(options.rounds, command)}\n\n{section(results)}"
    report.publish(options.page, NAME, table, results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
