"""The queue of ISR changes: one AlterPartition at a time, until each change has its answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from odradek.broker.replication.isr_changes import RETRY_S, IsrChangeQueue
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import FetchingReplica
from odradek.replication.effects import AlteredIsr, AlterIsr

FIRST, SECOND = UUID(int=1), UUID(int=2)


class Controller:
    """Keeps requests and timers. ``run`` runs the timers."""

    def __init__(self) -> None:
        self.requests: list[tuple[list[IsrProposal], Deferred[Any]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def alter_isrs(self, changes: list[IsrProposal]) -> Deferred[Any]:
        self.requests.append((changes, Deferred()))
        return self.requests[-1][1]

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Any:
        self.timers.append((delay_s, work))
        return SimpleNamespace(cancel=self.timers.clear)

    def run(self) -> list[float]:
        """Returns the delays of the timers that were set."""
        timers, self.timers = self.timers, []
        for _, work in timers:
            work()
        return [delay for delay, _ in timers]

    @property
    def asked(self) -> list[list[tuple[int, int]]]:
        """The topics and partition epochs of each request."""
        return [[(change.topic_id.int, change.partition_epoch) for change in changes] for changes, _ in self.requests]


class Leader:
    """A partition whose leader waits for ``pending``."""

    def __init__(self, queue: IsrChangeQueue, topic_id: UUID) -> None:
        self.topic_id, self.index = topic_id, 0
        self.pending: AlterIsr | None = None
        self.answers: list[AlteredIsr | ErrorCode] = []
        self.again: AlterIsr | None = None
        self._queue = queue

    def ask(self, partition_epoch: int = 0) -> AlterIsr:
        self.pending = AlterIsr(1, partition_epoch, (FetchingReplica(1, 5), FetchingReplica(2, -1)))
        self._queue.submit(self, self.pending)
        return self.pending

    def wants(self, asked: AlterIsr) -> bool:
        return self.pending is asked

    def on_alter_reply(self, asked: AlterIsr, answer: AlteredIsr | ErrorCode) -> None:
        self.answers.append(answer)
        self.pending = self.again
        if self.again is not None:
            self._queue.submit(self, self.again)


def setup() -> tuple[Controller, IsrChangeQueue, Leader, Leader]:
    controller = Controller()
    queue = IsrChangeQueue(controller)
    return controller, queue, Leader(queue, FIRST), Leader(queue, SECOND)


def test_changes_of_one_tick_are_one_request_and_a_later_one_waits_for_its_reply() -> None:
    controller, _, first, second = setup()
    first.ask()
    second.ask()
    assert controller.run() == [0]
    assert controller.asked == [[(1, 0), (2, 0)]]
    assert controller.requests[0][0][0] == IsrProposal(FIRST, 0, 1, 0, (FetchingReplica(1, 5), FetchingReplica(2, -1)))
    second.ask(3)
    assert controller.run() == [], "one request is in flight"
    state = IsrState(1, 1, (1, 2), 0, 1)
    controller.requests[0][1].resolve({(FIRST, 0): state, (SECOND, 0): ErrorCode.ineligible_replica})
    assert (first.answers, second.answers) == ([AlteredIsr(1, 1, (1, 2))], [ErrorCode.ineligible_replica])
    controller.run()
    assert controller.asked[1:] == [], "the leader of the second topic waits for nothing any more"


def test_without_an_answer_the_changes_are_sent_again_after_a_pause() -> None:
    controller, _, first, second = setup()
    for answer in (None, ErrorCode.stale_broker_epoch, {}):
        first.ask()
        second.ask()
        controller.run()
        second.pending = None  # e.g. it leads no more
        controller.requests[-1][1].resolve(answer)
        assert controller.run() == [RETRY_S]
        assert controller.asked[-1] == [(1, 0)]
        controller.requests[-1][1].resolve({(FIRST, 0): IsrState(1, 1, (1,), 0, 1)})
        assert (controller.run(), first.pending) == ([], None)


def test_a_change_that_is_wanted_again_after_its_answer_waits_for_a_pause() -> None:
    controller, _, first, _ = setup()
    first.again = first.ask()
    controller.run()
    controller.requests[0][1].resolve({(FIRST, 0): ErrorCode.not_controller})
    assert controller.run() == [RETRY_S]
    assert controller.asked == [[(1, 0)]] * 2


def test_the_newest_change_of_a_partition_is_sent() -> None:
    controller, queue, first, _ = setup()
    first.ask(1)
    first.ask(2)
    controller.run()
    assert controller.asked == [[(1, 2)]]
    queue.close()
