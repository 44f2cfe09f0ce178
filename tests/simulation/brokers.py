"""``python -m tests.simulation.brokers SEED`` runs one seed and prints its trace; ``FIRST-LAST`` runs many.

python -m tests.simulation.brokers 4711               the result of seed 4711, and its trace
python -m tests.simulation.brokers 4711 --shrink      with the entries of its schedule that the failure needs
python -m tests.simulation.brokers 0-1999 --jobs 2    2,000 seeds in two processes
python -m tests.simulation.brokers 0-99 --planted "an append is not synced"   with a fault, up to the seed that finds it
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets of strings would be random
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulation.brokers", *sys.argv[1:]],
        os.environ | {"PYTHONHASHSEED": "0"},
    )

from sim_broker_bugs import planted
from sim_broker_scenario import BrokerScenario, schedule, shrink
from support.quorums import install

install()


def attempt(seed: int, without: frozenset[int] = frozenset()) -> tuple[Counter[str], str]:
    """Returns what has happened, and the failure as text."""
    scenario = BrokerScenario(seed, without)
    failure = ""
    try:
        scenario.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
        cause = error.__cause__
        if cause is not None:
            failure += "".join(traceback.format_exception(cause)[-6:])
    counts = Counter(scenario.stage.counts)
    counts["transactions"] = sum(len(client.ended) for client in scenario.transactions)
    counts["checks"] = scenario.stage.ledger.checks
    return counts, failure


def one(seed: int, *, is_shrunk: bool) -> int:
    without = shrink(seed, lambda seed, without: attempt(seed, without)[1]) if is_shrunk else frozenset()
    scenario = BrokerScenario(seed, without)
    try:
        scenario.run()
    finally:
        print("\n".join(scenario.stage.world.trace((), 100)))
        if is_shrunk:
            for number, entry in enumerate(schedule(seed)):
                if number not in without:
                    print(number, entry)
    print(f"seed {seed} passes: {dict(scenario.stage.counts)}")
    return 0


def many(first: int, last: int, jobs: int, *, to_failure: bool = False) -> int:
    """Runs the seeds. With ``to_failure``, it stops after the first seed that fails."""
    seeds = range(first, last + 1)
    if to_failure:
        results = []
        for seed in seeds:
            results.append(attempt(seed))
            if results[-1][1]:
                break
        seeds = seeds[: len(results)]
    elif jobs == 1:
        results = [attempt(seed) for seed in seeds]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            results = list(pool.map(attempt, seeds, chunksize=10))
    failed = [(seed, failure) for seed, (_, failure) in zip(seeds, results, strict=True) if failure]
    total = sum((counts for counts, _ in results), Counter())
    print(f"{len(seeds)} seeds, {len(failed)} failed {[seed for seed, _ in failed[:50]]}")
    print(", ".join(f"{count:,} {name}" for name, count in total.items()))
    if failed:
        print(failed[0][1])
        print(f"again: python -m tests.simulation.brokers {failed[0][0]}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.brokers")
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--planted", help="plant this bug (sim_broker_bugs)")
    parser.add_argument("--shrink", action="store_true", help="leave out entries that the failure does not need")
    parser.add_argument("--log", action="store_true", help="print the broker's log")
    options = parser.parse_args()
    logging.getLogger("odradek").setLevel(logging.DEBUG if options.log else logging.CRITICAL)
    if options.log:
        logging.basicConfig()
    first, _, last = options.seeds.partition("-")
    with planted(options.planted):
        if last:
            return many(int(first), int(last), options.jobs, to_failure=bool(options.planted))
        return one(int(first), is_shrunk=options.shrink)


if __name__ == "__main__":
    sys.exit(main())
