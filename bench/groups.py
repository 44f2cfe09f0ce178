"""Workloads of the group coordinator: synchronous commits, many offsets, OffsetFetch, a rebalance.

``python -m bench.workload`` runs a workload by its name. All replies are checked.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench import raw
from bench.workload import CommitConnection, commit_request, create_topic
from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.wire import frames
from odradek.wire.api_keys import HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP

COMMIT_VERSION, FETCH_VERSION, JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 8, 8, 5, 3, 3
OFFSETS_PARTITIONS = 50
PER_REQUEST = 100
_IN_FLIGHT = 20
_TOPICS = 10


def commit_sync(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """Synchronous commits of one partition with confluent-kafka, one after the other: ms at p50 and p99."""
    create_topic(bootstrap, topic, 1)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    took: list[float] = []
    for number in range(count + count // 5 + 10):
        began = time.perf_counter()
        consumer.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=False)
        took.append(time.perf_counter() - began)
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    consumer.close()
    if found.offset != len(took) - 1:
        raise RuntimeError(f"{found.offset} is committed, not {len(took) - 1}")
    measured = sorted(took[-count:])
    return {"p50": measured[count // 2] * 1e3, "p99": measured[int(count * 0.99)] * 1e3, "count": count}


# --- many offsets -----------------------------------------------------------------------------------------------


def _send_commits(connection: raw.Connection, requests: Iterator[bytes]) -> None:
    """Sends the requests, up to ``_IN_FLIGHT`` at a time. Raises RuntimeError if the broker refused a commit."""
    in_flight = 0
    for request in requests:
        connection.socket.sendall(request)
        in_flight += 1
        if in_flight == _IN_FLIGHT:
            _check_commit(connection.reply())
            in_flight -= 1
    for _ in range(in_flight):
        _check_commit(connection.reply())


def _check_commit(reply: bytes) -> None:
    _, message = frames.decode_reply(OFFSET_COMMIT, COMMIT_VERSION, reply)
    if any(row.error_code != ErrorCode.none for topic in message.topics for row in topic.partitions):
        raise RuntimeError(f"a commit was refused: {message.topics[0].partitions[0]}")


def _groups(topic: str, count: int) -> list[str]:
    return [f"{topic}-{number}" for number in range(count)]


def _one_per_coordinator(groups: list[str]) -> list[str]:
    """One group for each partition of the offsets topic."""
    return list({partition_for_group(group, OFFSETS_PARTITIONS): group for group in groups}.values())


def many_offsets(bootstrap: str, topic: str, groups: int, partitions: int, times: int) -> dict[str, float]:
    """Each of ``groups`` groups commits ``partitions`` partitions, ``times`` times. Returns offsets per second.

    In the end, the committed offset of a partition is ``times`` plus its index.
    """
    create_topic(bootstrap, topic, partitions)
    for group in _one_per_coordinator(_groups(topic, groups)):
        CommitConnection(bootstrap, topic, group)  # waits for the coordinator
    connection = raw.Connection(bootstrap)
    began = time.perf_counter()
    _send_commits(
        connection,
        (
            commit_request(group, topic, range(first, min(first + PER_REQUEST, partitions)), number)
            for number in range(1, times + 1)
            for group in _groups(topic, groups)
            for first in range(0, partitions, PER_REQUEST)
        ),
    )
    count = groups * partitions * times
    return {"per_s": count / (time.perf_counter() - began), "count": count}


def offset_fetch_request(groups: list[str], topic: str, partitions: range) -> bytes:
    asked = [{"name": topic, "partition_indexes": list(partitions)}]
    message = {"groups": [{"group_id": group, "topics": asked} for group in groups], "require_stable": False}
    return frames.encode_request(OFFSET_FETCH, FETCH_VERSION, 0, "bench", message)


def all_groups_answer(bootstrap: str, topic: str, groups: int, offset: int) -> bool:
    """Whether every group has committed ``offset`` for the topic's first partition. Raises OSError without a reply.

    The first request names only one group for each partition of the offsets topic, because a request for all groups
    would delay a broker that still loads them.
    """
    every = _groups(topic, groups)
    connection = raw.Connection(bootstrap)
    try:
        for asked in (_one_per_coordinator(every), every):
            reply = connection.call(offset_fetch_request(asked, topic, range(1)))
            _, message = frames.decode_reply(OFFSET_FETCH, FETCH_VERSION, reply)
            for group in message.groups:
                if group.error_code != ErrorCode.none or group.topics[0].partitions[0].committed_offset != offset:
                    return False
    finally:
        connection.socket.close()
    return True


def fetch_offsets(bootstrap: str, topic: str, partitions: int, seconds: float, warm_up_s: float) -> dict[str, float]:
    """OffsetFetch of all partitions of a group, in ten topics, one request after the other.

    ``per_s``: partitions per second without commits in between. ``changed_per_s``: the same with a commit of all
    partitions before each fetch. The time of these commits does not count.
    """
    per_topic = partitions // _TOPICS
    topics = [f"{topic}-{number}" for number in range(_TOPICS)]
    for name in topics:  # Apache Kafka cannot create a single topic with so many partitions
        create_topic(bootstrap, name, per_topic)
    CommitConnection(bootstrap, topics[0], topic)  # waits for the coordinator
    connection = raw.Connection(bootstrap)
    _send_commits(connection, (commit_request(topic, name, range(per_topic), 1) for name in topics))
    asked = [{"name": name, "partition_indexes": list(range(per_topic))} for name in topics]
    message = {"groups": [{"group_id": topic, "topics": asked}], "require_stable": False}
    request = frames.encode_request(OFFSET_FETCH, FETCH_VERSION, 0, "bench", message)
    expected = connection.call(request)
    _, reply = frames.decode_reply(OFFSET_FETCH, FETCH_VERSION, expected)
    for listed in reply.groups[0].topics:
        found = {row.partition_index: row.committed_offset for row in listed.partitions}
        if found != {index: index + 1 for index in range(per_topic)}:
            raise RuntimeError("the fetched offsets are not the committed ones")
    found = {}
    commits = [commit_request(topic, name, range(per_topic), 1) for name in topics]
    for key, before in (("per_s", []), ("changed_per_s", commits)):
        _fetch_again(connection, request, len(expected), before, warm_up_s)
        count, took_s = _fetch_again(connection, request, len(expected), before, seconds)
        found[key] = count * partitions / took_s
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deletion in admin.delete_topics(topics, request_timeout=60).values():
        deletion.result(60)  # so that later measures do not run beside ten thousand more logs
    return {**found, "count": count * partitions}


def _fetch_again(
    connection: raw.Connection, request: bytes, reply_bytes: int, commits: list[bytes], seconds: float
) -> tuple[int, float]:
    """Sends the commits and a fetch in turn, until the fetches took ``seconds``. Returns their number and seconds."""
    count, took_s = 0, 0.0
    while took_s < seconds:
        _send_commits(connection, iter(commits))
        began = time.perf_counter()
        reply = connection.call(request)
        took_s += time.perf_counter() - began
        count += 1
        if len(reply) != reply_bytes:
            raise RuntimeError("the reply to a fetch has another size")
    return count, took_s


# --- a rebalance ------------------------------------------------------------------------------------------------


class _Member:
    """A member with its own connection. Each reply decides the next request."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.connection = raw.Connection(bootstrap)
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.synced = -1  # the generation of the member's assignment; -1 without one
        self._asked: int = JOIN_GROUP
        self._round = 0

    def join(self, number: int) -> None:
        """Sends JoinGroup with ``number`` as the metadata. A changed number makes the group rebalance."""
        self._round = number
        message = {
            "group_id": self.group,
            "session_timeout": 45_000,
            "rebalance_timeout": 60_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "bench",
            "protocols": [{"name": "one", "metadata": number.to_bytes(4, "big")}],
        }
        self._send(JOIN_GROUP, JOIN_VERSION, message)

    def heartbeat(self) -> None:
        message = {"group_id": self.group, "generation_id": self.generation, "member_id": self.member_id}
        self._send(HEARTBEAT, HEARTBEAT_VERSION, {**message, "group_instance_id": None})

    def _sync(self, members: list[str]) -> None:
        message = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "assignments": [{"member_id": member, "assignment": member.encode()} for member in members],
        }
        self._send(SYNC_GROUP, SYNC_VERSION, message)

    def _send(self, api_key: int, version: int, message: dict[str, Any]) -> None:
        self._asked = api_key
        self.connection.socket.sendall(frames.encode_request(api_key, version, 0, "bench", message))

    def take(self) -> None:
        """Reads one reply and sends the request that follows from it.

        No request follows an assignment or a heartbeat without an error.
        """
        data = self.connection.reply()
        if self._asked == JOIN_GROUP:
            _, reply = frames.decode_reply(JOIN_GROUP, JOIN_VERSION, data)
            if reply.error_code == ErrorCode.member_id_required:
                self.member_id = reply.member_id
                self.join(self._round)
                return
            self._check(reply.error_code)
            self.member_id, self.generation = reply.member_id, reply.generation_id
            self._sync([member.member_id for member in reply.members])
        elif self._asked == SYNC_GROUP:
            _, reply = frames.decode_reply(SYNC_GROUP, SYNC_VERSION, data)
            if reply.error_code == ErrorCode.rebalance_in_progress:
                self.join(self._round)
                return
            self._check(reply.error_code)
            if bytes(reply.assignment) != self.member_id.encode():
                raise RuntimeError(f"{self.member_id} was assigned {reply.assignment!r}")
            self.synced = self.generation
        else:
            _, reply = frames.decode_reply(HEARTBEAT, HEARTBEAT_VERSION, data)
            if reply.error_code == ErrorCode.rebalance_in_progress:
                self.synced = -1
                self.join(self._round)
                return
            self._check(reply.error_code)

    @staticmethod
    def _check(code: ErrorCode) -> None:
        if code != ErrorCode.none:
            raise RuntimeError(f"a member got the error {code!r}")


