"""``python -m bench.latency``: one request at a time, with our clients and confluent-kafka on the same broker.

With ``--before OTHER/src`` the clients of another checkout's package take part, too. Each client runs in a process of
its own, and the order changes from round to round. The broker is that of this checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.pages import LATENCY, option_help
from bench.report import head, measure_rounds, publish, spread
from bench.sides import Odradek, start
from bench.workload import create_topic

TOPIC = "singles"
VALUE = b"x" * 100
_WARM_UP = 200
_SOURCE = Path(__file__).resolve().parent.parent / "src"
Step = Callable[[int], None]


@contextmanager
def commit_ours(bootstrap: str) -> Iterator[Step]:
    from odradek import Consumer, TopicPartition

    with Consumer(bootstrap, group_id=f"ours-{os.getpid()}", enable_auto_commit=False) as one:
        yield lambda number: one.commit({TopicPartition(TOPIC, 0): number})


@contextmanager
def commit_confluent(bootstrap: str) -> Iterator[Step]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": f"theirs-{os.getpid()}", "enable.auto.commit": False}
    one = Consumer(settings)
    yield lambda number: one.commit(offsets=[TopicPartition(TOPIC, 0, number)], asynchronous=False)
    one.close()


@contextmanager
def result_ours(bootstrap: str) -> Iterator[Step]:
    from odradek import Producer

    with Producer(bootstrap, acks="all", linger_ms=0) as one:

        def step(number: int) -> None:
            one.send(TOPIC, VALUE, partition=0).result()

        yield step


@contextmanager
def flush_ours(bootstrap: str) -> Iterator[Step]:
    from odradek import Producer

    with Producer(bootstrap, acks="all", linger_ms=0) as one:

        def step(number: int) -> None:
            one.send(TOPIC, VALUE, partition=0)
            one.flush()

        yield step


@contextmanager
def flush_confluent(bootstrap: str) -> Iterator[Step]:
    from confluent_kafka import Producer

    one = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})

    def step(number: int) -> None:
        one.produce(TOPIC, VALUE, partition=0)
        one.flush()

    yield step


@contextmanager
def poll_ours(bootstrap: str) -> Iterator[Step]:
    from odradek import Consumer, Producer, TopicPartition

    place = TopicPartition(TOPIC, 1)
    with Producer(bootstrap, linger_ms=0) as producer, Consumer(bootstrap, auto_offset_reset="latest") as one:
        one.assign([place])
        one.position(place)
        one.poll(0.2)

        def step(number: int) -> None:
            producer.send(TOPIC, VALUE, partition=1)
            while not one.poll(5):
                pass

        yield step


@contextmanager
def poll_confluent(bootstrap: str) -> Iterator[Step]:
    from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    one = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    one.assign([TopicPartition(TOPIC, 1, OFFSET_END)])
    one.poll(1)

    def step(number: int) -> None:
        producer.produce(TOPIC, VALUE, partition=1)
        while (message := one.poll(5)) is None or message.error() is not None:
            pass

    yield step
    one.close()


Client = Callable[[str], Any]
CASES: dict[str, tuple[str, Client, Client]] = {
    "commit": ("commit and wait", commit_ours, commit_confluent),
    "result": ("send one record, `result()`", result_ours, flush_confluent),
    "flush": ("send one record, `flush()`", flush_ours, flush_confluent),
    "poll": ("one record from send to poll", poll_ours, poll_confluent),
}
"""Name → title, our client, and confluent-kafka."""


def _switches() -> int:
    """The switches of all threads of this process."""
    lines = [line for one in Path("/proc/self/task").iterdir() for line in (one / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def run_child(case: str, is_ours: bool, bootstrap: str, count: int) -> dict[str, float]:
    """The figures of one client: rate per second, p50 and p99 in µs; CPU in µs, and switches between threads, each."""
    took: list[float] = []
    _, ours, theirs = CASES[case]
    with (ours if is_ours else theirs)(bootstrap) as step:
        for number in range(_WARM_UP):
            step(number)
        cpu, switches, began = time.process_time(), _switches(), time.perf_counter()
        for number in range(count):
            before = time.perf_counter()
            step(_WARM_UP + number)
            took.append((time.perf_counter() - before) * 1e6)
        seconds = time.perf_counter() - began
        cpu_us, switched = (time.process_time() - cpu) * 1e6, _switches() - switches
    took.sort()
    return {
        "rate": count / seconds, "p50": took[count // 2], "p99": took[count * 99 // 100], "cpu": cpu_us / count,
        "switches": switched / count,
    }  # fmt: skip


def child(case: str, source: Path | None, bootstrap: str, count: int) -> dict[str, float]:
    """Runs a client in a process of its own. ``source``: the folder with the package; None for confluent-kafka."""
    job = json.dumps([case, source is not None, bootstrap, count])
    variables = os.environ | {"PYTHONPATH": f"{source or _SOURCE}:{_SOURCE.parent}"}
    command = [sys.executable, "-m", "bench.latency", "--child", job]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{case} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """``results``: case → client → figures of each round. The ratios are medians of those of single rounds."""
    lines = [
        "| one at a time | client | per second | p50, µs | p99, µs | CPU, µs | switches | odradek's rate is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, clients in results.items():
        title = CASES[case][0]
        for name, rounds in clients.items():
            cells = [spread([one[key] for one in rounds]) for key in ("rate", "p50", "p99", "cpu", "switches")]
            times = [mine["rate"] / other["rate"] for mine, other in zip(clients["odradek"], rounds, strict=True)]
            ratio = "" if name == "odradek" else f"{median(times):.2f} ×"
            lines.append(f"| {title} | {name} | {' | '.join(cells)} | {ratio} |")
            title = ""
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="only this case (repeatable)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=1_000, help="requests of each client in a round")
    parser.add_argument("--before", type=Path, metavar="OTHER/src", help="the folder src of an earlier checkout")
    parser.add_argument("--out", type=Path, default=LATENCY, help=option_help(LATENCY))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_child(*json.loads(args.child))))
        return 0
    clients: dict[str, Path | None] = {"odradek": _SOURCE, "confluent-kafka": None}
    if args.before:
        clients["odradek before"] = args.before.resolve()
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        side = Odradek(Path(directory))
        try:
            start(side)
            create_topic(side.bootstrap, TOPIC, 2)
            for case in args.only or CASES:
                runs = {name: _run(case, source, side.bootstrap, args.count) for name, source in clients.items()}
                results[case] = measure_rounds(runs, args.rounds, alternating=True)
        finally:
            side.stop()
    command = " ".join(
        ["python -m bench.latency", *("OTHER/src" if one.startswith("/") else one for one in sys.argv[1:])]
    )
    publish(args.out, "latency", f"{head(args.rounds, command)}\n\n{table(results)}", results, None)
    return 0


def _run(case: str, source: Path | None, bootstrap: str, count: int) -> Callable[[], dict[str, float]]:
    return lambda: child(case, source, bootstrap, count)


if __name__ == "__main__":
    sys.exit(main())
