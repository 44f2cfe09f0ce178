"""Schedules of whole nodes of a cluster (support/cluster_schedule): few here, more in the long suite."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from support.cluster_schedule import ClusterSchedule
from support.world import SimulationFailure

from odradek.broker.loop.scheduler import Steps
from odradek.broker.node import cluster_member
from odradek.broker.node.cluster_role import BrokerMember
from odradek.broker.remote.forwarder import RequestForwarder
from odradek.broker.remote.observer_quorum import ObserverQuorum
from odradek.catalog.delta import Delta

SEEDS, MORE_SEEDS = range(4), range(4, 204)


def failure_of(seed: int, *, combined: bool = False) -> str:
    """Runs a schedule. Returns why it fails, with the last events; "" if it does not."""
    schedule = ClusterSchedule(seed, combined=combined)
    try:
        schedule.run()
    except (SimulationFailure, AssertionError) as failure:
        about = failure.about if isinstance(failure, SimulationFailure) else ()
        lines = "\n".join(schedule.world.trace(about, last=80))
        return f"seed {seed}: {failure}\n{lines}"
    return ""


@pytest.mark.parametrize("combined", [False, True], ids=["controller", "both roles"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_agree_whatever_fails(seed: int, combined: bool) -> None:
    assert failure_of(seed, combined=combined) == ""


@pytest.mark.slow
@pytest.mark.parametrize("combined", [False, True], ids=["controller", "both roles"])
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_nodes_agree_in_many_schedules(seed: int, combined: bool) -> None:
    assert failure_of(seed, combined=combined) == ""


# --- planted bugs ---------------------------------------------------------------------------------------------------


def reply_before_the_change_is_applied(patch: pytest.MonkeyPatch) -> None:
    def catch_up(self: RequestForwarder, within_ms: int = 0) -> Steps[None]:
        yield None

    patch.setattr(RequestForwarder, "catch_up", catch_up)


def snapshots_delete_nothing(patch: pytest.MonkeyPatch) -> None:
    right = cluster_member.delta_between

    def delta_between(before: Any, after: Any) -> Generator[None, None, Delta]:
        delta = yield from right(before, after)
        delta.deleted.clear()
        return delta

    patch.setattr(cluster_member, "delta_between", delta_between)


def producer_ids_of_any_record(patch: pytest.MonkeyPatch) -> None:
    """A broker takes the blocks of all brokers."""
    from odradek.broker.remote.remote_controller import RemoteProducerIds

    def on_metadata_update(self: RemoteProducerIds, delta: Delta, image: object) -> None:
        for record in delta.producer_ids:
            self.take_block(record.next_producer_id - 1000, 1000)

    patch.setattr(RemoteProducerIds, "on_metadata_update", on_metadata_update)


def loads_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    """The logs are opened by old metadata, and unknown directories are set aside."""
    right = BrokerMember.call_after

    def call_after(self: BrokerMember, delay_ms: int, work: Callable[[], None]) -> None:
        if not self.has_loaded and self.membership.lifecycle.epoch >= 0:
            self.on_caught_up()
        right(self, delay_ms, work)

    patch.setattr(BrokerMember, "call_after", call_after)
    patch.setattr(ObserverQuorum, "is_newest", lambda self, offset: True)


BUGS = [
    (reply_before_the_change_is_applied, 4),
    (snapshots_delete_nothing, 40),
    (producer_ids_of_any_record, 10),
    (loads_before_it_has_caught_up, 10),
]
"""Each with the number of seeds within which it is seen."""


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "seeds"), BUGS)
def test_planted_bugs_are_seen(
    plant: Callable[[pytest.MonkeyPatch], None], seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(failure_of(seed) for seed in range(seeds))
