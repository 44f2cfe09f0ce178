"""Limits of connections: limits of single hosts, and no setting that locks out every client permanently."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.brokers import Wire, eventually

from odradek.broker.limits.host_limits import HostLimits, plain_address
from odradek.broker.loop.world import NodeWorld
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import BROKER, AlterConfigs
from odradek.core.errors import ConfigError
from odradek.testing.process import BrokerFailed, BrokerProcess
from odradek.testing.thread import BrokerThread
from odradek.wire import frames

INVALID_REQUEST = 42
OVERRIDES = "max.connections.per.ip.overrides"
FIRST, SECOND = "127.0.0.1", "127.0.0.2"  # two hosts, as the broker sees them
ASK = frames.encode_request(18, 0, 1, "limits-test", {})


def admitted(bootstrap: str, host: str, attempts: int = 6) -> int:
    """Returns how many of ``attempts`` concurrent connections of a host get a reply."""
    address, _, port = bootstrap.rpartition(":")
    with contextlib.ExitStack() as stack:
        answered = 0
        for _ in range(attempts):
            try:
                peer = stack.enter_context(socket.create_connection((address, int(port)), 10, (host, 0)))
                peer.sendall(ASK)
                answered += bool(peer.recv(1))
            except ConnectionError:
                continue
        return answered


@contextlib.contextmanager
def operator(bootstrap: str) -> Iterator[Wire]:
    """A connection from a host that is not under test."""
    address, _, port = bootstrap.rpartition(":")
    with Wire(bootstrap) as wire:
        wire.socket.close()
        wire.socket = socket.create_connection((address, int(port)), 30, ("127.0.0.9", 0))
        yield wire


def alter(wire: Wire, settings: Mapping[str, str | None], resource: str = "1") -> tuple[int, str]:
    rows = [
        {"name": name, "config_operation": 1 if value is None else 0, "value": value}
        for name, value in settings.items()
    ]
    asked = {"resource_type": BROKER, "resource_name": resource, "configs": rows}
    row = wire.call(44, 1, {"resources": [asked], "validate_only": False}).responses[0]
    return int(row.error_code), row.error_message or ""


def value_of(wire: Wire, name: str) -> tuple[str | None, int]:
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": [name]}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (row,) = wire.call(32, 4, message).results[0].configs
    return row.value, int(row.config_source)


# --- limits of single hosts -------------------------------------------------------------------------------------


def test_a_host_has_its_own_limit_at_the_start_and_at_run_time(tmp_path: Path) -> None:
    config = {"max.connections.per.ip": "2", OVERRIDES: f"{SECOND}:4"}
    with BrokerProcess(tmp_path, config=config) as running:
        assert (admitted(running.bootstrap, FIRST), admitted(running.bootstrap, SECOND)) == (2, 4)
        for resource in ("", "1"):
            with operator(running.bootstrap) as wire:
                assert alter(wire, {OVERRIDES: f"{SECOND}:1 , localhost : 3"}, resource) == (0, "")
                # A thread resolves the name, so its limit applies a little later.
                eventually(lambda: admitted(running.bootstrap, FIRST) == 3)
                assert admitted(running.bootstrap, SECOND) == 1
                assert alter(wire, {OVERRIDES: None}, resource) == (0, "")
            assert (admitted(running.bootstrap, FIRST), admitted(running.bootstrap, SECOND)) == (2, 4)
        with operator(running.bootstrap) as wire:
            assert alter(wire, {"max.connections.per.ip": "0", OVERRIDES: f"127.0.0.9:9,{FIRST}:5"}) == (0, "")
            assert (admitted(running.bootstrap, FIRST), admitted(running.bootstrap, SECOND)) == (5, 0)


# The messages of Apache Kafka 4.3.
INVALID_FORMATS = {
    "127.0.0.1": f"Error parsing configuration property '{OVERRIDES}': begin 0, end -1, length 9",
    "127.0.0.1:5,x": f"Error parsing configuration property '{OVERRIDES}': begin 0, end -1, length 1",
    "127.0.0.1:5,,127.0.0.2:4": f"Error parsing configuration property '{OVERRIDES}': begin 0, end -1, length 0",
    "a:b": 'For input string: "b"',
    "127.0.0.1:99999999999": 'For input string: "99999999999"',
    "127.0.0.1:" + "9" * 5000: 'For input string: "' + "9" * 5000 + '"',
}
VALID_FORMATS = (
    "127.0.0.1:-1",
    "127.0.0.1:5,127.0.0.1:6",
    ":5",
    "::1:5",
    "127.0.0.1 : 5",
    " ",
    "127.0.0.1:5,",
    "127.0.0.1:+7",
)


def test_invalid_formats_are_refused_with_kafkas_messages(tmp_path: Path) -> None:
    for text, complaint in INVALID_FORMATS.items():
        with pytest.raises(ConfigError) as refused:
            BrokerConfig({OVERRIDES: text})
        assert str(refused.value) == complaint
    for text in VALID_FORMATS:
        BrokerConfig({OVERRIDES: text})
    with BrokerProcess(tmp_path) as running, Wire(running.bootstrap) as wire:
        for text, complaint in INVALID_FORMATS.items():
            for resource in ("", "1"):
                assert alter(wire, {OVERRIDES: text}, resource) == (INVALID_REQUEST, complaint)
        assert value_of(wire, OVERRIDES) == ("", 5)


def test_a_host_has_the_same_limit_in_every_form_of_its_address() -> None:
    limits = HostLimits(BrokerConfig({OVERRIDES: "127.0.0.1:7,0:0:0:0:0:0:0:1:8,[fe80::1]:9", "max.connections": "3"}))
    limits.apply_settings(at_start=True)
    hosts = ("127.0.0.1", "::ffff:127.0.0.1", "::1", "fe80::1%lo", "127.0.0.2")
    assert [limits.most(host) for host in hosts] == [7, 7, 8, 9, (1 << 31) - 1]
    assert plain_address("localhost") is None


def test_a_host_name_without_an_address_prevents_the_start_as_in_kafka(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=rf"{OVERRIDES}: no\.\.host: the name has no address"):
        BrokerProcess(tmp_path, config={OVERRIDES: "127.0.0.1:5,no..host:5"}).start()


@contextlib.contextmanager
def running_in_thread(directory: Path, world: NodeWorld) -> Iterator[BrokerThread]:
    broker = BrokerThread(directory, config={}, world=world).start()
    try:
        yield broker
    finally:
        broker.stop()
        broker.release_port()


def test_a_slow_resolver_blocks_one_thread_and_no_request(tmp_path: Path) -> None:
    answer = threading.Event()
    asked: list[str] = []

    def slow(name: str) -> str:
        asked.append(name)
        assert answer.wait(60)
        return FIRST

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "host names"]

    with running_in_thread(tmp_path, NodeWorld.of_process()._replace(look_up=slow)) as broker:
        try:
            with Wire(broker.bootstrap_servers) as wire, operator(broker.bootstrap_servers) as other:
                for number in range(50):
                    assert alter(wire, {OVERRIDES: f"a{number}:5,b{number}:{number % 5}"}) == (0, "")
                    other.versions()
                assert asked == ["a0"]
                assert len(threads()) == 1
                answer.set()
                expected = 49 % 5 - 1  # ``wire`` has one of the allowed connections
                counts: list[int] = []
                with contextlib.suppress(AssertionError):
                    eventually(
                        lambda: counts.append(admitted(broker.bootstrap_servers, FIRST)) or counts[-1] == expected
                    )
                assert counts[-1] == expected, f"admitted {counts}; resolved {asked}; threads {threads()}"
            assert asked == ["a0", "a49", "b49"], "the resolver skips host names that a later change replaced"
        finally:
            answer.set()
        eventually(lambda: not threads())


# --- no permanent lock-out --------------------------------------------------------------------------------------


def test_values_that_admit_no_connection_are_refused_as_in_kafka(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as running, Wire(running.bootstrap) as wire:
        for resource in ("", "1"):
            for name in ("max.connections", "max.connections.per.ip", "max.connection.creation.rate"):
                code, text = alter(wire, {name: "0"}, resource)
                assert code == INVALID_REQUEST
                assert name in text
                assert value_of(wire, name)[1] == 5
            assert alter(wire, {"max.connections.per.ip": "0", OVERRIDES: f"{FIRST}:5"}, resource)[0] == 0
            code, text = alter(wire, {OVERRIDES: None}, resource)
            assert code == INVALID_REQUEST
            assert "set to zero only if" in text
            assert alter(wire, {"max.connections.per.ip": None, OVERRIDES: None}, resource)[0] == 0
        assert admitted(running.bootstrap, FIRST) == 6
    with pytest.raises(ConfigError, match="set to zero only if"):
        BrokerConfig({"max.connections.per.ip": "0"})


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
def test_values_that_an_older_broker_accepted_lock_out_no_client(tmp_path: Path, name: str) -> None:
    asyncio.run(store(tmp_path / "data", {name: "0", "log.retention.ms": "7"}))
    with BrokerProcess(tmp_path) as running:
        assert admitted(running.bootstrap, FIRST) == 6
        with Wire(running.bootstrap) as wire:
            assert value_of(wire, name)[1] == 5, "it is not in effect, and the description does not show it"
            assert value_of(wire, "log.retention.ms") == ("7", 2)
            assert alter(wire, {name: None}) == (0, "")
        assert running.log_tail().count(f"the dynamic value of {name} is ignored") == 1
        running.stop()
        running.start()
        assert admitted(running.bootstrap, FIRST) == 6
        assert running.log_tail().count("ignored") == 1


class Deleting(BrokerProcess):
    """A broker that starts with ``--delete-config``."""

    names = ""

    def command_line(self) -> list[str]:
        return [*super().command_line(), f"--delete-config={self.names}"]


def test_the_operator_can_undo_a_lock_out(tmp_path: Path) -> None:
    """Some values that Kafka accepts lock out hosts. The operator can remove such values at the next start."""
    config = {"max.connections": "50"}
    with BrokerProcess(tmp_path, config=config) as running:
        with Wire(running.bootstrap) as wire:
            assert alter(wire, {OVERRIDES: f"{FIRST}:0", "log.retention.ms": "7"}) == (0, "")
            assert alter(wire, {OVERRIDES: f"{SECOND}:0"}, "") == (0, "")
        assert admitted(running.bootstrap, FIRST) == 0
        running.kill()
        running.start()
        assert admitted(running.bootstrap, FIRST) == 0, "a setting is kept across a restart, as in Kafka"
    again = Deleting(tmp_path, config=config)
    again.names = f"{OVERRIDES},max.connections"  # max.connections has no dynamic value
    with again:
        assert admitted(again.bootstrap, FIRST) == admitted(again.bootstrap, SECOND) == 6
        again.names = ""
        again.kill()
        again.start()
        assert admitted(again.bootstrap, FIRST) == admitted(again.bootstrap, SECOND) == 6
        with Wire(again.bootstrap) as wire:
            assert value_of(wire, "log.retention.ms") == ("7", 2)
    again.names = "max.conections"
    with pytest.raises(BrokerFailed, match=r"did you mean 'max\.connections'"):
        again.start()


async def store(directory: Path, settings: dict[str, str]) -> None:
    """Stores settings like a broker with fewer checks."""
    broker = BrokerServer(BrokerConfig(), directory, ("127.0.0.1", 0))
    await broker.start()
    broker.role.stored.apply(AlterConfigs(BROKER, "1", settings))
    await broker.stop()
