"""CPU time per request of the broker in this revision, compared with another revision.

``python -m bench.revisions OTHER/src [ROUNDS] [CASE ...]``

Three brokers run: "first" and "second" of the other revision, and "here" of this revision. In each round of a case, the
brokers get the same requests. One broker follows another, in random order. The figure is the run time of all threads of
a broker (from ``/proc``). The case "start" measures new brokers from their start until they are ready.

The output has two ratios for each case: "here" to "first", and "second" to "first" ("itself"). Each is a median with
its quartiles. The second ratio shows the spread between equal revisions. The last figure is the median time of "first"
per request. The idle memory of the three brokers is printed, too.

The modules of both revisions are compiled first, even if ``PYTHONDONTWRITEBYTECODE`` is set, so that "start" does not
measure the compilation.
"""

from __future__ import annotations

import compileall
import random
import statistics
import struct
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.raw import Connection, batches, check_produced, produce_request, repeat_until_accepted
from bench.sides import CONFIG, resident_bytes
from bench.transaction_requests import NEW, OLD, TransactionRequests
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.testing.process import BrokerProcess
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS, FETCH, FIND_COORDINATOR, HEARTBEAT, METADATA, OFFSET_COMMIT

TOPIC = "pairs"
_PARTITIONS = 100
_WARM_UP = 3
_GROUPS = 8
_START = "start"
_SOURCE = Path(__file__).resolve().parent.parent / "src"
_EXAMPLE = """\
example: compares this revision with the tenth before it, in 30 rounds of two cases
  git worktree add ../other HEAD~10
  python -m bench.revisions ../other/src 30 start commit
"""
_TRIM_S = 2.0  # a broker frees the memory of long requests one second after their end


class Revision(BrokerProcess):
    """A broker with the code of another checkout's ``src``."""

    def __init__(self, directory: Path, source: Path) -> None:
        super().__init__(directory, config={**CONFIG, "num.partitions": str(_PARTITIONS)})
        self.source = source

    def command_line(self) -> list[str]:
        return ["env", f"PYTHONPATH={self.source}", *super().command_line()]

    def ran_ns(self) -> int:
        """The run time of all threads of the broker's process, in ns."""
        tasks = Path(f"/proc/{self.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def _fetch(offset: int, partitions: Sequence[int], most_bytes: int) -> bytes:
    parts = [{"partition": n, "fetch_offset": offset, "partition_max_bytes": most_bytes} for n in partitions]
    message = {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": most_bytes,
        "isolation_level": 0,
        "topics": [{"topic": TOPIC, "partitions": parts}],
    }
    return frames.encode_request(FETCH, 4, 0, "bench", message)


def _commit(group: str, offset: int, partitions: int = 1) -> bytes:
    parts = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": ""} for index in range(partitions)
    ]
    message = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": [{"name": TOPIC, "partitions": parts}],
    }
    return frames.encode_request(OFFSET_COMMIT, 2, 0, "bench", message)


def _no_error(reply: bytes) -> None:
    if struct.unpack_from(">h", reply, len(reply) - 2)[0]:
        raise RuntimeError("the last partition of the reply has an error code")


def _accept(reply: bytes) -> None:
    if len(reply) < 10:
        raise RuntimeError("the reply is too short")


class Case(Protocol):
    """``count`` requests or transactions, sent to a broker one way or another."""

    count: int

    def run(self, bootstrap: str) -> None:
        """Sends them and checks the replies. Raises RuntimeError."""


class Transactions:
    """``count`` transactions of a kind of client, one after the other. Each run has a transactional id of its own."""

    count = 200

    def __init__(self, case: str) -> None:
        self.case, self.runs = case, 0

    def run(self, bootstrap: str) -> None:
        self.runs += 1
        made = TransactionRequests(bootstrap, TOPIC, self.case, self.count, f"{self.case} {self.runs}")
        connection = Connection(bootstrap)
        made.check([connection.call(request) for one in made.transactions for request in one])
        connection.socket.close()


