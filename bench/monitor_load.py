"""Commits of many groups at a rate, over several connections: ``python -m bench.monitor_load < arguments.json``.

A broker answers the requests of one connection one after another, so one connection would measure the broker's latency.
Each group has one connection, so its commits arrive in order. A request is packed once for each group; later rounds
change its offsets in place, so that the load costs little CPU time. The offsets of a group rise forever: a workload
that begins again at an old offset would measure rewinds. Every reply is checked.
"""

from __future__ import annotations

import json
import selectors
import struct
import sys
import time
from typing import Any

import numpy as np

from bench.raw import Connection
from bench.workload import COMMIT_VERSION, commit_request
from odradek.core.errors import ErrorCode
from odradek.wire import frames
from odradek.wire.api_keys import OFFSET_COMMIT

WINDOW = 8
"""The most requests in flight on a connection."""
_MARK = 0x01020304
"""An offset whose bytes occur nowhere else in a request."""


class PackedCommit:
    """A request that commits the first partitions of a topic for a group, with offsets that can be changed."""

    def __init__(self, group: str, topic: str, partitions: int) -> None:
        self.topic = topic
        data = commit_request(group, topic, range(partitions), _MARK)
        self.data = bytearray(data)
        first = data.index(struct.pack(">q", _MARK))
        stride = data.index(struct.pack(">q", _MARK + 1)) - first if partitions > 1 else 8
        # A view of the offsets in the request: they lie apart by the other fields of a partition.
        self._offsets: Any = np.ndarray((partitions,), ">i8", self.data, first, (stride,))
        self._indexes = np.arange(partitions)

    def with_offset(self, offset: int) -> bytearray:
        """Returns the request, in which partition N commits ``offset`` + N."""
        self._offsets[:] = self._indexes + offset
        return self.data


class LoadConnection:
    """One connection, which commits for its groups in turn. ``first``: the offset of the first round."""

    def __init__(self, bootstrap: str, commits: list[PackedCommit], first: int, replies: dict[str, bytes]) -> None:
        self.connection = Connection(bootstrap)
        self.sent = self.answered = 0
        self._commits, self._first, self._replies = commits, first, replies
        self._tail = b""

    @property
    def in_flight(self) -> int:
        return self.sent - self.answered

    def send_due(self, due: int) -> None:
        """Sends what is due, as far as the window has room."""
        while self.sent < due and self.in_flight < WINDOW:
            turn, at = divmod(self.sent, len(self._commits))
            self.connection.socket.sendall(self._commits[at].with_offset(self._first + turn))
            self.sent += 1

    def receive(self) -> None:
        """Reads the bytes that have arrived. Raises ValueError if the broker refused a commit."""
        data = self.connection.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._tail += data
        while len(self._tail) >= 4 and len(self._tail) - 4 >= (size := int.from_bytes(self._tail[:4], "big")):
            self._check(self._tail[4 : 4 + size])
            self._tail = self._tail[4 + size :]
            self.answered += 1

    def _check(self, reply: bytes) -> None:
        """Compares a reply with the first one for its topic, which was decoded."""
        topic = self._commits[self.answered % len(self._commits)].topic
        expected = self._replies.get(topic)
        if expected is None:
            _, message = frames.decode_reply(OFFSET_COMMIT, COMMIT_VERSION, reply)
            if any(row.error_code is not ErrorCode.none for row in message.topics[0].partitions):
                raise ValueError(f"a commit in {topic} was refused")
            expected = self._replies[topic] = reply[4:]
        if reply[4:] != expected:
            raise ValueError(f"a commit in {topic} was refused")


def run(
    bootstrap: str, groups: list[list[str]], partitions: int, rate: float, seconds: float, first: int,
    connections: int = 16,
) -> dict[str, float]:  # fmt: skip
    """Commits ``rate`` partitions a second. ``groups``: the name and the topic of each one."""
    packed = [PackedCommit(group, topic, partitions) for group, topic in groups]
    replies: dict[str, bytes] = {}
    count = min(connections, len(packed))
    loads = [LoadConnection(bootstrap, packed[number::count], first, replies) for number in range(count)]
    selector = selectors.DefaultSelector()
    for load in loads:
        selector.register(load.connection.socket, selectors.EVENT_READ, load)
    cpu_s, begun = time.process_time(), time.perf_counter()
    while (now := time.perf_counter()) < begun + seconds or any(load.in_flight for load in loads):
        if now < begun + seconds:
            due = int((now - begun) * rate / partitions / count)
            for load in loads:
                load.send_due(due)
        for key, _ in selector.select(0.002):
            key.data.receive()
    took = time.perf_counter() - begun
    sent = sum(load.sent for load in loads)
    return {"per_s": sent * partitions / took, "cpu_share": (time.process_time() - cpu_s) / took}


def main(arguments: dict[str, Any]) -> None:
    print(json.dumps(run(**arguments)))


if __name__ == "__main__":
    main(json.load(sys.stdin))
