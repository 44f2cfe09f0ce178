"""The command line of a benchmark of ours beside three nodes of Apache Kafka, and its rounds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import report
from bench.apache import class_path
from bench.pages import option_help
from bench.replicated_clusters import ApacheBrokers, Make, OdradekBrokers

Results = dict[str, list[dict[str, Any]]]


def add_options(parser: argparse.ArgumentParser, page: Path) -> None:
    """Adds the options of every such benchmark. ``page``: where its table is by default."""
    parser.add_argument("--ours", action="store_true", help="without Apache Kafka: prints the rounds, writes no page")
    parser.add_argument("--output", type=Path, help="a JSON file with all rounds, written after each round")
    parser.add_argument(
        "--join", type=Path, nargs="+", default=[], metavar="FILE",
        help="JSON files of earlier runs (--output): their rounds are in the table, too",
    )  # fmt: skip
    parser.add_argument("--page", type=Path, default=page, help=option_help(page))


def compare(
    options: argparse.Namespace,
    name: str,
    one_round: Callable[[Make], dict[str, Any]],
    section: Callable[[Results], str],
) -> None:
    """Measures the sides in turn. Writes the table ``section`` of the benchmark ``name``, unless ``--ours``."""
    sides: dict[str, Make] = {OdradekBrokers.name: OdradekBrokers}
    if not options.ours:
        jars = class_path()
        sides[ApacheBrokers.name] = lambda directory, settings: ApacheBrokers(directory, settings, jars)
    measured: dict[str, Callable[[], dict[str, Any]]] = {side: partial(one_round, make) for side, make in sides.items()}
    results = report.measure_rounds(measured, options.rounds, alternating=True, output=options.output)
    if not options.ours:
        joined(results, options.join)
        command = " ".join([f"python -m bench.{name}", *sys.argv[1:]])
        table = f"{report.head(len(results[OdradekBrokers.name]), command)}\n\n{section(results)}"
        report.publish(options.page, name, table, results, None)


def joined(results: Results, files: Sequence[Path]) -> None:
    """Adds the rounds of earlier runs before those of this one. Raises ValueError for a file of other sides."""
    for file in reversed(files):
        earlier: Results = json.loads(file.read_text())
        if earlier.keys() != results.keys():
            raise ValueError(f"{file} has the sides {', '.join(earlier)}, not {', '.join(results)}")
        for side, rounds in earlier.items():
            results[side][:0] = rounds