class Workload:
    """``count`` requests of one kind, over ``connections`` connections with ``window`` requests in flight on each."""

    def __init__(
        self,
        requests: Sequence[bytes],
        check: Callable[[bytes], None],
        count: int,
        connections: int = 1,
        window: int = 1,
    ) -> None:
        self.requests, self.check, self.count = requests, check, count
        self.connections, self.window = connections, window

    def run(self, bootstrap: str) -> None:
        connections = [Connection(bootstrap) for _ in range(self.connections)]
        sent = 0
        for _ in range(self.count // (self.connections * self.window)):
            for connection in connections:
                together = b"".join(self.requests[(sent + n) % len(self.requests)] for n in range(self.window))
                sent += self.window
                connection.socket.sendall(together)
            for connection in connections:
                for _ in range(self.window):
                    self.check(connection.reply())
        for connection in connections:
            connection.socket.close()


def workloads() -> dict[str, Workload]:
    """The workloads by name."""
    now_ms = int(time.time() * 1000)
    one = encode_batch([SimpleRecord(b"", b"x" * 100)], now_ms=now_ms)
    hundred = batches(8, 100, 100)

    def produced(reply: bytes) -> None:
        check_produced(TOPIC, reply)

    produces = [produce_request(TOPIC, n % _PARTITIONS, one) for n in range(_PARTITIONS)]
    commits = [_commit(f"group-{n % _GROUPS}", n) for n in range(64)]
    many_commits = [_commit(f"group-{n % _GROUPS}", n, _PARTITIONS) for n in range(64)]
    versions = frames.encode_request(API_VERSIONS, 0, 0, "bench", {})
    beat = {"group_id": "group-0", "generation_id": 1, "member_id": "no member", "group_instance_id": None}
    names = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
    return {
        "produce 1 record": Workload(produces, produced, 600),
        "produce 1 record, 4 in flight": Workload(produces, produced, 800, window=4),
        "produce 1 record, 4 connections, 16 in flight": Workload(produces, produced, 1600, 4, 16),
        "produce 100 records": Workload([produce_request(TOPIC, 0, data) for data in hundred], produced, 300),
        "fetch 1 record": Workload([_fetch(0, [1], 1)], _accept, 600),
        "fetch 100 KB": Workload([_fetch(0, [0], 1)], _accept, 600),
        "fetch 1 MB": Workload([_fetch(0, [0], 1 << 20)], _accept, 200),
        "fetch 100 partitions": Workload([_fetch(0, range(_PARTITIONS), 1 << 20)], _accept, 60),
        "commit": Workload(commits, _no_error, 600),
        "commit, 8 connections": Workload(commits, _no_error, 1600, connections=8),
        "commit, 8 connections, 8 in flight": Workload(commits, _no_error, 1600, 8, 8),
        "commit of 100 partitions": Workload(many_commits, _no_error, 200),
        "metadata": Workload([frames.encode_request(METADATA, 4, 0, "bench", names)], _accept, 100),
        "heartbeat": Workload([frames.encode_request(HEARTBEAT, 4, 0, "bench", beat)], _accept, 600),
        "api versions": Workload([versions], _accept, 600),
    }


def prepare(bootstrap: str) -> None:
    """Fills the topic and makes one commit for each group.

    The first Produce request and each commit are repeated until the broker accepts them.
    """
    one = encode_batch([SimpleRecord(b"", b"x" * 100)], now_ms=int(time.time() * 1000))
    made = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True}
    connection = Connection(bootstrap)
    connection.call(frames.encode_request(METADATA, 4, 0, "bench", made))
    repeat_until_accepted(connection, produce_request(TOPIC, 1, one), lambda reply: check_produced(TOPIC, reply))
    for data in batches(10, 1000, 100):
        check_produced(TOPIC, connection.call(produce_request(TOPIC, 0, data)))
    connection.call(frames.encode_request(FIND_COORDINATOR, 0, 0, "bench", {"key": "group-0"}))
    for number in range(_GROUPS):
        repeat_until_accepted(connection, _commit(f"group-{number}", 0), _no_error)


