"""The effects of the attacks in `docs/limits.md` on a broker and on its other clients. The tests are in the long suite.

The tests check that the broker survives and replies to the other clients. The tests of single attacks also check that
it starts again, and most of them that it returns its memory. All print the waits of the other clients, mostly as rows
of the table in `docs/limits.md`. No test fails because of a long wait.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from attacks import ATTACKS, BY_ROW, Attack
from group_attacks import GROUP_ATTACKS
from measurement import HEADINGS, broker_for, measured, pid_of
from other_client import OtherClient
from support.brokers import CONFIG, eventually
from target import GROWTH_BYTES, CappedBroker, Target

from odradek import Producer
from odradek.client import Admin, NewTopic

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"row {attack.row}")
def test_the_broker_survives_returns_its_memory_and_starts_again(attack: Attack, tmp_path: Path) -> None:
    with broker_for(attack, tmp_path) as broker:
        found = measured(attack, broker)
        log = broker.log_path.read_text(errors="replace")
    print(f"\n{HEADINGS}\n{found.row}")
    assert found.alive
    assert not found.waits.lost, "another client kept its connection and got its replies"
    assert found.restarts
    assert found.kept <= GROWTH_BYTES
    assert "Traceback" not in log


@pytest.mark.parametrize("attack", GROUP_ATTACKS, ids=lambda attack: f"row {attack.row}")
def test_the_broker_serves_groups_of_thousands_of_members(attack: Attack, tmp_path: Path) -> None:
    """The broker keeps the metadata of members, so the memory is not checked here."""
    with broker_for(attack, tmp_path) as broker:
        found = measured(attack, broker)
        log = broker.log_path.read_text(errors="replace")
    print(f"\n{HEADINGS}\n{found.row}")
    assert found.alive
    assert not found.waits.lost
    assert found.restarts
    assert "Traceback" not in log


DURING_CLEANING = ("13", "3b", "7", "7b", "7e", "5")
"""The rows of `docs/limits.md` whose attacks are performed after the log cleaner has begun to work."""
CLEANED_BYTES = 400 << 20


def test_other_clients_are_served_during_a_compaction(tmp_path: Path) -> None:
    attacks = [BY_ROW[row] for row in DURING_CLEANING]
    settings = {"log.cleaner.backoff.ms": "200", "log.segment.bytes": str(64 << 20)}
    for attack in attacks:
        settings |= attack.settings
    broker = CappedBroker(tmp_path, CONFIG | settings)
    broker.start()
    try:
        fill(broker.bootstrap)
        with Target(broker.bootstrap) as target:
            prepared = [attack.prepare(target) for attack in attacks]
        begin_cleaning(broker.bootstrap)
        eventually(lambda: broker.command("cleaner")["in_progress"], within_s=60)
        beside = []
        with OtherClient(broker.bootstrap, pid_of(broker)) as other, Target(broker.bootstrap) as target:
            for attack, before in zip(attacks, prepared, strict=True):
                attack.perform(target, before)
                if broker.command("cleaner")["in_progress"]:
                    beside.append(attack.row)
        print(f"\nrows {', '.join(beside)} beside a compaction: {other.waits}")
        assert beside, "the cleaner still worked after at least one attack"
        assert not other.waits.lost
        eventually(lambda: not broker.command("cleaner")["in_progress"], within_s=120)
        assert broker.command("cleaner")["uncleanable"] == {}
    finally:
        broker.kill()


def fill(bootstrap: str) -> None:
    """Creates a compacted topic with 20,000 keys and `CLEANED_BYTES` of values of 1 kB, and prevents its cleaning."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("compacted", 1, 1, configs)])
    rows = 20_000
    keys = pa.array([b"%08d" % number for number in range(rows)])
    values = pa.array([os.urandom(500) * 2 for _ in range(rows)])
    batch = pa.record_batch({"key": keys, "value": values})
    with Producer(bootstrap) as producer:
        for _ in range(CLEANED_BYTES // (1000 * rows)):
            producer.send_batch("compacted", batch)


def begin_cleaning(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.alter_topic_configs("compacted", {"min.cleanable.dirty.ratio": "0.01"})
