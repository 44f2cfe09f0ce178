"""What a node gets from outside besides its event loop: files, clocks, ids, threads and the addresses of hosts.

The process of a broker has those of the operating system. A simulator passes files in memory, virtual time and ids of
a seed, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID, uuid4

from odradek.broker.loop.clock import Clock
from odradek.storage.disk.files import Files, OsFiles

if TYPE_CHECKING:
    import ssl

Connect: TypeAlias = Callable[
    [Callable[[], asyncio.BaseProtocol], str, int, "ssl.SSLContext | None"],
    Coroutine[object, object, tuple[asyncio.BaseTransport, asyncio.BaseProtocol]],
]
"""Opens a connection to a host and a port, as asyncio's ``create_connection``; with a context, by TLS. Then the host
has to be in the certificate, if the context checks names. Raises OSError."""
_HANDSHAKE_S = 10.0


async def connect(
    make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """Opens a connection over TCP. Raises OSError."""
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_connection(make_protocol, host, port)
    return await loop.create_connection(
        make_protocol, host, port, ssl=tls, server_hostname=host, ssl_handshake_timeout=_HANDSHAKE_S
    )


async def connect_by(
    connected: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, tls: ssl.SSLContext | None
) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """As ``connect``, over a socket that has a connection already. Raises OSError."""
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_connection(make_protocol, sock=connected)
    return await loop.create_connection(
        make_protocol, sock=connected, ssl=tls, server_hostname=host, ssl_handshake_timeout=_HANDSHAKE_S
    )


def new_threads(count: int, name: str) -> Executor:
    """Returns ``count`` threads for work that takes longer than a tick of the loop."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)


def begin_thread(name: str, job: Callable[[], None]) -> None:
    """Begins a thread for one job. The end of the process does not wait for it."""
    threading.Thread(target=job, name=name, daemon=True).start()


def look_up(host: str) -> str:
    """Returns the address that Java would choose for a host: an IPv4 address if there is one. Raises OSError."""
    if not host:
        return "127.0.0.1"
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            return str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
    raise OSError("the name has no address")


def host_name() -> str:
    """Returns the name by which other hosts may reach this one."""
    return socket.getfqdn()


class NodeWorld(NamedTuple):
    """``share_clock``: the seconds of the scheduler's shares. ``new_threads`` gets a number of threads and their name.

    ``begin_thread`` gets the name of a thread and its job. ``look_up`` returns the address of a host, or raises
    OSError; only such a thread and the start of a node wait for it. ``host_name`` returns the name of this host.
    ``connect`` opens connections to other nodes.

    The event loop itself, which has timers and the default threads (``run_in_executor``), is passed to
    ``Node.begin``.
    """

    clock: Clock
    files: Files
    new_uuid: Callable[[], UUID] = uuid4
    new_threads: Callable[[int, str], Executor] = new_threads
    share_clock: Callable[[], float] = perf_counter
    begin_thread: Callable[[str, Callable[[], None]], None] = begin_thread
    look_up: Callable[[str], str] = look_up
    host_name: Callable[[], str] = host_name
    connect: Connect = connect

    @classmethod
    def of_process(cls, clock: Clock | None = None) -> NodeWorld:
        """Returns those of this process."""
        return cls(clock or Clock(), OsFiles())
