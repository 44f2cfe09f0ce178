"""A workload of commits with a fixed number in flight: ``python -m bench.commit_load '{"bootstrap": …}'``.

The program first repeats a commit on each connection until the broker accepts it. Then it prints "ready" and starts the
workload. It prints "begin" and "end" around the measured time, and at the end the result as JSON. Every reply is
checked, and the committed offsets are read back. bench/java/ZooKeeperCommits.java prints the same lines.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections import deque
from typing import Any

from bench.raw import Connection
from bench.workload import commit_request, first_commit_reply
from odradek.wire import frames
from odradek.wire.api_keys import OFFSET_FETCH

_OFFSETS = 100
"""The number of different requests of a connection. They are packed once and sent in turn."""
_FETCH_VERSION = 7


class Committer:
    """One connection, which commits for a group of its own."""

    def __init__(self, bootstrap: str, topic: str, group: str, partitions: int, window: int) -> None:
        self.connection = Connection(bootstrap)
        self.group, self.topic, self.partitions = group, topic, partitions
        self.window = window
        self.took: list[float] = []
        self._requests = [commit_request(group, topic, range(partitions), offset) for offset in range(_OFFSETS)]
        # Every later reply must equal this one, except for its correlation id.
        self._expected = first_commit_reply(self.connection.call, group, self._requests[0])[4:]
        self._began: deque[float] = deque()
        self.sent = self._received = 0
        self._tail = b""

    @property
    def in_flight(self) -> int:
        return self.sent - self._received

    def send(self, count: int) -> None:
        now = time.perf_counter()
        self.connection.socket.sendall(b"".join(self._requests[(self.sent + n) % _OFFSETS] for n in range(count)))
        self._began.extend([now] * count)
        self.sent += count

    def receive(self, *, is_measured: bool) -> int:
        """Reads the bytes that have arrived. Returns the number of complete replies, which may be 0.

        ``is_measured``: ``took`` gets the time of each commit. Raises ValueError if the broker refused a commit.
        """
        data = self.connection.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._tail += data
        each = len(self._expected) + 8
        count = len(self._tail) // each
        now = time.perf_counter()
        for n in range(count):
            reply = self._tail[n * each : (n + 1) * each]
            if reply[8:] != self._expected or int.from_bytes(reply[4:8], "big") != self._received % _OFFSETS:
                raise ValueError("a commit was refused")
            self._received += 1
            began = self._began.popleft()
            if is_measured:
                self.took.append(now - began)
        self._tail = self._tail[count * each :]
        return count

    def verify(self) -> None:
        """Raises ValueError unless the group has the offsets of the last request."""
        topics = [{"name": self.topic, "partition_indexes": list(range(self.partitions))}]
        asked = {"group_id": self.group, "topics": topics, "require_stable": False}
        reply = self.connection.call(frames.encode_request(OFFSET_FETCH, _FETCH_VERSION, 0, "bench", asked))
        _, message = frames.decode_reply(OFFSET_FETCH, _FETCH_VERSION, reply)
        last = (self.sent - 1) % _OFFSETS
        found = {row.partition_index: row.committed_offset for row in message.topics[0].partitions}
        if found != {index: last + index for index in range(self.partitions)}:
            raise ValueError(f"{self.group} has {found}, and {last} plus the partition's index was committed")


def run(
    bootstrap: str, topic: str, partitions: int, connections: int, window: int, warm_up_s: float, seconds: float
) -> dict[str, float]:
    """Sends commits for ``warm_up_s`` and then for ``seconds``, ``window`` requests in flight on each connection.

    In the result, ``sent`` counts all commits after "ready". The other figures are those of the measured time.
    """
    committers = [
        Committer(bootstrap, topic, f"{topic}-{partitions}-{window}-{n}", partitions, window)
        for n in range(connections)
    ]
    selector = selectors.DefaultSelector()
    for committer in committers:
        selector.register(committer.connection.socket, selectors.EVENT_READ, committer)
    begin = time.perf_counter() + warm_up_s
    end = begin + seconds
    is_measured = False
    cpu_s = 0.0
    print("ready", flush=True)
    for committer in committers:
        committer.send(window)
    while (now := time.perf_counter()) < end or is_measured or any(committer.in_flight for committer in committers):
        if not is_measured and begin <= now < end:
            print("begin", flush=True)
            is_measured, cpu_s = True, time.process_time()
        elif is_measured and now >= end:
            print("end", flush=True)
            is_measured, cpu_s = False, time.process_time() - cpu_s
        for key, _ in selector.select(0.01):
            committer = key.data
            count = committer.receive(is_measured=is_measured)
            if count and time.perf_counter() < end:
                committer.send(count)
    for committer in committers:
        committer.verify()
    took = sorted(one for committer in committers for one in committer.took)
    return {
        "sent": sum(committer.sent for committer in committers),
        "commits": len(took),
        "seconds": seconds,
        "cpu_s": cpu_s,
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
    }


def main(arguments: dict[str, Any]) -> None:
    print(json.dumps(run(**arguments)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
