"""The connections of a node to its peers: one for each node and channel, at the address that the image has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.simulated_loop import SimulatedLoop
from support.world import Process, World
from test_remote_connection import BEAT, Far

from odradek.broker.remote.peers import CONTROLLER_REQUESTS, DEFAULT_TIMES, Channel, ClusterAddresses, Peers, PeerTimes
from odradek.core.deferred import Deferred

CONTROLLER, NEAR = 100, "INNER"
SLOW = Channel("slow", log_level=logging.WARNING)
HEARTBEATS = Channel("heartbeats", log_level=logging.WARNING, at_controller=True)


class OpenedFar(Far):
    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self.address = address


class AcceptingDialer:
    def __init__(self, peers: PeersOfTest, address: tuple[str, int]) -> None:
        self._peers, self._address = peers, address

    def dial(self, make: Callable[[], asyncio.Protocol], on_failure: Callable[[str], None]) -> Callable[[], None]:
        self._peers.dialled.append(self._address)
        if self._address[0] in self._peers.silent:
            return lambda: None
        if self._address[0] in self._peers.down:
            self._peers.loop.call_soon(on_failure, "Connection refused")
        else:
            far = OpenedFar(self._address)
            far.protocol = make()
            self._peers.opened.append(far)
            self._peers.loop.call_soon(far.protocol.connection_made, far)
        return lambda: None

    def reason(self, error: Exception | None) -> str:
        return str(error or "it has closed the connection")


class PeersOfTest:
    """Peers in an image of two brokers and a controller. ``down``: hosts that refuse connections.

    ``silent``: hosts that do not answer an attempt to connect."""

    def __init__(self, times: PeerTimes = DEFAULT_TIMES) -> None:
        self.world = World()
        self.loop = SimulatedLoop(self.world, Process(self.world))
        self.dialled: list[tuple[str, int]] = []
        self.opened: list[OpenedFar] = []
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.brokers: dict[int, Any] = {number: broker(f"b{number}", 9092) for number in (1, 2)}
        image: Any = SimpleNamespace(registered_brokers=lambda: self.brokers)
        addresses = ClusterAddresses(image, {CONTROLLER: ("c", 9093)}, NEAR)
        self.peers = Peers(self.loop, addresses, self._dialer, "broker-7", times)

    def _dialer(self, host: str, port: int, at_controller: bool) -> AcceptingDialer:
        assert at_controller == (host == "c")
        return AcceptingDialer(self, (host, port))

    def send(self, node_id: int, **options: Any) -> Deferred[int | None]:
        sent = self.peers.send(node_id, BEAT, 5_000, **options)
        self.world.settle()
        return sent


def broker(host: str, port: int) -> Any:
    endpoints = (
        SimpleNamespace(name="OUTER", host="elsewhere", port=1),
        SimpleNamespace(name=NEAR, host=host, port=port),
    )
    return SimpleNamespace(endpoints=endpoints)


@pytest.fixture
def near() -> PeersOfTest:
    return PeersOfTest()


def test_each_node_has_a_connection_of_its_own_at_the_listener_between_brokers(near: PeersOfTest) -> None:
    promises = [
        near.send(1),
        near.send(2),
        near.send(CONTROLLER, channel=CONTROLLER_REQUESTS),
        near.send(1),
        near.send(2),
    ]
    assert near.dialled == [("b1", 9092), ("b2", 9092), ("c", 9093)]
    for far in near.opened:
        for number in far.numbers:
            far.reply(number, 25)
    assert [promise.value for promise in promises] == [25] * 5


def test_a_node_with_both_roles_has_two_addresses(near: PeersOfTest) -> None:
    """A request for the broker of the controller's node goes to the broker's listener."""
    near.brokers[CONTROLLER] = broker("b100", 9092)
    near.send(CONTROLLER)
    near.send(CONTROLLER, channel=CONTROLLER_REQUESTS)
    assert near.dialled == [("b100", 9092), ("c", 9093)]
    near.send(1, channel=CONTROLLER_REQUESTS)
    assert len(near.dialled) == 2, "node 1 is no controller"


def test_the_settings_have_the_times_of_an_attempt_to_connect_and_of_a_request() -> None:
    near = PeersOfTest(PeerTimes(request_ms=900, connect_ms=300))
    near.silent.add("b1")
    promise = near.peers.send(1, BEAT)
    near.world.advance(800)
    assert (len(near.dialled), promise.resolved) == (3, False)
    near.world.advance(200)
    assert (promise.resolved, promise.value) == (True, None)


def test_a_channel_does_not_wait_for_the_replies_of_another(near: PeersOfTest) -> None:
    waiting, quick = near.send(1, channel=SLOW), near.send(1)
    one, other = near.opened
    other.reply(*other.numbers)
    assert (quick.value, waiting.resolved) == (0, False)
    one.reply(*one.numbers)
    assert waiting.value == 0


def test_a_waiting_request_follows_a_node_to_its_new_address(near: PeersOfTest) -> None:
    near.down.add("b1")
    promise = near.send(1)
    near.brokers[1] = broker("new", 1234)
    near.world.advance(100)
    assert near.dialled == [("b1", 9092), ("new", 1234)]
    (far,) = near.opened
    far.reply(*far.numbers)
    assert promise.value == 0


def test_a_request_to_a_node_that_is_not_registered_waits_for_its_registration(
    near: PeersOfTest, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = near.send(3, channel=SLOW), near.peers.send(4, BEAT, 200)
    near.world.advance(1_000)
    assert (near.dialled, early.resolved, late.value) == ([], False, None)
    near.brokers[3] = broker("b3", 9092)
    near.world.advance(1_500)
    (far,) = near.opened
    far.reply(*far.numbers)
    assert early.value == 0
    assert caplog.messages[0] == "node 3 cannot be reached: it is not registered"
    assert caplog.messages[-1] == "node 3 at b3:9092 can be reached again"


def test_an_outage_of_one_node_does_not_delay_the_others(near: PeersOfTest, caplog: pytest.LogCaptureFixture) -> None:
    near.down.add("c")
    down, up = near.send(CONTROLLER, channel=HEARTBEATS), near.send(2)
    near.opened[0].reply(*near.opened[0].numbers)
    assert (up.value, down.resolved) == (0, False)
    near.world.advance(5_000)
    assert down.value is None
    assert caplog.messages == ["the controller, node 100 at c:9093, cannot be reached: Connection refused"]


def test_after_the_end_all_requests_get_none(near: PeersOfTest) -> None:
    near.down.add("b2")
    promises = [near.send(1), near.send(2)]
    near.peers.close()
    promises += [near.send(1), near.send(CONTROLLER, channel=CONTROLLER_REQUESTS)]
    assert [promise.value for promise in promises] == [None] * 4
    near.world.advance(10_000)
    assert near.dialled == [("b1", 9092), ("b2", 9092)]
