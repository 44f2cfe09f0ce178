"""A query with ``transactional_writer`` on three brokers: ten kills of leaders and coordinators in one run.

A kill comes in each moment of a micro-batch's transaction. The killed broker is down until the next kill, so the
micro-batch ends without it. Afterwards the committed output has each row of the input once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.three_brokers import Failovers, ThreeBrokers
from test_transactional_kills import GROUP, TARGET, TOPIC, DrivenQuery

from odradek import Admin

MOMENTS = [
    "broker in a task before its rows", "broker in a task before the flush", "broker in a task after its rows",
    "broker after InitProducerId", "broker after the stage", "broker before EndTxn", "broker after EndTxn",
    "broker after the stage", "broker before EndTxn", "broker in a task before the flush",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="kills processes by signal 9"),
]


@pytest.fixture
def brokers() -> Iterator[ThreeBrokers]:
    with ThreeBrokers() as made:
        yield made


class FailoverQuery(DrivenQuery):
    def __init__(self, brokers: ThreeBrokers, place: Path) -> None:
        super().__init__(brokers, place, MOMENTS)
        cluster = brokers.cluster
        choices: list[Callable[[], int | None]] = [
            lambda: cluster.leader(TARGET, len(self.failovers.killed) % 3),
            self._coordinator,
            lambda: cluster.coordinator(GROUP),
            lambda: cluster.leader(TOPIC, len(self.failovers.killed) % 2),
        ]
        self.failovers = Failovers(brokers, *choices)

    def _coordinator(self) -> int | None:
        """The coordinator of the query's transactional id."""
        with Admin(self.broker.bootstrap) as admin:
            return next((row.coordinator for row in admin.list_transactions()), None)

    def replace_broker(self) -> None:
        self.failovers.next()


def test_each_row_is_there_once_after_ten_kills_of_leaders_and_coordinators(
    brokers: ThreeBrokers, tmp_path: Path
) -> None:
    query = FailoverQuery(brokers, tmp_path)
    query.run()
    assert len(query.failovers.killed) == len(MOMENTS)
    query.failovers.end()
    query.check()
    with Admin(brokers.bootstrap) as admin:
        assert admin.find_hanging_transactions(max_timeout_ms=-60_000) == []
    print(f"killed: {query.failovers.killed}")
