"""Apache Kafka's VerifiableProducer and VerifiableConsumer as recorded clients: they print what they do as JSON."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from support.jvm import kafka_command
from support.recorded_clients import RecordedMember, RecordedProducer

_TOOLS = "org.apache.kafka.tools"
_HEAP = "64m"


def _lines(program: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("{"):
            yield json.loads(line)


class JavaProgram:
    """A process whose output a thread reads until the client ends."""

    kafka_cp: ClassVar[str] = ""

    def run_tool(self, ended: Any, name: str, *words: str) -> Iterator[dict[str, Any]]:
        """Yields the lines of a tool, until ``ended``; the tool ends cleanly then."""
        command = [*kafka_command(self.kafka_cp, heap=_HEAP), f"{_TOOLS}.{name}", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
            try:
                is_asked = False
                for event in _lines(program):
                    if ended.is_set() and not is_asked:
                        is_asked = True
                        program.terminate()
                    yield event
            finally:
                program.kill()


class VerifiableProducer(JavaProgram, RecordedProducer):
    """The values are ``PREFIX.0``, ``PREFIX.1``, …: the producer is idempotent, and sends them in this order."""

    def work(self) -> None:
        prefix, begun = str(self.number_of_client), time.time()
        words = ["--bootstrap-server", self.bootstrap, "--topic", self.topic, "--acks", "-1"]
        words += ["--value-prefix", prefix, "--throughput", "30"]
        for event in self.run_tool(self.ended, "VerifiableProducer", *words):
            if event["name"] not in ("producer_send_success", "producer_send_error"):
                continue
            number = int(event["value"].partition(".")[2])
            fields = {"topic": self.topic, "value": event["value"], "number": number, "idempotent": True}
            self.sent = max(self.sent, number)
            if event["name"] == "producer_send_success":
                self.record("send", begun, partition=event["partition"], offset=event["offset"], **fields)
            else:
                self.note(event.get("message", ""))
                self.record("send", begun, outcome="unknown", **fields)


class VerifiableConsumer(JavaProgram, RecordedMember):
    """A member that commits after each poll. The program does not print its generation.

    An operation lasts from the program's line before to its own line: the program's own times, since this process may
    read the lines much later on a busy machine."""

    lookups_wait = True

    def work(self) -> None:
        words = ["--bootstrap-server", self.bootstrap, "--topic", self.topic, "--group-id", self.group, "--verbose"]
        words += ["--group-protocol", self.protocol, "--reset-policy", "earliest"]
        if self.protocol == "classic":
            words += ["--session-timeout", "6000"]
        self._before = self._polled_until = time.time()
        self._rows: list[tuple[int, int, bytes]] = []
        for event in self.run_tool(self.ended, "VerifiableConsumer", *words):
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        written = event["timestamp"] / 1000  # in whole ms, rounded down
        until = written + 0.001
        match event["name"]:
            case "record_data":
                self._rows.append((event["partition"], event["offset"], event["value"].encode()))
                return
            case "records_consumed":
                self._polled_all(until)
            case "partitions_assigned":
                self.assigned(one["partition"] for one in event["partitions"])
            case "offsets_committed":
                self._polled_all(until)
                offsets = {one["partition"]: one["offset"] for one in event["offsets"]}
                if not event["success"]:
                    self.note(event.get("error", ""))
                self.committed(self._before, offsets, "done" if event["success"] else "unknown", until)
        self._before = written

    def _polled_all(self, until: float) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self.polled(max(self._before, self._polled_until), rows, end=until)
            self._polled_until = until
