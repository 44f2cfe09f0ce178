"""Three brokers in the place of one, for tests whose broker is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import odradek
from odradek import Admin
from support.brokers import RunningBroker, eventually
from support.transactions import restart

_SETTINGS = {
    "default.replication.factor": 3, "min.insync.replicas": 2, "num.partitions": 1, "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5, "broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 300,
}  # fmt: skip
_WITHIN_S = 120


class ThreeBrokers:
    """``cluster`` has three brokers. Topics have three replicas unless their creation names another number."""

    def __init__(self) -> None:
        self.cluster = odradek.Cluster(3, config=_SETTINGS)
        self.bootstrap = self.cluster.bootstrap_servers

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self.cluster.start()

    def close(self) -> None:
        self.cluster.close()

    def restarts(self) -> Iterator[None]:
        """Kills each broker once. Yields while it is down, and starts it again."""
        for broker in self.cluster.brokers:
            self.cluster.wait_until_in_sync(within_s=_WITHIN_S)
            self.cluster.kill(broker)
            yield
            self.cluster.start(broker)
        self.cluster.wait_until_in_sync(within_s=_WITHIN_S)


class Failovers:
    """Kills of leaders and coordinators, one after another. A killed broker is down until the next kill.

    ``choices``: each returns the broker to kill, or None if it is not known; they take turns."""

    def __init__(self, brokers: ThreeBrokers, *choices: Callable[[], int | None]) -> None:
        self._cluster = brokers.cluster
        self._choices = choices
        self.killed: list[int] = []

    def next(self) -> None:
        self.end()
        choose = self._choices[len(self.killed) % len(self._choices)]
        victim = eventually(choose, within_s=_WITHIN_S, what="the next victim")
        self._cluster.kill(victim)
        self.killed.append(victim)

    def end(self) -> None:
        """Starts the broker that is down."""
        self._cluster.start()
        self._cluster.wait_until_in_sync(within_s=_WITHIN_S)


Deployment = RunningBroker | ThreeBrokers


def replicas(deployment: Deployment) -> int:
    """The replicas of a topic."""
    return 3 if isinstance(deployment, ThreeBrokers) else 1


def restarts(deployment: Deployment) -> Iterator[None]:
    """Kills each broker once with kill -9. Yields after each kill: one broker runs again then, and of three brokers
    the killed one is down. Afterwards no transaction is prepared for long, and none hangs."""
    if not isinstance(deployment, ThreeBrokers):
        restart(deployment)
        yield
        return
    yield from deployment.restarts()
    with Admin(deployment.bootstrap) as admin:
        prepared = {row.transactional_id for row in admin.list_transactions() if row.state.startswith("Prepare")}

        def are_ended() -> bool:
            still = [row for row in admin.list_transactions() if row.transactional_id in prepared]
            prepared.intersection_update(row.transactional_id for row in still if row.state.startswith("Prepare"))
            return not prepared

        eventually(are_ended, within_s=_WITHIN_S, what=f"the end of the transactions {prepared}")
        assert admin.find_hanging_transactions(max_timeout_ms=-60_000) == []
