"""Bootstrap addresses: dead and silent ones, servers that are not Kafka, brokers that start late."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop
from support.scripted import API_VERSIONS, ScriptedCluster, scripted

from odradek.client import Admin, ClientConfig
from odradek.client.cluster import Cluster
from odradek.client.errors import BrokerUnreachable
from odradek.net.connection import BrokerConnection
from odradek.net.transports import Address


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted(2) as made:
        yield made


def dead_address() -> str:
    """An address on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_connection_that_fails_after_its_caller_was_cancelled_prints_nothing(cluster: ScriptedCluster) -> None:
    """Before, asyncio printed the failure with a traceback when it removed the task."""
    printed: list[object] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: printed.append(context))
        client, opened = Cluster(ClientConfig(cluster.bootstrap)), asyncio.Event()
        await client.refresh([])

        async def fail_later(address: Address) -> BrokerConnection:
            await opened.wait()
            raise BrokerUnreachable(f"cannot reach {address}")

        client.open_at = fail_later
        caller = asyncio.ensure_future(client.connection(1))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        opening = next(iter(client._opening.values()))
        opened.set()
        await asyncio.wait([opening])
        del opening
        gc.collect()
        await client.close()

    asyncio.run(ask())
    assert printed == []


def test_two_callers_share_a_new_connection(cluster: ScriptedCluster) -> None:
    """The second caller asks after the connection is open and before the first caller resumes."""

    async def ask() -> int:
        client, callers = Cluster(ClientConfig(cluster.bootstrap)), []
        await client.refresh([])
        opening = client.open_at

        async def open_and_ask(address: Address) -> BrokerConnection:
            made = await opening(address)
            asyncio.get_running_loop().call_soon(
                lambda: callers.append(asyncio.ensure_future(client.connection(1))) if len(callers) == 1 else None
            )
            return made

        client.open_at = open_and_ask
        callers.append(asyncio.ensure_future(client.connection(1)))
        await callers[0]
        await asyncio.sleep(0)
        found = {await one for one in callers}
        assert len(callers) == 2
        await client.close()
        return len(found)

    assert asyncio.run(ask()) == 1


@pytest.mark.claim(93)
@pytest.mark.claim(99, part=True)
def test_dead_addresses_are_skipped(cluster: ScriptedCluster) -> None:
    with Admin(f"{dead_address()},{cluster.bootstrap}") as admin:
        assert admin.topics() == ["t"]


@pytest.mark.claim(93)
def test_a_silent_address_delays_the_start_by_less_than_4_seconds(cluster: ScriptedCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with Admin(f"{address},{cluster.bootstrap}") as admin:
            assert admin.topics() == ["t"]
        assert time.monotonic() - started < 4


def test_unreachable_brokers_are_reported_in_one_line_with_each_address_its_reason_and_the_remedy() -> None:
    first, second = dead_address(), dead_address()
    remedy = "is a broker running there? check bootstrap_servers"
    with Admin(first, bootstrap_timeout_ms=0) as admin, pytest.raises(BrokerUnreachable) as caught:
        admin.topics()
    assert str(caught.value) == f"cannot reach {first}: connection refused: {remedy}"
    with Admin(f"{first},{second}", bootstrap_timeout_ms=0) as admin, pytest.raises(BrokerUnreachable) as caught:
        admin.topics()
    reasons = f"{first}: connection refused, {second}: connection refused"
    assert str(caught.value) == f"cannot reach any broker: {reasons}: {remedy}"


def test_too_few_file_descriptors_are_no_fault_of_the_broker(cluster: ScriptedCluster) -> None:
    client = Cluster(ClientConfig(cluster.bootstrap, default_api_timeout_ms=100))

    async def ask() -> None:
        async def refuse(address: Address) -> BrokerConnection:
            raise BrokerUnreachable(f"cannot reach {address}: too many open files")

        client.open_at = refuse
        await client.any_connection()

    with pytest.raises(BrokerUnreachable, match=r"too many open files: raise the limit of this process \(ulimit -n\)$"):
        asyncio.run(ask())


def test_a_wrong_port_is_logged_within_a_second_and_is_an_error_after_five(caplog: pytest.LogCaptureFixture) -> None:
    """Before, such a call blocked for 59 s without a word, and then advised an option of the command line."""
    address = dead_address()
    started = time.monotonic()
    with Admin(address) as admin, pytest.raises(BrokerUnreachable, match=r"check bootstrap_servers$"):
        admin.topics()
    assert 3 < time.monotonic() - started < 15
    (line,) = [record for record in caplog.records if record.name == "odradek.client"]
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith(f"cannot reach {address}: connection refused: is a broker running there? ")
    assert line.getMessage().endswith("; trying for 5 s more")


def test_an_unknown_host_name_is_reported() -> None:
    with (
        Admin("nosuch.invalid:1", bootstrap_timeout_ms=0) as admin,
        pytest.raises(BrokerUnreachable, match="host name not found"),
    ):
        admin.topics()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_port_out_of_range_is_reported(host: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A loop may connect to the port modulo 65536, on which another server may listen."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(host, listener.getsockname()[1] + (1 << 16))
        connect = BrokerConnection.open(address, client_id="c")
        refused = pytest.raises(BrokerUnreachable, match=rf"cannot reach {address}: the port number is out of range$")
        with asyncio.Runner(loop_factory=new_loop) as runner, refused:
            runner.run(connect)


def test_a_silent_address_has_its_own_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        limits = {"bootstrap_timeout_ms": 0, "socket_connection_setup_timeout_ms": 50}
        with (
            Admin(address, **limits) as admin,
            pytest.raises(BrokerUnreachable, match=f"cannot reach {address}: no reply within 50 ms"),
        ):
            admin.topics()


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1", b"\0\0\0\x08\0\0\0\1\0\0\0\0"])
def test_a_server_that_is_not_kafka_is_reported(cluster: ScriptedCluster, greeting: bytes) -> None:
    broker = cluster.brokers[1]
    broker.answers[API_VERSIONS] = lambda message, version: greeting
    with (
        Admin(broker.address, bootstrap_timeout_ms=0, socket_connection_setup_timeout_ms=500) as admin,
        pytest.raises(BrokerUnreachable, match=f"cannot reach {broker.address}: ") as caught,
    ):
        admin.topics()
    assert "\n" not in str(caught.value)


def test_the_client_waits_for_a_broker_that_starts_late() -> None:
    with scripted(1) as cluster:
        broker = cluster.brokers[1]
        refuse = iter([True, True])
        broker.answers[API_VERSIONS] = lambda message, version: (
            None if next(refuse, False) else broker.answer_18(message, version)
        )
        with Admin(cluster.bootstrap, retry_backoff_ms=1, retry_backoff_max_ms=5) as admin:
            assert admin.topics() == ["t"]


def test_a_first_contact_without_an_answer_is_logged_before_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A port may accept connections although no broker is behind it. Once, nothing was said until the error."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = {"socket_connection_setup_timeout_ms": 1_500, "bootstrap_timeout_ms": 0}
        with Admin(address, **settings) as admin, pytest.raises(BrokerUnreachable):
            admin.list_groups()
    assert f"{address}: no answer yet; waiting up to 2 s" in caplog.text
