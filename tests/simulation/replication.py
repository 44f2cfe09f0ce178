"""``python -m tests.simulation.replication SEED`` runs one seed and prints its trace; ``FIRST-LAST`` runs many.

python -m tests.simulation.replication 4711               the result of seed 4711, and its trace
python -m tests.simulation.replication 4711 --shrink      with the faults of its schedule that the failure needs
python -m tests.simulation.replication 0-1999 --jobs 2    2,000 seeds in two processes
python -m tests.simulation.replication 0-1999 --bugs      each planted bug, up to the seed that finds it
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets of strings would be random
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulation.replication", *sys.argv[1:]],
        os.environ | {"PYTHONHASHSEED": "0"},
    )

from sim_replication import ReplicationScenario, shrunk
from sim_replication_bugs import BUGS
from sim_replication_schedules import schedule
from support.world import SimulationFailure


def failure_of(scenario: ReplicationScenario) -> str:
    try:
        scenario.run()
    except SimulationFailure as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return ""


def attempt(seed: int, without: frozenset[int] = frozenset()) -> tuple[Counter[str], str]:
    """Returns what has happened, and the failure as text."""
    scenario = ReplicationScenario(seed, without)
    failure = failure_of(scenario)
    scenario.counts["events"] = scenario.world.events
    return scenario.counts, failure


def one(seed: int, *, is_shrunk: bool) -> int:
    without = shrunk(seed, lambda seed, without: attempt(seed, without)[1]) if is_shrunk else frozenset()
    scenario = ReplicationScenario(seed, without)
    failure = failure_of(scenario)
    print("\n".join(scenario.trace(120)))
    print(scenario.rules)
    for number, fault in enumerate(schedule(seed)[1]):
        if number not in without:
            print(number, *fault)
    print(failure or f"seed {seed} passes: {dict(scenario.counts)}")
    return 1 if failure else 0


def many(first: int, last: int, jobs: int) -> int:
    begun = time.process_time()
    seeds = range(first, last + 1)
    if jobs == 1:
        results = [attempt(seed) for seed in seeds]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            results = list(pool.map(attempt, seeds, chunksize=10))
    failed = [(seed, failure) for seed, (_, failure) in zip(seeds, results, strict=True) if failure]
    total = sum((counts for counts, _ in results), Counter())
    print(", ".join(f"{count:,} {name}" for name, count in sorted(total.items())))
    print(f"{len(seeds)} seeds, {len(failed)} failed {[seed for seed, _ in failed[:50]]}")
    print(f"{time.process_time() - begun:.1f} s of CPU here")
    for _, failure in failed[:8]:
        print(failure[:1_500])
    return 1 if failed else 0


def first_seed(bug: str, first: int, last: int) -> tuple[int, str]:
    """Returns the first seed that shows a planted bug, and how; −1 if none does."""
    for seed in range(first, last + 1):
        with BUGS[bug]():  # for each seed: a bug may keep something of its own
            failure = attempt(seed)[1]
        if failure:
            return seed, failure.splitlines()[0]
    return -1, ""


def all_bugs(first: int, last: int, jobs: int, only: str | None) -> int:
    bugs = list(BUGS) if only is None else [only]
    missed = 0
    with ProcessPoolExecutor(jobs) as pool:
        count = len(bugs)
        for bug, (seed, failure) in zip(bugs, pool.map(first_seed, bugs, [first] * count, [last] * count), strict=True):
            missed += seed < 0
            print(f"    {bug!r}: {seed},  # {failure[:200]}", flush=True)
    print(f"{missed} not seen")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replication")
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--bugs", action="store_true", help="plant each bug (sim_replication_bugs)")
    parser.add_argument("--planted", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument("--shrink", action="store_true", help="leave out faults that the failure does not need")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    if options.bugs or (options.planted and last):
        return all_bugs(int(first), int(last or first), options.jobs, options.planted)
    if last:
        return many(int(first), int(last), options.jobs)
    if options.planted:
        with BUGS[options.planted]():
            return one(int(first), is_shrunk=options.shrink)
    return one(int(first), is_shrunk=options.shrink)


if __name__ == "__main__":
    sys.exit(main())