def _summary(name: str, ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{name} {middle:.3f} ({low:.3f} to {high:.3f})"


def package_folder(text: str) -> Path:
    """The argument OTHER/src as a path. Raises ``ArgumentTypeError`` if the folder does not have the package."""
    folder = Path(text).resolve()
    if not (folder / "odradek" / "__init__.py").is_file():
        raise ArgumentTypeError(f"{folder} has no package odradek. Give the folder src of another checkout.")
    return folder


def number_of_rounds(text: str) -> int:
    """The argument ROUNDS. Raises ``ArgumentTypeError`` below 2, because quartiles need two values."""
    if not text.isdecimal() or int(text) < 2:
        raise ArgumentTypeError(f"{text!r} is no number of rounds. Give a number from 2 on.")
    return int(text)


def compile_modules(*folders: Path) -> None:
    """Compiles all modules in the folders, so that no measurement includes the compilation."""
    for folder in folders:
        if not compileall.compile_dir(folder / "odradek", quiet=1):
            raise RuntimeError(f"the modules in {folder} cannot be compiled")


def argument_parser(module: str, text: str | None, example: str, rounds: int, names: Sequence[str]) -> ArgumentParser:
    """The arguments OTHER/src, ROUNDS (default: ``rounds``) and CASE (one of ``names``) of ``python -m module``."""

    def case(value: str) -> str:
        if value not in names:
            raise ArgumentTypeError(f"{value!r} is no case. The cases are: {'; '.join(names)}")
        return value

    parser = ArgumentParser(
        prog=f"python -m {module}", description=text, epilog=example, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("other", metavar="OTHER/src", type=package_folder, help="the folder src of another checkout")
    parser.add_argument(
        "rounds",
        metavar="ROUNDS",
        type=number_of_rounds,
        nargs="?",
        default=rounds,
        help=f"rounds that count; default: {rounds}",
    )
    parser.add_argument(
        "cases", metavar="CASE", type=case, nargs="*", help=f"what is measured; default: all of {'; '.join(names)}"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    everything: dict[str, Case] = {**workloads(), **{name: Transactions(name) for name in (NEW, OLD)}}
    chosen = argument_parser("bench.revisions", __doc__, _EXAMPLE, 30, [_START, *everything]).parse_args(arguments)
    cases, rounds = chosen.cases or [_START, *everything], chosen.rounds
    compile_modules(chosen.other, _SOURCE)
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        sides = {
            name: Revision(Path(place) / name, source)
            for name, source in (("first", chosen.other), ("second", chosen.other), ("here", _SOURCE))
        }
        try:
            for broker in sides.values():
                broker.start()
                prepare(broker.bootstrap_servers)
            if _START in cases:
                took = compare(list(sides), rounds, 1, chance, lambda side: _start_ns(sides[side].source))
                report(_START, took, 1)
            time.sleep(_TRIM_S)
            for name, broker in sides.items():
                print(f"idle memory, {name}: {resident_bytes([broker.pid or 0]) / 1e6:.1f} MB", flush=True)
            for name, workload in everything.items():
                if name not in cases:
                    continue
                measure = partial(_side_ns, sides, workload)
                report(name, compare(list(sides), rounds, _WARM_UP, chance, measure), workload.count)
        finally:
            for broker in sides.values():
                broker.stop()


def _side_ns(sides: Mapping[str, Revision], workload: Case, side: str) -> int:
    """The run time of a side's broker for one workload, in ns."""
    broker = sides[side]
    before = broker.ran_ns()
    workload.run(broker.bootstrap_servers)
    return broker.ran_ns() - before


def _start_ns(source: Path) -> int:
    """The run time of a new broker from its start until it is ready, in ns."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Revision(Path(directory), source)
        broker.start()
        ran_ns = broker.ran_ns()
        broker.stop()
    return ran_ns


def compare(
    sides: Sequence[str], rounds: int, warm_up: int, chance: random.Random, measure: Callable[[str], int]
) -> dict[str, list[int]]:
    """Measures all sides in each round, in random order. Returns the nanoseconds of each side, round by round.

    The first ``warm_up`` rounds do not count.
    """
    took: dict[str, list[int]] = {side: [] for side in sides}
    for number in range(warm_up + rounds):
        for side in chance.sample(list(sides), len(sides)):
            ran_ns = measure(side)
            if number >= warm_up:
                took[side].append(ran_ns)
    return took


def report(name: str, took: dict[str, list[int]], count: int) -> None:
    """Prints the two ratios of a case, and the median time of "first" for one of ``count`` requests."""
    here, second = (
        [mine / first for mine, first in zip(took[side], took["first"], strict=True)] for side in ("here", "second")
    )
    each_us = statistics.median(took["first"]) / count / 1000
    print(f"{name}: {_summary('here', here)}; {_summary('itself', second)}; {each_us:,.2f} µs", flush=True)


if __name__ == "__main__":
    main()
