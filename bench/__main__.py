"""``python -m bench``: odradek and Apache Kafka, measured in turn in one run."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import ablation, claims, overview, report
from bench.apache import Unavailable, class_path
from bench.measures import MEASURES, Sizes, Values, one_round, tables_of
from bench.pages import BROKER, MECHANISMS, option_help
from bench.sides import Apache, Odradek, Side

CORE = ("start", "idle", "commits", "produce", "consume")
ABLATION = "ablation"
JAVA_TOOLS = {"producer-perf", "consumer-perf"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [*MEASURES, ABLATION]
    parser.add_argument("--only", action="append", choices=names, help="only this measure (repeatable)")
    parser.add_argument("--core", action="store_true", help=f"only {', '.join(CORE)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both sides (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size, for a trial run")
    parser.add_argument("--restart-gb", type=float, default=1.0, help="GB of log for the restart (default 1)")
    parser.add_argument("--kafka-cp", help="class path of Apache Kafka's jars (default: $KAFKA_CP, or from Maven)")
    parser.add_argument("--no-kafka", action="store_true", help="measure odradek only")
    parser.add_argument("--out", type=Path, help=option_help(BROKER, MECHANISMS))
    args = parser.parse_args()
    if args.rounds < 1 or args.scale <= 0:
        parser.error("--rounds takes 1 or more, --scale more than 0")
    return args


def kafka_jars(args: argparse.Namespace) -> tuple[str | None, str]:
    """Apache Kafka's class path and no note, or None and a note with the reason."""
    if args.no_kafka:
        return None, "Apache Kafka was left out (--no-kafka)."
    if args.kafka_cp:
        os.environ["KAFKA_CP"] = args.kafka_cp
    try:
        return class_path(), ""
    except Unavailable as error:
        return None, f"Apache Kafka was left out: {error}."


def has_java_tools() -> bool:
    """Whether Java and Apache Kafka's own tools are available; they measure any broker."""
    try:
        class_path()
    except Unavailable:
        return False
    return True


def measure_ablation(args: argparse.Namespace, work: Path, command: str) -> int:
    """Measures the mechanisms, and writes their table into the page and their plot beside the page.

    Returns the exit code: 1 if the figures do not show a claim, else 0.
    """
    rounds = []
    for number in range(args.rounds):
        rounds.append(ablation.one_round(work / f"{number}-ablation", Sizes(args.scale)))
        print(f"ablation {number + 1}: {rounds[-1]}", flush=True)
    page = args.out or MECHANISMS
    picture = page.with_name("ablation.svg")
    picture.write_text(ablation.plot(rounds, report.shown))
    shown = f"![The gain from each mechanism]({picture.name})"
    run = report.head(args.rounds, command)
    text = "\n\n".join([run, ablation.table(rounds, report.spread), shown])
    overview.publish(page, text, ABLATION)
    print(text)
    return claims.judge(ABLATION, run, rounds, page)


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers are stopped and files removed
    cp, note = kafka_jars(args)
    if note:
        print(note, flush=True)
    chosen = args.only or (CORE if args.core else [*MEASURES, ABLATION])
    names = [name for name in MEASURES if name in chosen]
    if not has_java_tools() and not set(names).isdisjoint(JAVA_TOOLS):
        note += " Apache Kafka's tools are not available either: the rows that they measure are left out."
        names = [name for name in names if name not in JAVA_TOOLS]
    builds: list[tuple[str, Callable[[Path], Side]]] = [("odradek", Odradek)]
    if cp is not None:
        builds.append(("kafka", lambda directory: Apache(directory, cp)))
    rounds: dict[str, list[dict[str, Values]]] = {"odradek": [], "kafka": []}
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    command = " ".join(["python -m bench", *(word for word in sys.argv[1:])])
    code = 0
    try:
        if ABLATION in chosen:
            code = measure_ablation(args, work, command)
        for number in range(args.rounds if names else 0):
            for label, build in builds if number % 2 == 0 else builds[::-1]:
                values = one_round(build, work / f"{number}-{label}", names, Sizes(args.scale, args.restart_gb))
                rounds[label].append(values)
                shutil.rmtree(work / f"{number}-{label}", ignore_errors=True)
                line = "  ".join(f"{key} {report.shown(value)}" for key, value in merged(values, names).items())
                print(f"round {number + 1} {label}: {line}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    page = args.out or BROKER
    for table in tables_of(names):
        ours, theirs = ([merged(values, table) for values in rounds[label]] for label in ("odradek", "kafka"))
        text = report.section(ours, theirs, (Odradek.name, Apache.name), command, note)
        overview.publish(page, text, ", ".join(table))
        print(f"\n{text}\n\nwritten to {page}")
    return code


def merged(values: dict[str, Values], measures: Sequence[str]) -> Values:
    """The values of ``measures`` from one round, together. ``values`` has them by measure."""
    return {key: value for name in measures for key, value in values[name].items()}


if __name__ == "__main__":
    sys.exit(main())