def _until_stable(members: list[_Member], within_s: float = 120) -> None:
    """Serves the members until all have an assignment of the same generation. Raises TimeoutError.

    While members wait, those with an assignment send heartbeats.
    """
    waiting = select.epoll()
    by_fd = {member.connection.socket.fileno(): member for member in members}
    for fd in by_fd:
        waiting.register(fd, select.EPOLLIN)
    deadline = time.monotonic() + within_s
    while len({member.synced for member in members} | {-1}) != 2 or any(member.synced < 0 for member in members):
        if time.monotonic() > deadline:
            raise TimeoutError("the group did not become stable")
        ready = waiting.poll(0.05)
        for fd, _ in ready:
            by_fd[fd].take()
        if not ready:
            for member in members:
                if member.synced >= 0:
                    member.heartbeat()
    waiting.close()


def rebalance(bootstrap: str, group: str, members: int, rounds: int) -> dict[str, float]:
    """All members rejoin at once, with changed metadata, in each round.

    ``ms`` is the median of the milliseconds until the last assignment, ``worst`` their maximum.
    """
    create_topic(bootstrap, group, 1)
    CommitConnection(bootstrap, group, f"{group}-probe")  # waits for the coordinator
    joined = [_Member(bootstrap, group) for _ in range(members)]
    for member in joined:
        member.join(0)
    _until_stable(joined)
    took = []
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        for member in joined:
            member.synced = -1
            member.join(number)
        _until_stable(joined)
        took.append((time.perf_counter() - began) * 1e3)
    return {"ms": median(took), "worst": max(took), "count": rounds}


WORKLOADS: dict[str, Callable[..., dict[str, float]]] = {
    "commit_sync": commit_sync,
    "many_offsets": many_offsets,
    "fetch_offsets": fetch_offsets,
    "rebalance": rebalance,
}
