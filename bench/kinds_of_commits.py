"""``python -m bench.kinds_of_commits``: synchronous and asynchronous commits per second."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from bench.claims import judge
from bench.measures import Values
from bench.overview import publish
from bench.pages import MECHANISMS, option_help
from bench.report import head, spread
from bench.sides import Odradek, start
from bench.workload import create_topic
from odradek import Consumer, TopicPartition

NAME = "kinds of commits"
TOPIC = "commits"


def by_odradek(bootstrap: str, count: int, *, is_sync: bool) -> None:
    answered: list[Exception | None] = []
    with Consumer(bootstrap, group_id=f"odradek-{is_sync}", enable_auto_commit=False) as one:
        for offset in range(count):
            if is_sync:
                one.commit({TopicPartition(TOPIC, 0): offset})
            else:
                one.commit_async({TopicPartition(TOPIC, 0): offset}, lambda offsets, error: answered.append(error))
        one.commit({TopicPartition(TOPIC, 0): count})
        if not is_sync and answered != [None] * count:
            raise RuntimeError(f"{len(answered)} of {count} asynchronous commits were answered: {set(answered)}")


def by_confluent(bootstrap: str, count: int, *, is_sync: bool) -> None:
    answered: list[object] = []
    one = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"confluent-{is_sync}", "enable.auto.commit": False,
            "on_commit": lambda error, rows: answered.append(error),
        }
    )  # fmt: skip
    for offset in range(count):
        one.commit(offsets=[ConfluentPartition(TOPIC, 0, offset)], asynchronous=not is_sync)
        one.poll(0)
    while not is_sync and len(answered) < count:
        one.poll(0.01)
    if set(answered) - {None}:
        raise RuntimeError(f"commits failed: {set(answered)}")
    one.close()


CLIENTS: dict[str, Callable[..., None]] = {"odradek": by_odradek, "confluent-kafka": by_confluent}


def one_round(bootstrap: str, count: int) -> Values:
    """Commits per second of each client, by ``CLIENT sync`` and ``CLIENT async``."""
    found: Values = {}
    for name, work in CLIENTS.items():
        for kind in ("sync", "async"):
            began = time.perf_counter()
            work(bootstrap, count, is_sync=kind == "sync")
            found[f"{name} {kind}"] = count / (time.perf_counter() - began)
    return found


def table(rounds: list[Values]) -> str:
    lines = ["| client | synchronous, /s | asynchronous, /s | times more |", "|---|---|---|---|"]
    for name in CLIENTS:
        sync, asynchronous = ([values[f"{name} {kind}"] for values in rounds] for kind in ("sync", "async"))
        times = [mine / other for mine, other in zip(asynchronous, sync, strict=True)]
        lines.append(f"| {name} | {spread(sync)} | {spread(asynchronous)} | {spread(times)} × |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kinds_of_commits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=5_000, help="commits of each kind and client in a round")
    parser.add_argument("--out", type=Path, default=MECHANISMS, help=option_help(MECHANISMS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        side = Odradek(Path(directory))
        try:
            start(side)
            create_topic(side.bootstrap, TOPIC, 1)
            one_round(side.bootstrap, min(args.count, 200))  # loads the code of the clients and of the broker
            rounds = [one_round(side.bootstrap, args.count) for _ in range(args.rounds)]
        finally:
            side.stop()
    run = head(args.rounds, " ".join(["python -m bench.kinds_of_commits", *sys.argv[1:]]))
    publish(args.out, f"{run}\n\n{table(rounds)}", NAME)
    print(table(rounds))
    return judge(NAME, run, rounds, args.out)


if __name__ == "__main__":
    sys.exit(main())
