"""``python -m tests.simulation.tables SEED`` runs one seed and prints its trace; ``FIRST-LAST`` runs many.

python -m tests.simulation.tables 4711               the result of seed 4711, and its trace
python -m tests.simulation.tables 0-9999 --jobs 2    10,000 seeds in two processes
python -m tests.simulation.tables 0-999 --planted "a list is trusted"   with a bug, up to the seed that finds it
"""

from __future__ import annotations

import argparse
import functools
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from sim_table import TableScenario
from sim_table_bugs import BUGS, ICEBERG_BUGS, planted


def attempt(seed: int, bug: str | None = None, kind: str | None = None) -> tuple[int, int, str]:
    """Returns the number of micro-batches and of ended drivers, and the failure as text. ``kind``: of the table; None:
    Parquet or Delta, by the seed."""
    scenario, failure = TableScenario(seed, kind=kind), ""
    try:
        with planted(bug):
            scenario.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_tb(error.__traceback__)[-3:])
    return len(scenario.store.batches), len(scenario.ends), failure


def one(seed: int, kind: str | None = None) -> int:
    scenario = TableScenario(seed, kind=kind)
    try:
        scenario.run()
    finally:
        print("\n".join(scenario.log))
    print(f"seed {seed} passes: {len(scenario.store.batches)} micro-batches, {len(scenario.ends)} drivers")
    return 0


def many(first: int, last: int, jobs: int, kind: str | None = None) -> int:
    seeds = range(first, last + 1)
    if jobs == 1:
        results = [attempt(seed, kind=kind) for seed in seeds]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            results = list(pool.map(functools.partial(attempt, kind=kind), seeds, chunksize=20))
    failed = [(seed, failure) for seed, (_, _, failure) in zip(seeds, results, strict=True) if failure]
    batches, drivers = (sum(result[at] for result in results) for at in (0, 1))
    print(f"{len(seeds)} seeds, {len(failed)} failed {[seed for seed, _ in failed[:50]]}")
    print(f"{batches} micro-batches, {drivers} drivers")
    if failed:
        print(failed[0][1])
        of_kind = "" if kind is None else f" --kind {kind}"
        print(f"again: python -m tests.simulation.tables {failed[0][0]}{of_kind}")
    return 1 if failed else 0


def find(bug: str | None, first: int, last: int, kind: str | None = None) -> int:
    """Returns the first seed that finds a planted bug; -1 if none does. Another error than Broken is no finding: the
    simulation itself is wrong then, and each bug would seem to be found."""
    for seed in range(first, last + 1):
        failure = attempt(seed, bug, kind)[2]
        assert not failure or failure.startswith("Broken: "), failure
        if failure:
            return seed
    return -1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.tables")
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kind", choices=("parquet", "delta", "iceberg"), help="the kind of all tables")
    parser.add_argument("--planted", choices=sorted(BUGS | ICEBERG_BUGS), help="plant this bug")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    if options.planted:
        seed = find(options.planted, int(first), int(last or first), options.kind)
        print(f"{options.planted}: " + ("not found" if seed < 0 else f"seed {seed} finds it"))
        return 0 if seed < 0 else 1
    return many(int(first), int(last), options.jobs, options.kind) if last else one(int(first), options.kind)


if __name__ == "__main__":
    sys.exit(main())
