"""Attacks the pipelines with real processes: two drivers that are stopped and killed, old copies, foreign commits.

    python tests/attack/attack.py --minutes 30 --seed 7
    python tests/attack/attack.py --seed 7 --episode 12

A seed and the number of an episode give its setting and its steps; only the moments of signals depend on the machine.
An oracle (``attack_oracle``) looks after each step. The files of an episode with a fault stay.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("attack", "pipelines", ""))]

from attack_drivers import AttackedDriver  # noqa: E402
from attack_episode import AttackEpisode  # noqa: E402
from attack_oracle import AttackFound  # noqa: E402
from attack_records import RETENTION_CHECK_S  # noqa: E402
from attack_steps import WEIGHTS, GivenUp, send  # noqa: E402
from support.brokers import make_broker  # noqa: E402

from odradek.client.admin import Admin  # noqa: E402

BROKER = {
    "offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0", "log.retention.check.interval.ms": f"{RETENTION_CHECK_S * 1000:.0f}",
}  # fmt: skip


class Attack:
    """Episodes against one broker with two drivers. ``steps``: the number of steps of an episode."""

    def __init__(self, place: Path, seed: str, steps: int = 24, *, is_plain: bool = False) -> None:
        self._is_plain = is_plain
        self.seed, self.steps, self._place = seed, steps, place
        self.done, self.given_up, self.made = 0, 0, 0
        self.lines: Counter[str] = Counter()
        self._broker = make_broker(place / "broker", **{name.replace(".", "_"): to for name, to in BROKER.items()})
        self._broker.start()
        self._admin = Admin(self._broker.bootstrap)
        self._drivers = [AttackedDriver(name, place / name, is_plain=is_plain) for name in ("A", "B")]

    def close(self) -> None:
        self.kill_drivers()
        self._admin.close()
        self._broker.kill()

    def kill_drivers(self) -> None:
        for driver in self._drivers:
            driver.kill()

    def episode(self, number: int) -> None:
        """Runs one episode. Raises AttackFound."""
        seed = f"{self.seed}/{number}"
        rng = random.Random(seed)
        place = self._place / f"episode-{number}"
        episode = AttackEpisode(
            self._broker.bootstrap, self._admin, place, self._drivers, seed, is_plain=self._is_plain
        )
        chosen = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=self.steps)
        try:
            send(episode, rng)
            for index, step in enumerate(chosen):
                step(episode, random.Random(f"{seed}/{index}"))
                self.made += 1
                episode.look_at_all()
            if not episode.settle(rng):
                raise GivenUp
        except GivenUp:
            self.given_up += 1
            self.kill_drivers()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise AttackFound(f"--seed {self.seed} --episode {number}: {what}\nfiles: {place}") from error
        self.lines += episode.lines
        episode.clear()
        self.done += 1

    def report(self) -> str:
        kinds = "\n".join(f"{count:5} {line}" for line, count in self.lines.most_common())
        return f"{self.done} episodes, {self.given_up} given up, {self.made} steps\n{kinds}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--episode", type=int, help="run only this episode")
    parser.add_argument("--first", type=int, default=0, help="the number of the first episode")
    parser.add_argument("--plain", action="store_true", help="drivers without Spark: more steps in the same time")
    parser.add_argument("--stop", action="store_true", help="end at the first fault")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = Path(tempfile.mkdtemp(prefix="odradek-attack-"))
    until = time.monotonic() + given.minutes * 60
    faults = 0
    attack = Attack(place, given.seed, given.steps, is_plain=given.plain)
    try:
        numbers = itertools.count(given.first) if given.episode is None else iter([given.episode])
        for number in numbers:
            began = time.monotonic()
            try:
                attack.episode(number)
            except AttackFound as found:
                faults += 1
                print(f"FOUND {found}", flush=True)
                attack.kill_drivers()
            print(f"== episode {number}: {time.monotonic() - began:.0f} s", flush=True)
            if time.monotonic() > until or (faults and given.stop):
                break
    finally:
        attack.close()
    print(f"{faults} faults in {attack.report()}", flush=True)
    if not faults:
        shutil.rmtree(place, ignore_errors=True)
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
