"""``python -m bench``: odradek beside Apache Kafka, alternately, in one run."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import ablation, claims, overview, report
from bench.apache import Unavailable, class_path
from bench.measures import MEASURES, Sizes, Values, one_round
from bench.pages import BROKER, MECHANISMS, option_help
from bench.sides import Apache, Odradek, Side

CORE = ("start", "idle", "commits", "records")
ABLATION = "ablation"
JAVA_TOOLS = {"producer-perf", "consumer-perf"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [*MEASURES, ABLATION]
    parser.add_argument("--only", action="append", choices=names, help="only this measure (repeatable)")
    parser.add_argument("--core", action="store_true", help=f"only {', '.join(CORE)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both sides (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, to try things out")
    parser.add_argument("--restart-gb", type=float, default=1.0, help="log to restart with after kill -9 (default 1)")
    parser.add_argument("--kafka-cp", help="class path of Apache Kafka's jars (default: fetched by Maven, cached)")
    parser.add_argument("--no-kafka", action="store_true", help="odradek alone")
    parser.add_argument("--out", type=Path, help=option_help(BROKER, MECHANISMS))
    told = parser.parse_args()
    if told.rounds < 1 or told.scale <= 0:
        parser.error("--rounds takes 1 or more, --scale more than 0")
    return told


def kafka_jars(told: argparse.Namespace) -> tuple[str | None, str]:
    """Apache Kafka's class path, or None and why there is none."""
    if told.no_kafka:
        return None, "Apache Kafka was left out (--no-kafka)."
    if told.kafka_cp:
        os.environ["KAFKA_CP"] = told.kafka_cp
    try:
        return class_path(), ""
    except Unavailable as error:
        return None, f"Apache Kafka was left out: {error}."


def tools_are_there() -> bool:
    """Whether Java and Apache Kafka's own tools can be run, against whatever broker."""
    try:
        class_path()
    except Unavailable:
        return False
    return True


def measure_ablation(told: argparse.Namespace, work: Path, command: str) -> int:
    """The table and the plot, into the page and beside it. Returns 1 where they do not show what the articles claim."""
    rounds = []
    for number in range(told.rounds):
        rounds.append(ablation.one_round(work / f"{number}-ablation", Sizes(told.scale)))
        print(f"ablation {number + 1}: {rounds[-1]}", flush=True)
    page = told.out or MECHANISMS
    picture = page.with_name("ablation.svg")
    picture.write_text(ablation.plot(rounds, report.shown))
    shown = f"![What each mechanism is worth]({picture.name})"
    run = report.head(told.rounds, command)
    text = "\n\n".join([run, ablation.table(rounds, report.spread), shown])
    overview.publish(page, text, ABLATION)
    print(text)
    return claims.judge(ABLATION, run, rounds, page)


def main() -> int:
    told = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers are stopped and files removed
    cp, why_not = kafka_jars(told)
    if why_not:
        print(why_not, flush=True)
    chosen = told.only or (CORE if told.core else [*MEASURES, ABLATION])
    names = [name for name in MEASURES if name in chosen]
    if not tools_are_there() and not set(names).isdisjoint(JAVA_TOOLS):
        why_not += " Its tools cannot be had either: the rows they measure are left out."
        names = [name for name in names if name not in JAVA_TOOLS]
    builds: list[tuple[str, Callable[[Path], Side]]] = [("odradek", Odradek)]
    if cp is not None:
        builds.append(("kafka", lambda directory: Apache(directory, cp)))
    rounds: dict[str, list[Values]] = {"odradek": [], "kafka": []}
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    command = " ".join(["python -m bench", *(word for word in sys.argv[1:])])
    code = 0
    try:
        if ABLATION in chosen:
            code = measure_ablation(told, work, command)
        for number in range(told.rounds if names else 0):
            for label, build in builds if number % 2 == 0 else builds[::-1]:
                values = one_round(build, work / f"{number}-{label}", names, Sizes(told.scale, told.restart_gb))
                rounds[label].append(values)
                shutil.rmtree(work / f"{number}-{label}", ignore_errors=True)
                line = "  ".join(f"{key} {report.shown(value)}" for key, value in values.items())
                print(f"round {number + 1} {label}: {line}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if names:
        text = report.section(rounds["odradek"], rounds["kafka"], (Odradek.name, Apache.name), command, why_not)
        page = told.out or BROKER
        overview.publish(page, text, ", ".join(names) if told.only or told.core else "")
        print(f"\n{text}\n\nwritten to {page}")
    return code


if __name__ == "__main__":
    sys.exit(main())
