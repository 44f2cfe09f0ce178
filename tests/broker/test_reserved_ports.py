"""Ports that stay reserved while no server listens on them."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import odradek
from odradek.testing import ports
from odradek.testing.ports import PortReservation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux only")


def _listens(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))  # sets SO_REUSEADDR


def test_a_server_can_listen_again_and_again_on_a_reserved_port() -> None:
    held = PortReservation()
    for _ in range(3):
        with _listens(held.port), socket.create_connection(("127.0.0.1", held.port)):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", held.port))


def test_the_system_gives_a_reserved_port_to_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    first = PortReservation()
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if low > ports._LOWEST:
        assert first.port < low, "connections and servers without a port of their own get ports from this one on"
    # The only port that a second reservation may try is taken, so it gets one from the system.
    monkeypatch.setattr(ports, "_LOWEST", first.port)
    monkeypatch.setattr(ports, "_first_chosen_by_the_system", lambda: first.port + 1)
    assert PortReservation().port != first.port
    first.close()
    assert PortReservation().port == first.port


def test_a_host_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        PortReservation("192.0.2.1")
    assert ports.reserved_port("192.0.2.1") is None


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
