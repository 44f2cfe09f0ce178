"""A broker's side of its registration: what it sends, when, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from uuid import UUID

import pytest

from odradek.cluster.nodes.lifecycle import NEXT, BrokerLifecycle, HeartbeatReply, LifecycleState, LifecycleTimes
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import NEVER, BrokerHeartbeat
from odradek.core.effects import IllegalTransition
from odradek.core.errors import ErrorCode

REGISTRATION = NewBroker(3, "c", UUID(int=1), (), (), None, (UUID(int=5 << 64),), 7)
TIMES = LifecycleTimes(9_000, 2_000, 60_000)
FENCED, BEHIND, RUNS = (
    HeartbeatReply(True, True, False),
    HeartbeatReply(False, True, False),
    HeartbeatReply(True, False, False),
)
STOP = HeartbeatReply(True, True, True)


def heartbeat(offset: int, *, fence: bool = False, stop: bool = False, epoch: int = 40) -> BrokerHeartbeat:
    return BrokerHeartbeat(3, epoch, offset, fence, stop)


def registered() -> BrokerLifecycle:
    broker = BrokerLifecycle(REGISTRATION, TIMES, 0)
    assert broker.next_request(-1, 0) is REGISTRATION
    broker.on_registered(broker.number, 40, 0)
    return broker


def running() -> BrokerLifecycle:
    """A broker whose next heartbeat is due at 2,000."""
    broker = registered()
    broker.set_ready(0)
    for answer in (FENCED, RUNS):
        assert broker.next_request(50, broker.next_ms) is not None
        broker.on_heartbeat(broker.number, answer, 0)
    assert broker.state is LifecycleState.RUNNING
    return broker


def test_a_start() -> None:
    broker = registered()
    assert broker.next_request(10, 0) == heartbeat(10, fence=True)
    assert broker.next_request(10, 5) is None, "one request is in flight"
    broker.on_heartbeat(broker.number, BEHIND, 5)
    assert (broker.state, broker.next_ms) == (LifecycleState.STARTING, 15)
    assert broker.next_request(41, 14) is None
    assert broker.next_request(41, 15) == heartbeat(41, fence=True)
    broker.on_heartbeat(broker.number, FENCED, 20)
    assert (broker.state, broker.next_ms) == (LifecycleState.RECOVERY, 30)
    assert broker.next_request(41, 30) == heartbeat(41, fence=True)
    broker.set_ready(31)  # during a request: the next follows right after it
    broker.on_heartbeat(broker.number, FENCED, 40)
    assert broker.next_request(42, 40) == heartbeat(42)
    broker.on_heartbeat(broker.number, RUNS, 50)
    assert (broker.state, broker.next_ms, broker.is_fenced) == (LifecycleState.RUNNING, 2050, False)


def test_a_broker_that_is_fenced_by_the_controller_goes_on() -> None:
    broker = running()
    assert broker.next_request(60, 2000) == heartbeat(60)
    broker.on_heartbeat(broker.number, FENCED, 2000)
    assert (broker.state, broker.is_fenced) == (LifecycleState.RUNNING, True)
    assert broker.next_request(60, 4000) == heartbeat(60)


def test_failures_are_tried_again_after_growing_times() -> None:
    broker = BrokerLifecycle(REGISTRATION, TIMES, 0)
    now, pauses = 0, []
    for _ in range(10):
        assert broker.next_request(-1, now) is REGISTRATION
        broker.on_failed(broker.number, now, ErrorCode.duplicate_broker_registration)
        pauses.append(broker.next_ms - now)
        now = broker.next_ms
    assert pauses == [100, 200, 400, 800, 1600, 3200, 6400, 9000, 9000, 9000]
    assert broker.next_request(-1, now) is REGISTRATION
    broker.on_registered(broker.number, 5, now)
    assert broker.next_request(-1, now) == heartbeat(-1, fence=True, epoch=5)
    broker.on_failed(broker.number, now)
    assert broker.next_ms == now + 100


def test_a_request_without_a_reply_is_given_up_after_half_of_a_session() -> None:
    broker = running()
    assert broker.next_request(60, 2000) is not None
    late = broker.number
    assert broker.next_ms == 6500
    assert broker.next_request(60, 6499) is None
    assert broker.next_request(60, 6500) is None
    assert broker.next_ms == 6600
    assert broker.next_request(61, 6600) == heartbeat(61)
    broker.on_heartbeat(late, STOP, 6601)  # of the request before
    broker.on_failed(late, 6601, ErrorCode.stale_broker_epoch)
    assert (broker.state, broker.failure) == (LifecycleState.RUNNING, "")


def test_a_registration_that_comes_too_late_ends_the_broker() -> None:
    broker = BrokerLifecycle(REGISTRATION, TIMES, 1000)
    now = 1000
    while broker.state is not LifecycleState.ENDED:
        if broker.next_request(-1, now) is not None:
            broker.on_failed(broker.number, now, ErrorCode.invalid_registration)
        now = min(broker.next_ms, 1 << 40)
    assert broker.failure == (
        "the broker could not register with the controller within initial.broker.registration.timeout.ms=60000: it "
        "answers invalid_registration. Perhaps another broker has a directory with the same directory.id in "
        "meta.properties: each needs its own"
    )
    assert broker.next_ms == NEVER
    assert broker.next_request(-1, 1 << 41) is None


def test_the_id_of_another_cluster_ends_the_broker_at_once() -> None:
    """No time and no other node can change it."""
    broker = BrokerLifecycle(REGISTRATION, TIMES, 1000)
    assert broker.next_request(-1, 1000) == REGISTRATION
    broker.on_failed(broker.number, 1001, ErrorCode.inconsistent_cluster_id)
    assert broker.failure == (
        "the controller does not register broker 3: it answers inconsistent_cluster_id. The directory belongs to "
        "another cluster: choose the right one, or format an empty one with the cluster's id"
    )
    assert (broker.state, broker.next_ms) == (LifecycleState.ENDED, NEVER)
    assert broker.next_request(-1, 70_000) is None


def test_the_time_for_the_registration_is_over_with_it() -> None:
    broker = running()
    assert broker.next_request(60, 70_000) == heartbeat(60)


def test_a_stale_epoch_ends_the_broker() -> None:
    broker = running()
    assert broker.next_request(60, 2000) is not None
    broker.on_failed(broker.number, 2000, ErrorCode.stale_broker_epoch)
    assert broker.state is LifecycleState.ENDED
    assert broker.failure.startswith("broker 3 with the broker epoch 40 is not registered any more: another process")


def test_a_controlled_shutdown() -> None:
    broker = running()
    broker.begin_shutdown(500)
    assert broker.next_request(60, 500) == heartbeat(60, stop=True)
    broker.on_heartbeat(broker.number, RUNS, 510)
    assert broker.next_ms == 560
    assert broker.next_request(61, 560) == heartbeat(61, stop=True)
    broker.begin_shutdown(565)  # again
    broker.on_heartbeat(broker.number, RUNS, 570)
    assert broker.next_ms == 2570
    assert broker.next_request(61, 2570) == heartbeat(61, stop=True)
    broker.on_heartbeat(broker.number, STOP, 2600)
    assert (broker.state, broker.failure, broker.next_ms) == (LifecycleState.ENDED, "", NEVER)


def test_a_shutdown_during_a_request_follows_at_once() -> None:
    broker = running()
    assert broker.next_request(60, 2000) == heartbeat(60)
    broker.begin_shutdown(2001)
    broker.on_heartbeat(broker.number, RUNS, 2010)
    assert broker.next_request(60, 2010) == heartbeat(60, stop=True)


@pytest.mark.parametrize("make", [lambda: BrokerLifecycle(REGISTRATION, TIMES, 0), registered])
def test_a_broker_that_does_not_run_yet_stops_at_once(make: object) -> None:
    broker = make()
    broker.begin_shutdown(5)
    assert (broker.state, broker.next_request(1, 10), broker.failure) == (LifecycleState.ENDED, None, "")


def test_a_shutdown_may_be_ended_by_its_time() -> None:
    broker = running()
    broker.begin_shutdown(5)
    broker.end()
    assert broker.next_request(1, 10) is None


# --- the table of states ----------------------------------------------------------------------------------------

Event = Callable[[BrokerLifecycle, int], object]


def answered(reply: Event) -> Event:
    """Sends the request that is due, and makes this reply."""

    def call(broker: BrokerLifecycle, now_ms: int) -> None:
        broker.next_request(50, now_ms)
        reply(broker, now_ms)

    return call


EVENTS: dict[str, Event] = {
    "registered": answered(lambda broker, now_ms: broker.on_registered(broker.number, 40, now_ms)),
    "failed": answered(lambda broker, now_ms: broker.on_failed(broker.number, now_ms)),
    "stale": answered(lambda broker, now_ms: broker.on_failed(broker.number, now_ms, ErrorCode.stale_broker_epoch)),
    **{
        f"answer {answer}": answered(
            lambda broker, now_ms, answer=answer: broker.on_heartbeat(broker.number, answer, now_ms)
        )
        for answer in map(HeartbeatReply._make, product((False, True), repeat=3))
    },
    "ready": lambda broker, now_ms: broker.set_ready(now_ms),
    "shutdown": lambda broker, now_ms: broker.begin_shutdown(now_ms),
    "end": lambda broker, now_ms: broker.end(),
    "no time left for a registration": lambda broker, now_ms: broker.next_request(50, 60_000),
}


def _is_possible(broker: BrokerLifecycle, event: str) -> bool:
    """A registration is answered by an epoch or an error, a heartbeat by an answer or an error."""
    return broker.epoch < 0 if event == "registered" else broker.epoch >= 0 or not event.startswith("answer")


def test_a_broker_takes_the_transitions_of_its_table_and_no_others() -> None:
    """From each condition that it reaches, every event happens once."""
    seen: dict[LifecycleState, set[LifecycleState]] = {state: set() for state in LifecycleState}
    ways: list[tuple[str, ...]] = [()]
    known: set[tuple[object, ...]] = set()
    while ways:
        way = ways.pop()
        for event, call in EVENTS.items():
            broker = BrokerLifecycle(REGISTRATION, TIMES, 0)
            for number, step in enumerate(way):
                EVENTS[step](broker, number * 3_000)
            if not _is_possible(broker, event):
                continue
            before = broker.state
            call(broker, len(way) * 3_000)
            if broker.state is not before:
                seen[before].add(broker.state)
            is_due = broker.next_ms <= len(way) * 3_000
            condition = (broker.state, broker.epoch, broker.is_fenced, is_due)
            if condition not in known:
                known.add(condition)
                ways.append((*way, event))
    assert seen == {state: set(after) for state, after in NEXT.items()}


def test_a_broker_that_has_ended_stays_so() -> None:
    for event, call in EVENTS.items():
        broker = running()
        broker.end()
        call(broker, 9_000)
        assert (broker.state, broker.failure) == (LifecycleState.ENDED, ""), event


def test_a_transition_that_the_table_does_not_have_names_the_broker() -> None:
    with pytest.raises(IllegalTransition, match="broker 3: starting → running"):
        registered()._enter(LifecycleState.RUNNING)
