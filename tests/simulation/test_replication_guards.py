"""Two rules of replication whose planted bugs no seed of the simulation has shown: here they are broken by hand, on
whole brokers, by the faults that each guards against.

The log of the simulation forgets deleted records at once, so its log start never moves back at a crash. And its
messages travel for a shorter time than a session lasts, so none arrives after a broker was fenced and is back.
"""

from __future__ import annotations

import pytest
from sim_replication_bugs import BUGS
from support.logs import batch
from support.replicated_nodes import NONE, ReplicatedNodes
from support.simulated_brokers import SimulatedLink

from odradek.batches.rows import iter_records
from odradek.core.ids import NO_NODE
from odradek.wire import frames

ALTER_PARTITION = 56
Values = dict[int, bytes | None]


def values(nodes: ReplicatedNodes, broker: int, offset: int) -> Values:
    """What a consumer reads at this broker from the offset on, if the log has it."""
    row = nodes.fetch(broker, offset)
    found = iter_records(bytes(row.records or b""))
    return {one.offset: one.value for one in found if offset <= one.offset < row.high_watermark}


# --- records that the leader has deleted ------------------------------------------------------------------------------


def values_before_and_after_a_crash() -> tuple[Values, Values]:
    """Broker 3 has two records that were never committed. Others got their offsets, were read, and are deleted.

    Returns what readers see at these offsets: at the leader before the deletion, and at broker 3 when it has crashed
    and leads. Its log start was not on its disk."""
    nodes = ReplicatedNodes()
    nodes.create("t", (3, 1, 2))
    assert nodes.produce(3, 3) == (NONE, 0)
    nodes.run_until_equal()
    for number in (1, 2):
        nodes.brokers[number].role.hold_fetches(True)
    nodes.world.advance(600)  # until the last fetches have ended
    assert nodes.produce(3, acks=1, data=batch(2, size=5)) == (NONE, 3)
    nodes.brokers[3].kill()
    leader = nodes.run_until_led(not_by=3)
    for number in (1, 2):
        nodes.brokers[number].role.hold_fetches(False)
    nodes.run_until_in_sync(1, 2)
    assert nodes.produce(leader, data=batch(2, size=6)) == (NONE, 3)
    seen = values(nodes, leader, 3)
    assert nodes.delete_records(leader, 5) == (NONE, 5)
    nodes.brokers[3].begin()
    nodes.run_until_in_sync(1, 2, 3)
    nodes.run_until_equal()
    assert nodes.partition(3).log_start_offset == 5
    for number in (1, 2):
        nodes.brokers[number].kill()
    nodes.run_until_in_sync(3)
    nodes.brokers[3].kill()
    nodes.brokers[3].begin()
    nodes.brokers[3].run_until_joined()
    assert nodes.run_until_led() == 3
    return seen, values(nodes, 3, 3)


def test_no_reader_sees_other_records_than_those_that_were_deleted() -> None:
    seen, after = values_before_and_after_a_crash()
    assert list(seen) == [3, 4]
    assert after == {}
    with BUGS["a log keeps what diverged before the leader's log start"]():
        seen, after = values_before_and_after_a_crash()
    assert list(seen) == list(after) == [3, 4]
    assert seen != after


# --- a request for an ISR that is late --------------------------------------------------------------------------------


def in_sync_after_a_late_request(monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[int, ...], int]:
    """The leader's request to add broker 3 is on its way while broker 2 is fenced, misses an acknowledged record, and
    is back in its former incarnation, without a fetch. Then the request arrives.

    Returns the ISR, and who leads when only broker 2 is left."""
    nodes = ReplicatedNodes()
    nodes.create("t", (1, 2, 3))
    nodes.network.cut_off.add(3)
    assert nodes.produce(1, acks=1) == (NONE, 0)
    nodes.run_until_in_sync(1, 2)
    late: list[tuple[SimulatedLink, bytes]] = []
    write = SimulatedLink.write

    def hold_the_first(self: SimulatedLink, data: bytes) -> None:
        if not late and frames.read_api(data[4:])[0] == ALTER_PARTITION:
            late.append((self, data))
        else:
            write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedLink, "write", hold_the_first)
        nodes.network.cut_off.clear()
        nodes.run_until(lambda: late)
        nodes.brokers[2].role.hold_fetches(True)
        nodes.network.cut_off.add(2)
        nodes.run_until_in_sync(1)
        assert nodes.produce(1) == (NONE, 1), "brokers 1 and 3 have it"
        nodes.network.cut_off.clear()
        fenced = nodes.controller.broker.catalog.registered_brokers
        nodes.run_until(lambda: not fenced()[2].is_fenced)
        write(*late[0])
        nodes.world.advance(100)
    isr = nodes.registration().isr
    assert nodes.partition(2).log_end_offset == 1
    for number in (1, 3):
        nodes.brokers[number].kill()
    nodes.run_until(lambda: fenced()[1].is_fenced and fenced()[3].is_fenced)
    nodes.settle()
    return isr, nodes.leader()


def test_a_late_request_does_not_bring_a_broker_back_that_misses_records(monkeypatch: pytest.MonkeyPatch) -> None:
    isr, leader = in_sync_after_a_late_request(monkeypatch)
    assert (set(isr), leader) == ({1, 3}, NO_NODE)
    with BUGS["the controller takes any partition epoch"]():
        isr, leader = in_sync_after_a_late_request(monkeypatch)
    assert (set(isr), leader) == ({1, 2, 3}, 2), "the acknowledged record is lost"
