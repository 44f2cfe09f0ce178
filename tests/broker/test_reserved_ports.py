"""Ports that stay reserved while no server listens on them."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import odradek
from odradek.testing import ports
from odradek.testing.ports import held_port, reserve_ports
from odradek.testing.process import BrokerFailed

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hold a port that a server uses")


@needs_linux
@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_server_can_listen_again_and_again_on_a_reserved_port(host: str, family: socket.AddressFamily) -> None:
    (held,) = reserve_ports(1, host)
    for _ in range(3):
        with socket.create_server((host, held.port), family=family):  # sets SO_REUSEADDR
            socket.create_connection((host, held.port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, held.port))


@needs_linux
def test_the_system_gives_a_reserved_port_to_no_other_program() -> None:
    (first,) = reserve_ports(1)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if low > ports.LOWEST:
        assert first.port < low, "connections and servers without a port of their own get ports from this one on"
    # The only port that a second reservation may try is taken, so it gets one from the system.
    only = range(first.port, first.port + 1)
    (second,) = reserve_ports(1, among=only)
    assert second.port != first.port
    first.close()
    (third,) = reserve_ports(1, among=only)
    assert third.port == first.port


def test_without_a_system_that_holds_ports_the_server_chooses_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports.sys, "platform", "darwin")
    assert len({one.port for one in reserve_ports(20)}) == 20
    assert held_port("127.0.0.1") is None
    with odradek.Broker(tmp_path) as broker:
        address = broker.bootstrap_servers
        broker.stop()
        broker.start()
        assert broker.bootstrap_servers == address


def test_a_host_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        reserve_ports(1, "192.0.2.1")
    assert held_port("192.0.2.1") is None


@needs_linux
@pytest.mark.parametrize("in_thread", [False, True])
def test_no_program_gets_the_port_of_a_stopped_broker(tmp_path: Path, in_thread: bool) -> None:
    with odradek.Broker(tmp_path, in_thread=in_thread) as broker:
        address = broker.bootstrap_servers
        host, _, port = address.rpartition(":")
        broker.kill()
        with socket.socket() as other, pytest.raises(OSError, match="already in use"):
            other.bind((host, int(port)))
        broker.start()
        assert broker.bootstrap_servers == address


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_closed_broker_and_a_failed_first_start_give_the_port_back(tmp_path: Path, in_thread: bool) -> None:
    with odradek.Broker(tmp_path / "a", in_thread=in_thread) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        second = odradek.Broker(tmp_path / "a", in_thread=in_thread)
        with pytest.raises(Exception, match="held by another broker"):
            second.start()
        with pytest.raises(BrokerFailed, match="has not been started"):
            second.bootstrap_servers
        second.close()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections may be in TIME_WAIT
        other.bind((host, int(port)))
    assert broker._engine.reservation is None
    assert broker.bootstrap_servers == f"{host}:{port}"
