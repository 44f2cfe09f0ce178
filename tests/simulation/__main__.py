"""``python -m tests.simulation SEED`` runs one seed and prints what happened; ``FIRST-LAST`` runs many.

python -m tests.simulation 4711               the result of seed 4711, its scenario and its trace
python -m tests.simulation 4711 --all         the complete trace
python -m tests.simulation 4711 --shrink      without the faults that are not needed for the failure
python -m tests.simulation 0-199 --jobs 2     seeds 0 to 199 in two processes; the first failure is printed
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets of strings would be random
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
    )

from sim_bugs import BUGS, injected
from sim_scenario import FAULTS, Scenario
from support.world import SimulationFailure

LINES = 70


def attempt(seed: int, without: tuple[str, ...] = (), bug: str | None = None) -> tuple[Scenario, Exception | None]:
    scenario = Scenario(seed, without)
    try:
        with injected(bug):
            scenario.run()
    except Exception as error:
        return scenario, error
    return scenario, None


def run_seed(seed: int, lines: int = LINES, without: tuple[str, ...] = (), bug: str | None = None) -> tuple[bool, str]:
    """Returns whether a seed passes, and its result and trace as text."""
    scenario, error = attempt(seed, without, bug)
    world, ledger = scenario.world, scenario.coordinator.ledger
    if error is None:
        trace = world.trace((), lines)
        head = f"seed {seed} passes: {world.events} events, {ledger.commits} commits, {ledger.fetches} fetches checked"
    else:
        about = error.about if isinstance(error, SimulationFailure) else ()
        trace = world.trace(about, lines)
        where = "" if isinstance(error, SimulationFailure) else "".join(traceback.format_exception(error))
        head = f"seed {seed} FAILS: {type(error).__name__}: {error}\n{where}"
    groups = ", ".join(f"{group.name} {group.kind} {'/'.join(group.strategies)}" for group in scenario.groups)
    head += f"\n  groups: {groups}\n  faults: {', '.join(sorted(scenario.faults))}\n  {scenario.config}\n"
    return error is None, "\n".join([head, *trace])


def shrunk(seed: int) -> tuple[str, ...]:
    """Returns the faults without which the seed still fails."""
    without: tuple[str, ...] = ()
    for fault in FAULTS:
        if attempt(seed, (*without, fault))[1] is not None:
            without = (*without, fault)
    return without


def fails(seed: int) -> bool:
    return attempt(seed)[1] is not None


def many(first: int, last: int, jobs: int, keep_going: bool) -> int:
    begun, cpu = time.perf_counter(), time.process_time()
    failed: list[int] = []
    ran = 0
    seeds = range(first, last + 1)
    if jobs == 1:
        for seed in seeds:
            ran += 1
            if fails(seed):
                failed.append(seed)
                if not keep_going:
                    break
    else:
        with ProcessPoolExecutor(jobs) as pool:
            for seed, bad in zip(seeds, pool.map(fails, seeds, chunksize=10), strict=True):
                ran += 1
                if bad:
                    failed.append(seed)
                    if not keep_going:
                        pool.shutdown(cancel_futures=True)
                        break
    took = f"{time.perf_counter() - begun:.1f} s, {time.process_time() - cpu:.1f} s of CPU here"
    print(f"{ran} of {len(seeds)} seeds, {len(failed)} failed {failed[:50]}: {took}")
    if failed:
        print(run_seed(failed[0])[1])
        print(f"\nagain: python -m tests.simulation {failed[0]}")
    return 1 if failed else 0


def detected(bug: str, first: int, last: int) -> tuple[int | None, str]:
    """Returns the first seed that detects a bug, and the error of this seed; None and "" if no seed detects it."""
    for seed in range(first, last + 1):
        error = attempt(seed, (), bug)[1]
        if error is not None:
            return seed, f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return None, ""


def all_bugs(first: int, last: int) -> int:
    missed = 0
    for bug in BUGS:
        seed, how = detected(bug, first, last)
        missed += seed is None
        print(f"{bug}: {'NOT SEEN' if seed is None else f'seed {seed}: {how}'}", flush=True)
    print(f"{len(BUGS)} bugs, {missed} not detected")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--all", action="store_true", help="print the complete trace")
    parser.add_argument("--shrink", action="store_true", help="leave out faults that are not needed for the failure")
    parser.add_argument("--keep-going", action="store_true", help="run the other seeds after a failure, too")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--bug", choices=sorted(BUGS), help="inject this bug")
    parser.add_argument("--bugs", action="store_true", help="inject all bugs, one after another")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    if options.bugs:
        return all_bugs(int(first), int(last or first))
    if last and options.bug:
        seed, how = detected(options.bug, int(first), int(last))
        print(f"{options.bug}: {'not detected' if seed is None else f'seed {seed}: {how}'}")
        return 0
    if last:
        return many(int(first), int(last), options.jobs, options.keep_going)
    without = shrunk(int(first)) if options.shrink else ()
    passes, trace = run_seed(int(first), 0 if options.all else LINES, without, options.bug)
    if without:
        print(f"without {', '.join(without)}:")
    print(trace)
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
