"""Memory for unfinished requests: connections that read on, wait or are closed."""

from __future__ import annotations

from support.loops import Loop

from odradek.broker.limits.request_memory import SMALL_REQUEST_BYTES, STALL_S, RequestMemory

MIB = 1 << 20


class Client:
    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.client_host = "/127.0.0.1"
        self.reading = True
        self.aborted = False

    def holds(self, size: int) -> bool:
        self.reading = self.memory.update(self, size)
        return self.reading

    def receive_more(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


def make(limit: int, count: int) -> tuple[Loop, RequestMemory, list[Client]]:
    loop = Loop()
    memory = RequestMemory(limit, loop.call_later, lambda: loop.now)
    return loop, memory, [Client(memory) for _ in range(count)]


def test_small_requests_are_not_counted() -> None:
    _, memory, clients = make(MIB, 100)
    assert all(client.holds(SMALL_REQUEST_BYTES) for client in clients)
    assert memory.used == 0


def test_above_the_limit_one_connection_reads_and_the_others_wait() -> None:
    _, memory, (a, b, c) = make(10 * MIB, 3)
    assert a.holds(5 * MIB)
    assert b.holds(5 * MIB)
    assert c.holds(MIB), "the first connection above the limit reads on"
    assert not a.holds(6 * MIB)
    assert not b.holds(6 * MIB)
    assert c.holds(20 * MIB)
    memory.release(c)
    assert a.reading, "this connection began to wait before the other one"
    assert not b.reading
    assert memory.used == 12 * MIB
    memory.release(a)
    assert b.reading
    assert memory.used == 6 * MIB


def test_a_complete_request_counts_no_more_as_unfinished() -> None:
    _, memory, (a,) = make(10 * MIB, 1)
    a.holds(5 * MIB)
    assert a.holds(0)
    assert memory.used == 0


def test_a_client_that_sends_no_more_is_closed_while_others_wait() -> None:
    loop, memory, (idle, slow, waiting) = make(10 * MIB, 3)
    idle.holds(9 * MIB)
    assert slow.holds(2 * MIB)
    assert not waiting.holds(MIB)
    loop.run(STALL_S / 2)
    slow.holds(3 * MIB)
    loop.run(STALL_S / 2 + 0.1)
    assert idle.aborted
    assert not slow.aborted
    assert not waiting.aborted
    assert waiting.reading
    assert memory.used == 4 * MIB


def test_a_client_that_sends_no_more_stays_connected_while_memory_is_free() -> None:
    loop, _, (idle,) = make(10 * MIB, 1)
    idle.holds(9 * MIB)
    loop.run(100 * STALL_S)
    assert not idle.aborted


def test_without_a_limit_all_connections_read() -> None:
    _, memory, clients = make(-1, 3)
    assert all(client.holds(500 * MIB) for client in clients)
    memory.release(clients[0])
    assert memory.used == 1000 * MIB


def test_complete_requests_count_and_block_even_the_first_connection() -> None:
    _, memory, (a, b) = make(10 * MIB, 2)
    memory.begin(9 * MIB)
    assert a.holds(2 * MIB), "the first connection above the limit reads on"
    assert not b.holds(MIB)
    memory.begin(2 * MIB)
    assert not a.holds(3 * MIB), "the complete requests alone exceed the limit"
    memory.end(9 * MIB)
    assert a.reading
    assert b.reading
    assert memory.complete == 2 * MIB


def test_one_connection_reads_again_when_the_complete_requests_are_within_the_limit() -> None:
    _, memory, (a, b) = make(10 * MIB, 2)
    memory.begin(8 * MIB)
    memory.begin(8 * MIB)
    assert not a.holds(3 * MIB)
    assert not b.holds(3 * MIB)
    memory.end(8 * MIB)
    assert (a.reading, b.reading) == (True, False)


def test_a_connection_that_waits_for_complete_requests_is_not_closed() -> None:
    loop, memory, (a,) = make(10 * MIB, 1)
    memory.begin(11 * MIB)
    assert not a.holds(MIB)
    loop.run(3 * STALL_S)
    assert not a.aborted
    memory.end(11 * MIB)
    assert a.reading
    loop.run(100 * STALL_S)
    assert not a.aborted


def test_a_first_connection_that_closes_while_all_are_blocked_leaves_its_place_to_the_next() -> None:
    _, memory, (a, b) = make(10 * MIB, 2)
    memory.begin(11 * MIB)
    assert not a.holds(5 * MIB)
    assert not b.holds(11 * MIB)
    memory.release(a)
    assert not b.reading
    memory.end(11 * MIB)
    assert b.reading
