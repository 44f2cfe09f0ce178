"""Apache Kafka's VerifiableProducer and VerifiableConsumer as recorded clients: they print what they do as JSON."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, ClassVar

from bench.apache import logger_jar
from support.jvm import kafka_command
from support.recorded_clients import RecordedClient, RecordedMember, RecordedProducer

_TOOLS = "org.apache.kafka.tools"
_HEAP = "64m"
_INTERNALS = "org.apache.kafka.clients.consumer.internals"
_LEVELS = {
    "defaultLogLevel": "info", "showDateTime": "true", "dateTimeFormat": "HH:mm:ss.SSS", f"log.{_INTERNALS}": "debug",
    "log.org.apache.kafka.clients.NetworkClient": "warn",  # it logs each attempt to reach a broker that is down
    f"log.{_INTERNALS}.AbstractFetch": "info", f"log.{_INTERNALS}.FetchRequestManager": "info",
    f"log.{_INTERNALS}.FetchCollector": "info", f"log.{_INTERNALS}.NetworkClientDelegate": "info",
}  # fmt: skip
LOG_BYTES = 8_000_000
"""A program's log has two files of this size at most."""
DUMP_S = 2.0
POSITION_RACE = "IllegalStateException: Cannot set a new position without a valid current position"


class ProgramEnded(AssertionError):
    """A program has ended by itself. The text has the last lines of its log."""


class ProgramLog:
    """What a program prints beside its events, in a file: its log and its thread dumps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")

    def add(self, line: str) -> None:
        self._handler.handle(logging.makeLogRecord({"msg": line.rstrip("\n")}))

    def close(self) -> None:
        self._handler.close()

    def last(self, count: int) -> list[str]:
        return self.path.read_text(errors="replace").splitlines()[-count:]


class JavaProgram(RecordedClient):
    """A process whose output a thread reads until the client ends. ``folder``: of the programs' logs."""

    kafka_cp: ClassVar[str] = ""
    folder: ClassVar[Path]

    def command(self) -> list[str]:
        levels = [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in _LEVELS.items()]
        return [*kafka_command(f"{logger_jar()}:{self.kafka_cp}", heap=_HEAP), *levels]

    def run_tool(self, name: str, *words: str) -> Iterator[dict[str, Any]]:
        """Yields the events of a tool, until the client ends; the tool ends cleanly then."""
        command = [*self.command(), f"{_TOOLS}.{name}", *words]
        self._log = log = ProgramLog(self.folder / f"{self.name}.log")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            self._program = program
            errors = threading.Thread(target=self._keep_errors, args=(program,), daemon=True)
            errors.start()
            threading.Thread(target=self._end_with, args=(program,), daemon=True).start()
            try:
                yield from self._events(program)
                program.wait()
            finally:
                program.kill()
                errors.join(DUMP_S)
                log.close()
        if not self.ended.is_set():
            raise ProgramEnded("\n".join([f"{name} has ended by itself, its log is {log.path}", *log.last(50)]))

    def _events(self, program: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                self._log.add(line)

    def _keep_errors(self, program: subprocess.Popen[str]) -> None:
        assert program.stderr is not None
        for line in program.stderr:
            self._log.add(line)

    def _end_with(self, program: subprocess.Popen[str]) -> None:
        """A program that prints no line ends, too."""
        self.ended.wait()
        program.terminate()

    def evidence(self) -> list[str]:
        """Writes the stacks of the program's threads to its log."""
        self._program.send_signal(signal.SIGQUIT)
        time.sleep(DUMP_S)
        return [f"its log with its stacks is {self._log.path}, and before that {self._log.path}.1"]


class VerifiableProducer(JavaProgram, RecordedProducer):
    """The values are ``PREFIX.0``, ``PREFIX.1``, …: the producer is idempotent, and sends them in this order."""

    def work(self) -> None:
        prefix, begun = str(self.number_of_client), time.time()
        words = ["--bootstrap-server", self.bootstrap, "--topic", self.topic, "--acks", "-1"]
        words += ["--value-prefix", prefix, "--throughput", "30"]
        for event in self.run_tool("VerifiableProducer", *words):
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

    It leaves the group and ends when a poll raises. Under KIP-848 that is so after UNKNOWN_MEMBER_ID in place of
    committed offsets, and after GROUP_ID_NOT_FOUND or UNKNOWN_SERVER_ERROR in place of a heartbeat's reply (seen with
    Kafka 4.3.0). It is also so without an error of a broker: the thread of polls advances a position that the
    background thread begins to validate in a new leader epoch at the same time. Then another program goes on, as
    after a restart.

    An operation lasts from the program's line before to its own line: the program's own times, since this process may
    read the lines much later on a busy machine."""

    lookups_wait = True

    def work(self) -> None:
        words = ["--bootstrap-server", self.bootstrap, "--topic", self.topic, "--group-id", self.group, "--verbose"]
        words += ["--group-protocol", self.protocol, "--reset-policy", "earliest"]
        if self.protocol == "classic":
            words += ["--session-timeout", "6000"]
        while not self.ended.is_set():
            self._before = self._polled_until = time.time()
            self._rows: list[tuple[int, int, bytes]] = []
            try:
                for event in self.run_tool("VerifiableConsumer", *words):
                    self._take(event)
            except ProgramEnded as error:
                if POSITION_RACE not in str(error):
                    raise
                self.note(POSITION_RACE)

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
