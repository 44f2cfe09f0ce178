"""Measures one attack on a broker: the waits of another client, memory, files, survival and restart.

`turn` is the longest time for which the broker's main thread ran while the other client waited for one reply. Other
work of the machine does not change it. For a broker with many threads (Apache Kafka) it has no meaning.

As a program, it measures rows of the table on odradek or on Apache Kafka and prints a table for `docs/limits.md`::

    python tests/limits/measurement.py [--apache] [ROW]...
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from attacks import ATTACKS, Attack  # noqa: E402
from group_attacks import GROUP_ATTACKS  # noqa: E402
from other_client import OtherClient, Waits  # noqa: E402
from support.brokers import CONFIG, eventually  # noqa: E402
from target import GROWTH_BYTES, CappedBroker, Target, forget_peak, is_alive, peak_of, settled, use_of  # noqa: E402

_LOADED_S = 4
"""The wait before an attack. Odradek loads its last modules two seconds after its start."""
_SETTLE_S = 15


class Measurement(NamedTuple):
    """The effects of one attack."""

    attack: Attack
    answers: str
    waits: Waits
    took_s: float
    peak: int
    kept: int
    kept_descriptors: int
    alive: bool
    restarts: bool

    @property
    def row(self) -> str:
        state = "" if self.alive else "**dead**" if self.restarts else "**dead, does not start again**"
        if self.alive and not self.restarts:
            state = "**does not start again**"
        wait = f"{self.waits.longest_ms:,.0f} ms ({self.waits.ran_ms:,.0f})" + (
            ", then cut off" if self.waits.lost else ""
        )
        cells = [self.attack.row, self.attack.title, self.answers, f"{self.took_s:.1f} s", wait]
        cells += [f"{self.peak / 1e6:+,.0f} MB", f"{self.kept / 1e6:+,.0f} MB", f"{self.kept_descriptors:+d}", state]
        return "| " + " | ".join(cells) + " |"


HEADINGS = (
    "| row | workload | answer | took | others wait (turn) | memory, most | after | files, after | |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def pid_of(broker: Any) -> int:
    """The process id of a broker, odradek's or Apache's."""
    pid = broker.pids[0] if hasattr(broker, "pids") else broker.pid
    assert pid is not None
    return int(pid)


def _apache_broker(directory: Path, config: dict[str, str]) -> Any:
    from bench.apache import ApacheBroker

    return ApacheBroker(directory, config)


@contextlib.contextmanager
def broker_for(attack: Attack, directory: Path, *, apache: bool = False) -> Iterator[Any]:
    """A broker only for this attack, with its settings. Memory and files of odradek are limited."""
    config = CONFIG | dict(attack.settings)
    broker = _apache_broker(directory, config) if apache else CappedBroker(directory, config, files=attack.files)
    broker.start()
    try:
        time.sleep(_LOADED_S)
        yield broker
    finally:
        broker.kill()


def measured(attack: Attack, broker: Any, *, restart: bool = True) -> Measurement:
    """Performs the attack and measures it. With ``restart``, also restarts the broker."""
    pid = pid_of(broker)
    with Target(broker.bootstrap) as target:
        prepared = attack.prepare(target)
    before = use_of(pid)
    forget_peak(pid)
    with OtherClient(broker.bootstrap, pid) as other, Target(broker.bootstrap) as target:
        started = time.monotonic()
        attack.perform(target, prepared)
        took_s = time.monotonic() - started
    alive = is_alive(pid)
    peak, kept, files = 0, 0, 0
    if alive:
        peak = peak_of(pid) - before.resident
        after = settled(lambda: use_of(pid), lambda use: use.resident - before.resident < GROWTH_BYTES, _SETTLE_S)
        kept, files = after.resident - before.resident, after.descriptors - before.descriptors
    restarts = not restart or starts_again(attack, broker)
    return Measurement(attack, str(target.answers), other.waits, took_s, peak, kept, files, alive, restarts)


def starts_again(attack: Attack, broker: Any) -> bool:
    """Returns whether the broker starts after a stop, with the same limits, and replies."""
    try:
        broker.stop() if is_alive(pid_of(broker)) else broker.kill()
        broker.start()
        with Target(broker.bootstrap, patience_s=60) as target:
            return eventually(lambda: target.quietly(18, 0, {}), within_s=60) is not None
    except Exception as error:
        print(f"row {attack.row} does not start again: {str(error)[-600:]}", file=sys.stderr)
        return False


def main(arguments: Iterable[str]) -> None:
    options = {argument for argument in arguments if argument.startswith("--")}
    every = (*ATTACKS, *GROUP_ATTACKS)
    rows = [argument for argument in arguments if argument not in options] or [attack.row for attack in every]
    print(HEADINGS, flush=True)
    for attack in every:
        if attack.row in rows:
            try:
                with (
                    tempfile.TemporaryDirectory() as directory,
                    broker_for(attack, Path(directory), apache="--apache" in options) as broker,
                ):
                    print(measured(attack, broker).row, flush=True)
            except Exception:
                print(f"row {attack.row} could not be measured:\n{traceback.format_exc()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
