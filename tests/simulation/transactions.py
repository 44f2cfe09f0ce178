"""``python -m tests.simulation.transactions SEED`` runs one seed and prints its trace; ``FIRST-LAST`` runs many.

python -m tests.simulation.transactions 4711               the result of seed 4711, and its trace
python -m tests.simulation.transactions 0-9999 --jobs 2    10,000 seeds in two processes
python -m tests.simulation.transactions 0-99 --planted "a marker is lost"   with a fault, up to the seed that finds it
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets of strings would be random
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulation.transactions", *sys.argv[1:]],
        os.environ | {"PYTHONHASHSEED": "0"},
    )

from sim_transaction_bugs import COORDINATOR_BUGS
from sim_transactions import TransactionScenario
from support.faulty_broker import FAULTS

PLANTS = FAULTS | {name: plant for name, (plant, _) in COORDINATOR_BUGS.items()}


def attempt(seed: int) -> tuple[int, int, str]:
    """Returns the number of ended transactions and of crashes, and the failure as text."""
    scenario = TransactionScenario(seed)
    failure = ""
    try:
        scenario.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_tb(error.__traceback__)[-3:])
    return sum(producer.ends for producer in scenario.producers), scenario.broker.crashes, failure


def one(seed: int) -> int:
    scenario = TransactionScenario(seed)
    try:
        scenario.run()
    finally:
        print("\n".join(scenario.world.trace((), 100)))
    ends = sum(producer.ends for producer in scenario.producers)
    print(f"seed {seed} passes: {ends} transactions, {scenario.broker.crashes} crashes")
    return 0


def many(first: int, last: int, jobs: int, *, to_failure: bool = False) -> int:
    """Runs the seeds. With ``to_failure``, it stops after the first seed that fails."""
    seeds = range(first, last + 1)
    if to_failure:
        results = []
        for seed in seeds:
            results.append(attempt(seed))
            if results[-1][2]:
                break
        seeds = seeds[: len(results)]
    elif jobs == 1:
        results = [attempt(seed) for seed in seeds]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            results = list(pool.map(attempt, seeds, chunksize=20))
    failed = [(seed, failure) for seed, (_, _, failure) in zip(seeds, results, strict=True) if failure]
    ends, crashes = (sum(result[at] for result in results) for at in (0, 1))
    print(f"{len(seeds)} seeds, {len(failed)} failed {[seed for seed, _ in failed[:50]]}")
    print(f"{ends} transactions, {crashes} crashes")
    if failed:
        print(failed[0][1])
        print(f"again: python -m tests.simulation.transactions {failed[0][0]}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.transactions")
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--planted", choices=PLANTS, help="plant this fault")
    options = parser.parse_args()
    if options.planted:
        PLANTS[options.planted]()
    first, _, last = options.seeds.partition("-")
    return many(int(first), int(last), options.jobs, to_failure=bool(options.planted)) if last else one(int(first))


if __name__ == "__main__":
    sys.exit(main())
