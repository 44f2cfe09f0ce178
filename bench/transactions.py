"""``python -m bench.transactions``: transactions on odradek and Apache Kafka, measured in turn in one run.

Both brokers run during all rounds, and only one of them has work at a time. The measures ``restart`` and ``spark`` have
brokers of their own.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import overview, report
from bench.__main__ import kafka_jars
from bench.measures import Column, Values, run_workload
from bench.pages import TRANSACTIONS, option_help
from bench.sides import Apache, Odradek, Side, start
from bench.transaction_workload import listed

INTERVAL_MS = 100
PRODUCERS = (1, 16)
IDS = 100_000
_READY_S = 300

COLUMNS: dict[str, Column] = {
    "singles_1": Column("transactions of one record, back to back, 1 producer", "transactions/s", aim=8),
    "singles_1_cpu": Column("… broker CPU per thousand transactions", "s", higher_is_better=False),
    "singles_16": Column("transactions of one record, back to back, 16 producers", "transactions/s", aim=2),
    "singles_16_cpu": Column("… broker CPU per thousand transactions", "s", higher_is_better=False),
    "timed": Column(f"produce in transactions of {INTERVAL_MS} ms, confluent-kafka, 100 B", "rows/s", aim=1),
    "timed_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
    "plain": Column("produce without transactions, the same program", "rows/s"),
    "plain_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
    "share": Column(f"produce in transactions of {INTERVAL_MS} ms ÷ produce without transactions", "×"),
    "restart": Column(f"restart after kill -9, {IDS:,} transactional ids, until all are listed", "s", False, aim=3),
}
SHARE_AIM = 0.9


@dataclass(frozen=True)
class Sizes:
    """``scale`` 1 is the full size; smaller ones are for trial runs."""

    scale: float

    @property
    def timing(self) -> dict[str, float]:
        return {"seconds": max(0.5, 3 * self.scale), "warm_up_s": max(0.3, 1.5 * self.scale)}

    @property
    def ids(self) -> int:
        return max(1000, int(IDS * self.scale))


def measure_singles(side: Side, sizes: Sizes, number: int) -> Values:
    found: Values = {}
    for producers in PRODUCERS:
        timing = sizes.timing
        answer, cpu_s = run_workload(
            "transactions", side, topic=f"singles-{producers}-{number}", producers=producers, **timing
        )
        found[f"singles_{producers}"] = answer["per_s"]
        found[f"singles_{producers}_cpu"] = _share(cpu_s, timing) / answer["count"] * 1e3
    return found


def measure_timed(side: Side, sizes: Sizes, number: int) -> Values:
    found: Values = {}
    for name, transactional in (("timed", True), ("plain", False)):
        timing = sizes.timing
        answer, cpu_s = run_workload(
            "timed_transactions", side, topic=f"{name}-{number}", interval_ms=INTERVAL_MS, transactional=transactional,
            **timing,
        )  # fmt: skip
        found[name] = answer["per_s"]
        found[f"{name}_cpu"] = _share(cpu_s, timing) / answer["count"] * 1e6
    return {**found, "share": found["timed"] / found["plain"]}


def _share(cpu_s: float, timing: dict[str, float]) -> float:
    """The part of the broker's CPU time that belongs to the measured time and not to the warm-up, by duration."""
    return cpu_s * timing["seconds"] / (timing["seconds"] + timing["warm_up_s"])


MEASURES: dict[str, Callable[[Side, Sizes, int], Values]] = {"singles": measure_singles, "timed": measure_timed}
RESTART, SPARK = "restart", "spark"
Build = Callable[[Path], Side]


def restarts(build: Build, directory: Path, sizes: Sizes) -> Side:
    """Returns a broker that has ``sizes.ids`` transactional ids and was killed with kill -9."""
    side = build(directory)
    side.install()
    start(side)
    run_workload("many_transactional_ids", side, count=sizes.ids, prefix="bench")
    side.kill()
    return side


def restart(side: Side, sizes: Sizes) -> Values:
    """Seconds from the start of the broker's process until the broker lists all transactional ids."""
    began = time.perf_counter()
    side.spawn()
    try:
        while time.perf_counter() - began < _READY_S:
            try:
                if listed(side.bootstrap) == sizes.ids:
                    return {"restart": time.perf_counter() - began}
            except OSError:
                pass
            time.sleep(0.01)  # the precision of the figure; requests without a pause would take CPU from the broker
        raise TimeoutError(f"{side.name} did not list {sizes.ids:,} ids within {_READY_S} s")
    finally:
        side.kill()


