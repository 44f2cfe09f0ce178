"""The articles' claims about speed (docs/claims.md), compared with the measurements.

A benchmark passes its rounds to ``judge``, which keeps them in docs/benchmarks.json and reports the claims that they do
not show. The benchmark then exits with 1. The tests judge the kept rounds again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.measures import Values
from bench.pages import FOLDER, MECHANISMS, OVERVIEW

Rounds = Sequence[Values]


def _times(rounds: Rounds, key: str, base: str) -> float:
    """The median, over the rounds, of ``key`` divided by ``base``."""
    return median(values[key] / values[base] for values in rounds)


def sequential_writes_are_faster(rounds: Rounds) -> bool:
    """Claim 7: written in sequence, blocks of 1,000 bytes are at least twice as fast as at random positions, and blocks
    of 4,096 bytes are faster. Larger blocks need not be."""
    return (
        _times(rounds, "sequential_1000", "random_1000") >= 2 and _times(rounds, "sequential_4096", "random_4096") > 1
    )


def batches_are_faster(rounds: Rounds) -> bool:
    """Claim 9: with ten times as many records in a batch, at least twice as many records per second, at each step."""
    return all(_times(rounds, f"batch_{10 * size}", f"batch_{size}") >= 2 for size in (1, 10, 100))


def sendfile_is_twice_as_fast(rounds: Rounds) -> bool:
    """Claim 11, for sending alone: half the CPU and twice the bytes per second, for replies of 1 MiB."""
    copied, sent = "read, then write; uvloop", "os.sendfile beside the transport; uvloop"
    cpu = median(values[f"{copied}, 1024 KiB, s/GB"] for values in rounds)
    speed = median(values[f"{sent}, 1024 KiB, GB/s"] for values in rounds)
    return (
        cpu >= 2 * median(values[f"{sent}, 1024 KiB, s/GB"] for values in rounds)
        and speed >= 2 * median(values[f"{copied}, 1024 KiB, GB/s"] for values in rounds)
    )  # fmt: skip


def sendfile_spares_the_broker(rounds: Rounds) -> bool:
    """Claim 11, in a broker, which does more than sending."""
    return _times(rounds, "copying_cpu", "sendfile_cpu") >= 1.2


def a_million_records_a_second(rounds: Rounds) -> bool:
    """Claim 12."""
    return median(values["batch_1000"] for values in rounds) >= 1e6


def synchronous_commits_cost(rounds: Rounds) -> bool:
    """Claim 34: synchronous and asynchronous commits per second. An asynchronous commit of our client still waits for
    the client's loop, so it gains less."""
    return (
        _times(rounds, "confluent-kafka async", "confluent-kafka sync") >= 1.5
        and _times(rounds, "odradek async", "odradek sync") > 1
    )


def commits_are_frequent(rounds: Rounds) -> bool:
    """Claim 92: at least a thousand synchronous commits per second of one consumer."""
    return median(values["confluent-kafka sync"] for values in rounds) >= 1_000


def zookeeper_is_slow_at_frequent_commits(rounds: Rounds) -> bool:
    """Claim 116: with commits of 50 partitions, both brokers take at least twice as many per second as one node of
    ZooKeeper, which gets one write a partition, as consumers up to Kafka 1.1 send them. No store syncs its writes. With
    one partition in a commit, ZooKeeper need not be slower."""
    load = "50/pipelined/per_s"
    zookeeper = f"ZooKeeper, 1 node, one write a partition/{load}"
    return all(_times(rounds, f"{store}/{load}", zookeeper) >= 2 for store in ("odradek", "Apache Kafka"))


CHECKS: dict[str, tuple[tuple[int, Callable[[Rounds], bool]], ...]] = {
    "ablation": ((9, batches_are_faster), (11, sendfile_spares_the_broker), (12, a_million_records_a_second)),
    "sending": ((11, sendfile_is_twice_as_fast),),
    "order of writes": ((7, sequential_writes_are_faster),),
    "kinds of commits": ((34, synchronous_commits_cost), (92, commits_are_frequent)),
    "offset stores": ((116, zookeeper_is_slow_at_frequent_commits),),
}
"""By benchmark: the claims that it shows, with the check of each."""


def rounds_file(page: Path) -> Path:
    """The file with the rounds: one for all pages of docs/benchmarks, otherwise the page's own."""
    return (OVERVIEW if page.parent == FOLDER else page).with_suffix(".json")


def kept(page: Path = MECHANISMS) -> dict[str, Rounds]:
    """The rounds of the last run of each benchmark."""
    path = rounds_file(page)
    return {name: run["rounds"] for name, run in json.loads(path.read_text()).items()} if path.exists() else {}


def keep(name: str, head: str, rounds: Rounds, page: Path = MECHANISMS) -> None:
    """Stores the rounds. ``head`` says when, where and how they were measured."""
    path = rounds_file(page)
    runs = json.loads(path.read_text()) if path.exists() else {}
    runs[name] = {"run": head, "rounds": list(rounds)}
    path.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n")


def unshown(name: str, rounds: Rounds) -> list[int]:
    """The claims that these rounds do not show."""
    return [claim for claim, shows in CHECKS[name] if not shows(rounds)]


def judge(name: str, head: str, rounds: Rounds, page: Path = MECHANISMS) -> int:
    """Stores the rounds and prints the claims that they do not show. Returns the exit code of the benchmark."""
    keep(name, head, rounds, page)
    missing = unshown(name, rounds)
    for claim in missing:
        print(f"{name}: the figures do not show claim {claim}", file=sys.stderr, flush=True)
    return 1 if missing else 0
