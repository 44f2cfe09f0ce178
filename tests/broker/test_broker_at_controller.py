"""A broker's machines at a controller's node, by the bytes of their messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.blocking_broker import BlockingBroker
from support.controlled_cluster import state_of
from support.memory_files import MemoryFiles
from support.simulated_controller import CONTROLLER, BlockingWire, SimulatedController
from test_controller_node import create

from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.nodes.lifecycle import LifecycleState
from odradek.core.errors import ErrorCode

HOME = Path("/broker")
SESSION_MS = 9_000


@pytest.fixture
def controller() -> SimulatedController:
    return SimulatedController()


@pytest.fixture
def start(controller: SimulatedController) -> Callable[..., BlockingBroker]:
    """Starts an incarnation of broker 3. Its files stay."""
    files = MemoryFiles()

    def started(incarnation: int = 1, clean_epoch: int = -1, cluster_id: str = "", home: Path = HOME) -> BlockingBroker:
        return BlockingBroker(
            home,
            files,
            (3, cluster_id or controller.broker.cluster_id, CONTROLLER),
            lambda: BlockingWire(controller, "broker"),
            controller.world.steady,
            controller.world.advance,
            incarnation=incarnation,
            clean_epoch=clean_epoch,
        )

    return started


def runs(broker: BlockingBroker) -> Callable[[], bool]:
    return lambda: broker.lifecycle.state is LifecycleState.RUNNING


def follows(broker: BlockingBroker, controller: SimulatedController) -> Callable[[], bool]:
    """Whether the broker has applied all that is committed now."""
    end = controller.broker.quorum.committed_offset
    return lambda: broker.log.applied.end_offset >= end


def catalogue(controller: SimulatedController) -> list[bytes]:
    state = controller.broker.catalog.state
    assert isinstance(state, ClusterCatalog)
    return state_of(state)


def test_a_broker_starts_follows_and_stops(
    controller: SimulatedController, start: Callable[..., BlockingBroker]
) -> None:
    broker = start()
    broker.run_until(runs(broker))
    assert create(controller, "t") is ErrorCode.none
    broker.run_until(follows(broker, controller))
    assert broker.image.topics["t"].partitions[0].leader == 3
    assert state_of(broker.image) == catalogue(controller)
    broker.membership.begin_shutdown()
    broker.run_until(lambda: broker.lifecycle.state is LifecycleState.ENDED)
    assert not broker.lifecycle.failure
    broker.log.metadata_log.close()
    controller.world.advance(2 * SESSION_MS)
    again = start(2, broker.lifecycle.epoch)
    again.run_until(runs(again))
    again.run_until(follows(again, controller))
    assert again.image.topics["t"].partitions[0].leader == 3
    assert again.lifecycle.epoch > broker.lifecycle.epoch


@pytest.mark.parametrize("how", ["kill", "clean", "power"])
def test_a_restart_of_the_controller_is_followed(
    controller: SimulatedController, start: Callable[..., BlockingBroker], how: str
) -> None:
    broker = start()
    broker.run_until(runs(broker))
    create(controller, "t")
    if how == "power":
        controller.node.kill()
        controller.files.power_cut(lambda: 0.0)
        controller.begin()
    else:
        controller.restart(cleanly=how == "clean")
    create(controller, "u")
    broker.run_until(follows(broker, controller))
    assert (broker.observer.epoch, broker.log.leader_epoch) == (2, 2)
    assert state_of(broker.image) == catalogue(controller)
    controller.world.advance(SESSION_MS // 2)
    assert controller.broker.catalog.state.nodes.is_active(3)


def test_another_incarnation_waits_for_the_end_of_the_session(
    controller: SimulatedController, start: Callable[..., BlockingBroker]
) -> None:
    broker = start()
    broker.run_until(runs(broker))
    begun = controller.world.steady()
    again = start(2, home=Path("/another"))
    again.run_until(runs(again))
    assert controller.world.steady() - begun > SESSION_MS - 2_500
    broker.run_until(lambda: broker.lifecycle.state is LifecycleState.ENDED)
    assert "another process has node.id=3" in broker.failure


def test_a_broker_of_another_cluster_ends(
    controller: SimulatedController, start: Callable[..., BlockingBroker]
) -> None:
    broker = start(cluster_id="another")
    broker.run_until(lambda: broker.lifecycle.state is LifecycleState.ENDED, within_ms=5_000)
    assert "broker 3: it answers inconsistent_cluster_id. The directory belongs to another cluster" in broker.failure
    assert broker.log.end.end_offset == 0


def test_a_broker_that_is_behind_takes_a_snapshot(
    controller: SimulatedController, start: Callable[..., BlockingBroker]
) -> None:
    broker = start()
    broker.run_until(runs(broker))
    for number in range(40):
        assert create(controller, f"topic-with-a-long-name-{number}") is ErrorCode.none
    controller.broker.controller.begin_snapshot()
    controller.world.advance(100)
    broker.run_until(follows(broker, controller))
    assert broker.snapshots == 0, "it was not behind"
    controller.world.advance(2 * SESSION_MS)
    fresh = start(2)
    fresh.log.truncate_to(0)
    fresh.run_until(runs(fresh))
    fresh.run_until(follows(fresh, controller))
    assert fresh.snapshots == 1
    assert state_of(fresh.image) == catalogue(controller)