def run(
    builds: dict[str, Build], work: Path, only: Sequence[str], sizes: Sizes, rounds: int
) -> dict[str, list[Values]]:
    """Returns the values of each side, round by round. The warm-up before ``singles`` and ``timed`` is not measured."""
    found: dict[str, list[Values]] = {name: [{} for _ in range(rounds)] for name in builds}
    measures = [MEASURES[name] for name in MEASURES if name in only]
    if measures:
        sides = {name: build(work / name) for name, build in builds.items()}
        try:
            for side in sides.values():
                side.install()
                start(side)
                run_workload("transactions", side, topic="warm-up", producers=4, **Sizes(min(sizes.scale, 0.5)).timing)
            for number in range(rounds):
                for name in _in_turn(sides, number):
                    for measure in measures:
                        found[name][number] |= measure(sides[name], sizes, number)
                    _print(number, name, found[name][number])
        finally:
            for side in sides.values():
                side.stop()
    if RESTART in only:
        sides = {name: restarts(build, work / f"{name}-restart", sizes) for name, build in builds.items()}
        for number in range(rounds):
            for name in _in_turn(sides, number):
                found[name][number] |= restart(sides[name], sizes)
                _print(number, name, {"restart": found[name][number]["restart"]})
    return found


def _in_turn(sides: dict[str, Side], number: int) -> list[str]:
    return list(sides) if number % 2 == 0 else list(sides)[::-1]


def _print(number: int, name: str, values: Values) -> None:
    line = "  ".join(f"{key} {report.shown(value)}" for key, value in values.items())
    print(f"round {number + 1} {name}: {line}", flush=True)


def table(ours: list[Values], theirs: list[Values]) -> str:
    lines = [f"| figure | {Odradek.name} | {Apache.name} | times better | aim |", "|---|---|---|---|---|"]
    for key, column in COLUMNS.items():
        mine, other = ([values[key] for values in rounds if key in values] for rounds in (ours, theirs))
        if not mine:
            continue
        is_share = key == "share"
        times = report.ratios(mine, other, higher_is_better=column.higher_is_better) if other and not is_share else []
        aim = report.aim(column, mine, times)
        if is_share:
            aim = f"≥ {SHARE_AIM} × ({'met' if median(mine) >= SHARE_AIM else 'missed'})"
        ratio = f"{report.spread(times)} ×" if times else "–"
        lines.append(
            f"| {column.title}, {column.unit} | {report.spread(mine)} | {report.spread(other)} | {ratio} | {aim} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    names = [*MEASURES, RESTART, SPARK]
    parser.add_argument("--only", action="append", choices=names, help="only this measure (repeatable)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both sides (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size, for a trial run")
    parser.add_argument("--kafka-cp", help="class path of Apache Kafka's jars (default: $KAFKA_CP, or from Maven)")
    parser.add_argument("--no-kafka", action="store_true", help="measure odradek only")
    parser.add_argument("--out", type=Path, default=TRANSACTIONS, help=option_help(TRANSACTIONS))
    args = parser.parse_args()
    if args.rounds < 1 or args.scale <= 0:
        parser.error("--rounds takes 1 or more, --scale more than 0")
    args.only = args.only or names
    return args


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers are stopped and files removed
    cp, note = kafka_jars(args)
    if note:
        print(note, flush=True)
    builds: dict[str, Build] = {"odradek": Odradek}
    if cp is not None:
        builds["kafka"] = lambda directory: Apache(directory, cp)
    command = " ".join(["python -m bench.transactions", *sys.argv[1:]])
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-transactions-"))
    try:
        if names := [name for name in args.only if name != SPARK]:
            found = run(builds, work, names, Sizes(args.scale), args.rounds)
            text = f"{report.head(args.rounds, command)}\n\n{table(found['odradek'], found.get('kafka', []))}"
            text += f"\n\n{note}" if note else ""
            overview.publish(args.out, text, "transactions " + ", ".join(names))
            print(f"\n{text}\n", flush=True)
        if SPARK in args.only:
            from bench import transaction_spark

            rounds = transaction_spark.run(work / "spark", args.scale, args.rounds)
            text = f"{report.head(args.rounds, command)}\n\n{transaction_spark.table(rounds)}"
            overview.publish(args.out, text, "transactions in Spark")
            print(f"\n{text}\n", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"written to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
