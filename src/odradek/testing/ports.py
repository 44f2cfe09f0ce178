"""Ports for servers that a test stops and starts again.

Between the stop and the next start, the system may give a port that it has chosen itself to another program or to an
outgoing connection, even to the connection of a client that tries to reach the stopped server. The next start would
then fail with "address already in use".
"""

from __future__ import annotations

import errno
import random
import socket
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000
_TRIES = 200


class PortReservation:
    """A port of ``host`` on which a server can listen again and again, until ``close``.

    If ``is_held``, a bound socket that does not listen keeps the port from other programs. A server that sets
    SO_REUSEADDR, as Kafka, ZooKeeper and this project's broker do, can listen on it meanwhile. The port is below those
    that the system chooses itself, if there are such ports. Only Linux can hold a port; on other systems the port is
    only free at the moment. ``reserve_ports`` makes reservations.
    """

    def __init__(self, host: str, among: range | None = None) -> None:
        self._host = host.strip("[]")
        self._bound = _bound(self._host, among)
        self.port = int(self._bound.getsockname()[1])
        self._end = weakref.finalize(self, self._bound.close)

    @property
    def is_held(self) -> bool:
        return self._end.alive

    def close(self) -> None:
        """Gives the port back. Further calls do nothing."""
        self._end()

    def let_servers_listen(self) -> None:
        """Lets servers use the port. If the system cannot hold it meanwhile, gives it back."""
        if sys.platform == "linux":
            # Set after ``bind``: with the option, two reservations could have the same port.
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with socket.socket(self._bound.family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self._host, self.port))
                    probe.listen()
                except OSError:  # a system that only looks like Linux may have other rules
                    self.close()
        else:
            self.close()


def reserve_ports(count: int, host: str = "127.0.0.1", *, among: range | None = None) -> list[PortReservation]:
    """Returns reservations of different ports. Raises OSError, e.g. if ``host`` is no address of this machine.

    ``among``: the ports that are tried first, by default all that the system does not choose itself."""
    made = [PortReservation(host, among) for _ in range(count)]
    for one in made:
        one.let_servers_listen()
    return made


class PortOwner:
    """A server with the same ``port`` over its starts. ``port`` 0: the first start chooses one."""

    host: str
    port: int
    reservation: PortReservation | None = None

    @contextmanager
    def choosing_port(self) -> Iterator[None]:
        """Chooses a port if there is none yet. If the start in this block fails, gives the port back."""
        is_first = not self.port
        if is_first and (reservation := held_port(self.host)) is not None:
            self.reservation, self.port = reservation, reservation.port
        try:
            yield
        except BaseException:
            if is_first:
                self.release_port()
                self.port = 0
            raise

    def release_port(self) -> None:
        """Gives back the port that the first start has chosen."""
        if self.reservation is not None:
            self.reservation.close()
            self.reservation = None


def held_port(host: str) -> PortReservation | None:
    """Returns a held port of ``host``. None if this system cannot hold one: then the server has to choose its port."""
    try:
        (made,) = reserve_ports(1, host)
    except OSError:
        return None  # the server's own error is clearer
    return made if made.is_held else None


def _bound(host: str, ports: range | None) -> socket.socket:
    ports = ports or range(LOWEST, _first_chosen_by_the_system())
    tries = random.Random().sample(ports, min(_TRIES, len(ports)))  # a test's seeded generator stays as it is
    for port in tries:
        try:
            return _bound_to(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bound_to(host, 0)


def _bound_to(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def _first_chosen_by_the_system() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return LOWEST
