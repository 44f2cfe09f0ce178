"""``python -m tests.simulation.clusters SEED`` runs one seed of a controller and its brokers; ``FIRST-LAST`` runs many.

python -m tests.simulation.clusters 4711               the result of seed 4711, and its trace
python -m tests.simulation.clusters 4711 --shrink      with the faults of its schedule that the failure needs
python -m tests.simulation.clusters 0-999 --jobs 2     1,000 seeds in two processes
python -m tests.simulation.clusters 0-99 --planted B   a planted bug, up to the seed that finds it
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets of strings would be random
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulation.clusters", *sys.argv[1:]],
        os.environ | {"PYTHONHASHSEED": "0"},
    )

from sim_cluster import MESSAGES, ClusterScenario, Entry, shrunk
from sim_cluster_bugs import BUGS
from support.world import SimulationFailure


def run(seed: int, without: frozenset[Entry] = frozenset()) -> tuple[ClusterScenario, str]:
    """Returns the scenario after its run, and the failure as text; "" if it passes."""
    scenario = ClusterScenario(seed, without)
    try:
        scenario.run()
    except SimulationFailure as error:
        return scenario, f"SimulationFailure: {error}"
    except Exception as error:
        return scenario, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return scenario, ""


def attempt(seed: int) -> tuple[Counter[str], str]:
    scenario, failure = run(seed)
    return scenario.counts, failure


def one(seed: int, *, is_shrunk: bool) -> int:
    def entries_of(seed: int, without: frozenset[Entry]) -> tuple[list[Entry], str]:
        scenario, failure = run(seed, without)
        return scenario.entries, failure

    without = shrunk(seed, entries_of) if is_shrunk else frozenset()
    scenario, failure = run(seed, without)
    print("\n".join(scenario.trace[-120:]))
    left = [one if one in MESSAGES else f"fault {one}" for one in scenario.entries if one not in without]
    print(f"the schedule has: {', '.join(map(str, left))}")
    print(f"seed {seed} FAILS: {failure}" if failure else f"seed {seed} passes: {dict(scenario.counts)}")
    return 1 if failure else 0


def many(first: int, last: int, jobs: int, *, to_failure: bool) -> int:
    """Runs the seeds. With ``to_failure``, it stops after the first seed that fails."""
    total: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    seeds = range(first, last + 1)
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        results = map(attempt, seeds) if pool is None else pool.map(attempt, seeds, chunksize=10)
        for seed, (counts, failure) in zip(seeds, results, strict=False):
            total += counts
            if failure:
                failed.append((seed, failure))
                if to_failure:
                    break
    print(", ".join(f"{count:,} {name}" for name, count in sorted(total.items())))
    print(f"seeds {first} to {last}, {len(failed)} failed {[seed for seed, _ in failed[:50]]}")
    for seed, failure in failed[:1]:
        print(f"{failure}\nagain: python -m tests.simulation.clusters {seed} --shrink")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.clusters")
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--planted", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument("--shrink", action="store_true", help="leave out faults that the failure does not need")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, last = options.seeds.partition("-")
    with BUGS[options.planted]() if options.planted else nullcontext():
        if last:
            jobs = 1 if options.planted else options.jobs  # a bug is planted in this process alone
            return many(int(first), int(last), jobs, to_failure=bool(options.planted))
        return one(int(first), is_shrunk=options.shrink)


if __name__ == "__main__":
    sys.exit(main())
