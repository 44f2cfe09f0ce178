"""Consumers that execute text commands: odradek's in this process, Java's in a process of their own.

A command is a line ``name command arguments…``. ``java/Consumers.java`` has the same commands and the same answers.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from support.jvm import kafka_command

from odradek import Admin, Consumer, OffsetAndMetadata, TopicPartition
from odradek.client.admin import offsets_topic
from odradek.client.errors import OffsetOutOfRange, UnsupportedVersion
from odradek.client.group.errors import (
    CommitFailed,
    FencedInstance,
    IllegalState,
    InvalidGroupId,
    NoOffsetForPartition,
    RetriableCommitFailed,
    UnreleasedInstance,
    Wakeup,
)
from odradek.codecs import offsets_topic as records
from odradek.core.errors import ConfigError, OdradekError

PATIENCE_S = 60
JAVA_NAMES: dict[type[BaseException], str] = {
    CommitFailed: "CommitFailedException",
    ConfigError: "ConfigException",
    FencedInstance: "FencedInstanceIdException",
    IllegalState: "IllegalStateException",
    InvalidGroupId: "InvalidGroupIdException",
    NoOffsetForPartition: "NoOffsetForPartitionException",
    OffsetOutOfRange: "OffsetOutOfRangeException",
    RetriableCommitFailed: "RetriableCommitFailedException",
    UnreleasedInstance: "UnreleasedInstanceIdException",
    UnsupportedVersion: "UnsupportedVersionException",
    ValueError: "IllegalArgumentException",
    Wakeup: "WakeupException",
}


class JavaConsumers:
    """Apache Kafka's consumers; ``classes`` has the compiled ``java/Consumers.java``."""

    name = "java"

    def __init__(self, kafka_cp: str, classes: Path) -> None:
        command = kafka_command(kafka_cp, classes, heap="128m")
        self._process = subprocess.Popen(
            [*command, "Consumers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith("> "):
                return answer[2:].rstrip("\n")
        raise AssertionError(f"Java ended at: {line}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class _ConsumerState:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.consumer = Consumer(settings)
        self.records: list[tuple[str, int]] = []
        self.events: list[str] = []
        self.answers: list[str] = []

    def poll(self, timeout_s: float) -> None:
        self.records += [(_name(r.topic_partition), r.offset) for r in self.consumer.poll(timeout_s).records()]

    def recorder(self, sign: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: self.events.append(sign + _names(partitions))

    def callbacks(self) -> dict[str, Any]:
        return {"on_assigned": self.recorder("+"), "on_revoked": self.recorder("-"), "on_lost": self.recorder("!")}


class OurConsumers:
    """Executes the commands with ``odradek.Consumer``."""

    name = "odradek"

    def __init__(self) -> None:
        self._consumers: dict[str, _ConsumerState] = {}

    def run(self, line: str) -> str:
        name, command, *words = line.split(" ")
        try:
            if command == "new":
                self._consumers[name] = _ConsumerState(dict(word.split("=", 1) for word in words))
                return "ok"
            if command == "settle":
                return self._settle(dict(word.split("=") for word in words))
            if command == "close":
                self._consumers.pop(name).consumer.close()
                return "ok"
            answer: str | None = getattr(self, f"do_{command}")(self._consumers[name], words)
            return "ok" if answer is None else answer
        except (OdradekError, ValueError) as error:
            return f"error {_java_name(error)}"

    def close(self) -> None:
        for one in self._consumers.values():
            one.consumer.close()

    def _settle(self, wanted: dict[str, str]) -> str:
        def look() -> bool:
            for name in wanted:
                self._consumers[name].poll(0.02)
            return all(len(self._consumers[n].consumer.assignment()) == int(count) for n, count in wanted.items())

        return _until(look, "settled")

    def do_subscribe(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.subscribe(words, **one.callbacks())

    def do_pattern(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.subscribe(re.compile(words[0]), **one.callbacks())

    def do_re2(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.subscribe(pattern=words[0], **one.callbacks())

    def do_assign(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.assign(map(_partition, words))

    def do_unsubscribe(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.unsubscribe()

    def do_poll(self, one: _ConsumerState, words: list[str]) -> None:
        one.poll(int(words[0]) / 1000)

    def do_read(self, one: _ConsumerState, words: list[str]) -> str:
        def look() -> bool:
            if len(one.records) < int(words[0]):
                one.poll(0.1)
            return len(one.records) >= int(words[0])

        if late := _until(look, ""):
            return f"{late} with {len(one.records)}"
        found: dict[str, list[int]] = {}
        for name, offset in one.records:
            found.setdefault(name, []).append(offset)
        one.records.clear()
        return " ".join(sorted(f"{name}={offsets[0]}-{offsets[-1]}" for name, offsets in found.items()))

    def do_fails(self, one: _ConsumerState, words: list[str]) -> str:
        return _until(lambda: one.poll(0.1) is not None, "")

    def do_assigned(self, one: _ConsumerState, words: list[str]) -> str:
        return _names(one.consumer.assignment())

    def do_commit(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.commit(_offsets(words) or None)

    def do_async(self, one: _ConsumerState, words: list[str]) -> str:
        before = len(one.answers)

        def on_commit(offsets: dict[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
            one.answers.append(f"error {_java_name(error)}" if error else _offsets_text(offsets))

        one.consumer.commit_async(_offsets(words) or None, on_commit)

        def look() -> bool:
            one.poll(0.02)
            return len(one.answers) > before

        return _until(look, "") + one.answers[before]

    def do_seek(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.seek(_partition(words[0]), int(words[1]))

    def do_begin(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.seek_to_beginning(map(_partition, words))

    def do_end(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.seek_to_end(map(_partition, words))

    def do_position(self, one: _ConsumerState, words: list[str]) -> str:
        return str(one.consumer.position(_partition(words[0])))

    def do_committed(self, one: _ConsumerState, words: list[str]) -> str:
        return _offsets_text(one.consumer.committed(map(_partition, words)))

    def do_pause(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.pause(map(_partition, words))

    def do_resume(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.resume(map(_partition, words))

    def do_wakeup(self, one: _ConsumerState, words: list[str]) -> None:
        one.consumer.wakeup()

    def do_drop(self, one: _ConsumerState, words: list[str]) -> None:
        one.records.clear()

    def do_events(self, one: _ConsumerState, words: list[str]) -> str:
        found, one.events = one.events, []
        return " ".join(found)


def _java_name(error: BaseException) -> str:
    return next((name for kind, name in JAVA_NAMES.items() if isinstance(error, kind)), type(error).__name__)


def _until(look: Callable[[], bool], answer: str) -> str:
    end_s = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > end_s:
            return "timed out"
    return answer


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}:{tp.partition}"


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(sorted(map(_name, partitions)))


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition(":")
    return TopicPartition(topic, int(number))


def _offsets(words: list[str]) -> dict[TopicPartition, OffsetAndMetadata | int]:
    found: dict[TopicPartition, OffsetAndMetadata | int] = {}
    for word in words:
        place, _, value = word.partition("=")
        offset, _, metadata = value.partition("/")
        found[_partition(place)] = OffsetAndMetadata(int(offset), -1, metadata)
    return found


def _offsets_text(offsets: dict[TopicPartition, Any]) -> str:
    return " ".join(
        sorted(
            f"{_name(tp)}=" + ("none" if c is None else f"{c.offset}@{c.leader_epoch}/{c.metadata}")
            for tp, c in offsets.items()
        )
    )


# --- what the broker has stored -----------------------------------------------------------------------------------


def written(admin: Admin, group: str) -> dict[str, list[str]]:
    """The commits of a group in the offsets topic: by partition, in order, without consecutive repetitions."""
    found: dict[str, list[str]] = {}
    for entry in offsets_topic.entries(admin, group):
        record = records.decode(entry.key, entry.value)
        if not isinstance(record, records.OffsetCommitRecord):
            continue
        value = record.value
        text = "gone" if value is None else f"{value.offset}@{value.leader_epoch}/{value.metadata}"
        rows = found.setdefault(f"{record.key.topic}:{record.key.partition}", [])
        if not rows or rows[-1] != text:
            rows.append(text)
    return found


def group_seen(admin: Admin, group: str) -> tuple[Any, ...]:
    """State, type and assignor of the group, and the partitions of each member by client id and instance id."""
    if group not in {row.group_id for row in admin.list_groups()}:
        return ("no group",)
    found = admin.describe_groups([group])[group]
    members = sorted(
        (member.client_id, member.instance_id or "", _names(member.assignment)) for member in found.members
    )
    return (found.state, found.type, found.protocol, members)
