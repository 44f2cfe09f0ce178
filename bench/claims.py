"""The articles' claims about speed (docs/claims.md), compared with the measurements.

A benchmark passes its rounds to ``judge``, which stores them in docs/benchmarks.json. If the rounds do not show a
claim, ``judge`` prints the claim's number, and the benchmark exits with 1. The tests check the stored rounds again.
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
    """Claim 7: writes in sequence are faster than writes at random positions, for small blocks.

    They must be at least twice as fast for blocks of 1,000 bytes, and faster for blocks of 4,096 bytes. Larger blocks
    are not checked.
    """
    return (
        _times(rounds, "sequential_1000", "random_1000") >= 2 and _times(rounds, "sequential_4096", "random_4096") > 1
    )


def batches_are_faster(rounds: Rounds) -> bool:
    """Claim 9: batches with ten times the records give at least twice the records/s, from 1 to 1,000 in a batch."""
    return all(_times(rounds, f"batch_{10 * size}", f"batch_{size}") >= 2 for size in (1, 10, 100))


def sendfile_is_twice_as_fast(rounds: Rounds) -> bool:
    """Claim 11, for sending alone: replies of 1 MiB by sendfile, compared with read and write.

    sendfile takes at most half the CPU time per GB and sends at least twice the GB/s.
    """
    copied, sent = "read, then write; uvloop", "os.sendfile beside the transport; uvloop"
    cpu = median(values[f"{copied}, 1024 KiB, s/GB"] for values in rounds)
    speed = median(values[f"{sent}, 1024 KiB, GB/s"] for values in rounds)
    return (
        cpu >= 2 * median(values[f"{sent}, 1024 KiB, s/GB"] for values in rounds)
        and speed >= 2 * median(values[f"{copied}, 1024 KiB, GB/s"] for values in rounds)
    )  # fmt: skip


def sendfile_spares_the_broker(rounds: Rounds) -> bool:
    """Claim 11, for a broker, which does more than send: without sendfile it takes at least 1.2 times the CPU."""
    return _times(rounds, "copying_cpu", "sendfile_cpu") >= 1.2


def a_million_records_a_second(rounds: Rounds) -> bool:
    """Claim 12: a million records per second, in batches of 1,000 records."""
    return median(values["batch_1000"] for values in rounds) >= 1e6


def synchronous_commits_cost(rounds: Rounds) -> bool:
    """Claim 34: a client makes more asynchronous than synchronous commits per second.

    confluent-kafka must make 1.5 times as many. Our client must only make more: each asynchronous commit waits for the
    client's event loop.
    """
    return (
        _times(rounds, "confluent-kafka async", "confluent-kafka sync") >= 1.5
        and _times(rounds, "odradek async", "odradek sync") > 1
    )


def commits_are_frequent(rounds: Rounds) -> bool:
    """Claim 92: at least a thousand synchronous commits per second of one consumer."""
    return median(values["confluent-kafka sync"] for values in rounds) >= 1_000


def zookeeper_is_slow_at_frequent_commits(rounds: Rounds) -> bool:
    """Claim 116: both brokers take at least twice as many commits of 50 partitions per second as ZooKeeper.

    ZooKeeper has one node and gets one write per partition, as from consumers up to Kafka 1.1. No store syncs its
    writes. Commits of one partition are not checked.
    """
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
"""By the benchmark's name: the numbers of its claims, each with its check."""


def rounds_file(page: Path) -> Path:
    """The JSON file with the rounds: docs/benchmarks.json for pages in docs/benchmarks, else a file beside the page."""
    return (OVERVIEW if page.parent == FOLDER else page).with_suffix(".json")


def kept(page: Path = MECHANISMS) -> dict[str, Rounds]:
    """The rounds of the last run of each benchmark, by its name. Empty if there is no file."""
    path = rounds_file(page)
    return {name: run["rounds"] for name, run in json.loads(path.read_text()).items()} if path.exists() else {}


def keep(name: str, head: str, rounds: Rounds, page: Path = MECHANISMS) -> None:
    """Stores the rounds. ``head`` says when, where and how they were measured."""
    path = rounds_file(page)
    runs = json.loads(path.read_text()) if path.exists() else {}
    runs[name] = {"run": head, "rounds": list(rounds)}
    path.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n")


def unshown(name: str, rounds: Rounds) -> list[int]:
    """The numbers of the claims that these rounds do not show."""
    return [claim for claim, shows in CHECKS[name] if not shows(rounds)]


def judge(name: str, head: str, rounds: Rounds, page: Path = MECHANISMS) -> int:
    """Stores the rounds and prints each claim that they do not show. Returns 1 if there is such a claim, else 0."""
    keep(name, head, rounds, page)
    missing = unshown(name, rounds)
    for claim in missing:
        print(f"{name}: the figures do not show claim {claim}", file=sys.stderr, flush=True)
    return 1 if missing else 0
