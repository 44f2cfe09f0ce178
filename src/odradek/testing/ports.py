"""Ports for servers that a test stops and starts again.

Between the stop and the next start, the system may give a port that it has chosen itself to another program or to an
outgoing connection, even to the connection of a client that tries to reach the stopped server. The next start would
then fail with "address already in use".
"""

from __future__ import annotations

import random
import socket
import sys
import weakref
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20_000
_TRIES = 200


class PortReservation:
    """A port of ``host`` that no other program gets while this object exists, and that a server can listen on.

    On Linux, a bound socket that does not listen holds the port. A server that sets SO_REUSEADDR, as Kafka, ZooKeeper
    and this project's broker do, can listen on the port meanwhile, any number of times. The port is below those that
    the system chooses itself, if there are such ports. On other systems the port is only free at the moment
    (``is_held`` is False). Raises OSError if no port can be bound, for example because ``host`` is not an address of
    this machine.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        bound = _bound(host.strip("[]"))
        self.port = int(bound.getsockname()[1])
        self.is_held = sys.platform == "linux"
        if self.is_held:
            # Set after ``bind``: with the option, two reservations could have the same port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.close = weakref.finalize(self, bound.close)
        else:
            bound.close()
            self.close = weakref.finalize(self, lambda: None)


def reserved_port(host: str) -> PortReservation | None:
    """Returns a held port of ``host``. None if this system cannot hold one: then the server has to choose its port."""
    try:
        reservation = PortReservation(host)
    except OSError:
        return None  # the server's own error is clearer
    return reservation if reservation.is_held else None


def _bound(host: str) -> socket.socket:
    ports = range(_LOWEST, _first_chosen_by_the_system())
    tries = random.sample(ports, min(_TRIES, len(ports)))
    for port in [*tries, 0]:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            found.bind((host, port))
        except OSError:
            found.close()
            if port == 0:
                raise
        else:
            return found
    raise AssertionError("the last try has port 0")


def _first_chosen_by_the_system() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LOWEST
