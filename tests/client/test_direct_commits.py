"""Commits on the thread of their caller: the owner of the connection's I/O, and all that may go wrong.

The first commit goes over the event loop, which then lends the I/O of the coordinator's connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.noted_exchanges import exchanges_of
from support.scripted import FIND_COORDINATOR, OFFSET_COMMIT, Reply, ScriptedBroker, scripted

from odradek import Consumer, TopicPartition
from odradek.client import loop
from odradek.client.errors import ConnectionLost
from odradek.client.group import coordination
from odradek.client.group.errors import CommitFailed, IllegalState, Wakeup
from odradek.core.errors import ErrorCode
from odradek.core.ids import OffsetAndMetadata
from odradek.net import direct_exchange
from odradek.net.connection import BrokerConnection
from odradek.net.direct_exchange import DirectExchange, IoOwner
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, LIST_GROUPS
from odradek.wire.schemas import Kind

T0 = TopicPartition("t", 0)
PATIENCE_S = 60
NO_FILTER: dict[str, object] = {"states_filter": [], "types_filter": []}
SETTINGS: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False, "retry_backoff_ms": 1}


def commit_answer(message: Any, version: int) -> dict[str, Any]:
    def rows(topic: Any) -> list[dict[str, int]]:
        return [{"partition_index": one.partition_index, "error_code": 0} for one in topic.partitions]

    return {"throttle_time": 0, "topics": [{"name": one.name, "partitions": rows(one)} for one in message.topics]}


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted(1) as cluster:
        cluster.brokers[1].answers[OFFSET_COMMIT] = commit_answer
        yield cluster.brokers[1]


@pytest.fixture
def consumer(broker: ScriptedBroker) -> Iterator[Consumer]:
    with Consumer(broker.address, **SETTINGS) as one:
        one.commit({T0: 0})
        assert direct_of(one).owner is IoOwner.LENT
        yield one


def direct_of(one: Consumer) -> DirectExchange:
    lent = engine_of(one).group.direct.lent
    assert lent is not None
    assert lent.direct is not None
    return lent.direct


def committed_by(broker: ScriptedBroker) -> list[int]:
    found = [message for key, _, message in broker.asked if key == OFFSET_COMMIT]
    return [message.topics[0].partitions[0].committed_offset for message in found]


def answer_once(broker: ScriptedBroker, answer: Callable[[Any, int], Reply]) -> None:
    """Replaces the reply to the next commit."""

    def replaced(message: Any, version: int) -> Reply:
        broker.answers[OFFSET_COMMIT] = commit_answer
        return answer(message, version)

    broker.answers[OFFSET_COMMIT] = replaced


def refused(code: ErrorCode) -> Callable[[Any, int], Reply]:
    def answer(message: Any, version: int) -> Reply:
        made = commit_answer(message, version)
        made["topics"][0]["partitions"][0]["error_code"] = code.value
        return made

    return answer


def test_commits_after_the_first_one_need_no_loop(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = exchanges_of(monkeypatch)
    running = loop.client_loop()
    with monkeypatch.context() as closed:
        closed.setattr(loop, "client_loop", lambda: pytest.fail("the loop was used"))
        for offset in range(1, 20):
            consumer.commit({T0: OffsetAndMetadata(offset, offset % 3)})
        consumer.commit({T0: OffsetAndMetadata(20, -1, "other metadata"), TopicPartition("t", 1): 5})
    assert loop.client_loop() is running
    assert results == [True] * 20
    assert committed_by(broker) == list(range(21))
    epochs = [m.topics[0].partitions[0].committed_leader_epoch for k, _, m in broker.asked if k == OFFSET_COMMIT]
    assert epochs == [-1, *[offset % 3 for offset in range(1, 20)], -1]
    assert broker.asked[-1][2].topics[0].partitions[0].committed_metadata == "other metadata"


def test_topics_in_another_order_in_the_reply_are_no_error(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = exchanges_of(monkeypatch)
    other = TopicPartition("other", 3)

    def turned(message: Any, version: int) -> Reply:
        made = commit_answer(message, version)
        return made | {"topics": made["topics"][::-1]}

    broker.answers[OFFSET_COMMIT] = turned
    consumer.commit({T0: 1, other: 2, TopicPartition("t", 1): 3})
    assert results == [True]
    sent = broker.asked[-1][2]
    assert [(topic.name, [p.committed_offset for p in topic.partitions]) for topic in sent.topics] == [
        ("t", [1, 3]), ("other", [2])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "error"), [(ErrorCode.unknown_member_id, CommitFailed), (ErrorCode.coordinator_not_available, None)]
)
def test_an_error_in_the_reply_is_handled_as_ever(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, code: ErrorCode,
    error: type[Exception] | None,
) -> None:  # fmt: skip
    results = exchanges_of(monkeypatch)
    answer_once(broker, refused(code))
    if error is None:
        consumer.commit({T0: 5})
        assert committed_by(broker) == [0, 5, 5]
        assert broker.count(FIND_COORDINATOR) == 2
    else:
        with pytest.raises(error):
            consumer.commit({T0: 5})
        assert committed_by(broker) == [0, 5]
    assert results == [False]
    consumer.commit({T0: 6})
    assert committed_by(broker)[-1] == 6


def late(message: Any, version: int) -> Reply:
    time.sleep(direct_exchange.PATIENCE_S * 4)
    return commit_answer(message, version)


def lost(message: Any, version: int) -> Reply:
    return None


class InPieces:
    """Replies in pieces, the last one after the caller's patience has ended."""

    def __init__(self, broker: ScriptedBroker, cuts: list[int], pause_s: float) -> None:
        self._broker, self._cuts, self._pause_s = broker, cuts, pause_s

    def __call__(self, message: Any, version: int) -> Reply:
        broker = self._broker
        body = commit_answer(message, version)

        head = frames.reply_head(OFFSET_COMMIT, version, broker.asking.id)
        whole = frames.frame(head, schemas.encode(OFFSET_COMMIT, version, Kind.RESPONSE, body))
        connection = broker._open[-1]
        for begin, end in zip([0, *self._cuts], self._cuts, strict=False):
            connection.sendall(whole[begin:end])
            time.sleep(self._pause_s)
        return whole[self._cuts[-1] :]


@pytest.mark.parametrize("answer", [late, lost])
def test_the_loop_continues_after_a_late_reply_or_a_lost_connection(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Any, int], Reply]
) -> None:
    results = exchanges_of(monkeypatch)
    answer_once(broker, answer)
    consumer.commit({T0: 5})
    assert results == [False]
    assert committed_by(broker) == ([0, 5] if answer is late else [0, 5, 5])
    for offset in (6, 7):
        consumer.commit({T0: offset})
    assert results == [False, True, True]
    assert committed_by(broker)[-2:] == [6, 7]


@pytest.mark.parametrize("cut", [1, 4, 9])
@pytest.mark.parametrize(("pause_s", "expected"), [(0.001, True), (direct_exchange.PATIENCE_S * 3, False)])
def test_a_reply_in_pieces_is_read_whole(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, cut: int, pause_s: float,
    expected: bool,
) -> None:  # fmt: skip
    results = exchanges_of(monkeypatch)
    if expected:
        monkeypatch.setattr(direct_of(consumer), "_socket", _patient(direct_of(consumer)))
    answer_once(broker, InPieces(broker, [cut], pause_s))
    consumer.commit({T0: 5})
    consumer.commit({T0: 6})
    assert results[0] is expected
    assert committed_by(broker) == [0, 5, 6]


def _patient(direct: DirectExchange) -> Any:
    """Returns the socket with much patience: the machine may be busy."""
    used = direct._socket
    assert used is not None
    used.settimeout(PATIENCE_S)
    return used


def test_a_wakeup_ends_a_commit_that_a_caller_has_sent(broker: ScriptedBroker, consumer: Consumer) -> None:
    opened = threading.Event()

    def held(message: Any, version: int) -> Reply:
        consumer.wakeup()
        assert opened.wait(PATIENCE_S)
        return commit_answer(message, version)

    answer_once(broker, held)
    with pytest.raises(Wakeup):
        consumer.commit({T0: 5})
    opened.set()
    consumer.commit({T0: 6})
    assert committed_by(broker) == [0, 5, 6]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of POSIX")
@pytest.mark.parametrize("when", ["write", "recv_into", "wait"])
def test_an_interrupted_commit_leaves_the_consumer_usable(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Ctrl-C before or after the system calls of an exchange, or during its wait for the reply."""
    direct, main = direct_of(consumer), threading.get_ident()
    patient = _patient(direct)

    class Interrupted:
        """The socket, whose call is interrupted after it has ended: so its result is unknown."""

        def __getattr__(self, name: str) -> Any:
            method = getattr(patient, name)

            def call(*args: Any) -> Any:
                result = method(*args)
                if name == when:
                    direct._socket = patient
                    raise KeyboardInterrupt
                return result

            return call

    def interrupting(message: Any, version: int) -> Reply:
        eventually(lambda: direct._step is direct_exchange._Step.RECEIVE, within_s=PATIENCE_S)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.05)  # the reply must not come before the signal
        return commit_answer(message, version)

    def interrupted_write(descriptor: int, data: bytes) -> int:
        written = os.write(descriptor, data)
        monkeypatch.undo()
        raise KeyboardInterrupt(written)

    if when == "wait":
        answer_once(broker, interrupting)
    elif when == "write":
        monkeypatch.setattr(direct_exchange, "os", SimpleNamespace(write=interrupted_write))
    else:
        direct._socket = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        consumer.commit({T0: 5})
    if when == "write":  # a broker may read what stands on the former connection after the next commit on a new one
        eventually(lambda: 5 in committed_by(broker), within_s=PATIENCE_S)
    for offset in range(6, 9):
        consumer.commit({T0: offset})
    assert committed_by(broker)[-3:] == [6, 7, 8]
    assert set(committed_by(broker)[1:-3]) == {5}
    if when == "wait":  # the loop has read the reply on the same connection
        assert committed_by(broker) == [0, 5, 6, 7, 8]
        assert broker.count(API_VERSIONS) == 2


def test_unused_io_goes_back_to_the_loop(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_exchange, "_UNUSED_S", 0.02)
    consumer.commit({T0: 1})
    direct = direct_of(consumer)
    eventually(lambda: direct.owner is IoOwner.LOOP, within_s=PATIENCE_S)
    broker.stop()  # the loop notices at once that the connection is lost
    eventually(lambda: engine_of(consumer).group.direct.lent.closed, within_s=PATIENCE_S)


def test_a_commit_of_many_partitions_is_made_on_the_loop(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = exchanges_of(monkeypatch)
    consumer.commit({TopicPartition("t", number): number for number in range(101)})
    assert results == []
    assert len(broker.asked[-1][2].topics[0].partitions) == 101


def test_commit_async_comes_after_direct_commits_and_before_later_ones(
    broker: ScriptedBroker, consumer: Consumer
) -> None:
    seen: list[Exception | None] = []
    for offset in range(1, 30, 3):
        consumer.commit({T0: offset})
        consumer.commit_async({T0: offset + 1}, lambda offsets, error: seen.append(error))
        consumer.commit({T0: offset + 2})
    assert committed_by(broker) == list(range(31))
    assert seen == [None] * 10


def test_many_asynchronous_commits_are_sent_in_order_and_wait_for_the_loop(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop stands still meanwhile, so the commits that may wait for it are posted, and the next one waits."""
    monkeypatch.setattr(coordination, "_MOST_POSTED", 20)
    released, seen = threading.Event(), []
    loop.client_loop().call_soon_threadsafe(released.wait, PATIENCE_S)
    for offset in range(1, 21):
        consumer.commit_async({T0: offset}, lambda offsets, error: seen.append(error))
    assert not engine_of(consumer).group.may_commit_directly
    timer = threading.Timer(0.05, released.set)
    timer.start()
    consumer.commit_async({T0: 21}, lambda offsets, error: seen.append(error))
    assert released.is_set()
    consumer.commit({T0: 22})
    timer.join()
    assert committed_by(broker) == list(range(23))
    assert seen == [None] * 21


def test_a_callback_may_commit_again(broker: ScriptedBroker, consumer: Consumer) -> None:
    def again(offsets: Any, error: Exception | None) -> None:
        assert error is None
        consumer.commit({T0: 2})
        consumer.commit({T0: 3})

    consumer.commit_async({T0: 1}, again)
    consumer.commit({T0: 4})
    consumer.commit({T0: 5})
    assert committed_by(broker) == [0, 1, 2, 3, 4, 5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork")
def test_a_forked_child_leaves_the_io_to_its_parent(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = exchanges_of(monkeypatch)
    consumer.commit({T0: 1})
    child = os.fork()
    if not child:
        code = 1
        try:
            consumer.commit({T0: 100})
        except IllegalState:
            consumer.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for offset in (2, 3):
        consumer.commit({T0: offset})
    assert committed_by(broker) == [0, 1, 2, 3]
    assert results == [True] * 3


# --- the owner of the I/O -----------------------------------------------------------------------------------------


class Watch:
    """Notes who does the I/O of connections, and fails if two do it at once.

    Each of them stays inside for a moment: otherwise a second thread would be seen by luck only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside: dict[int, int] = {}
        self.overlaps = 0
        self.exchanges = 0
        self._lock = threading.Lock()
        receive, updated = DirectExchange._receive, BrokerConnection.buffer_updated
        watch = self

        def watched_receive(direct: DirectExchange, *args: Any) -> bool:
            with watch.by(direct):
                return receive(direct, *args)

        def watched_update(connection: BrokerConnection, size: int) -> None:
            if connection.direct is None or connection.direct.owner is IoOwner.RETURNING:
                updated(connection, size)
                return
            with watch.by(connection.direct, is_loop=True):
                updated(connection, size)

        monkeypatch.setattr(DirectExchange, "_receive", watched_receive)
        monkeypatch.setattr(BrokerConnection, "buffer_updated", watched_update)

    def by(self, direct: DirectExchange, *, is_loop: bool = False) -> Any:
        watch = self

        class Inside:
            def __enter__(self) -> None:
                with watch._lock:
                    watch.inside[id(direct)] = watch.inside.get(id(direct), 0) + 1
                    watch.overlaps += watch.inside[id(direct)] > 1
                    watch.exchanges += not is_loop
                time.sleep(0.0005)

            def __exit__(self, *args: object) -> None:
                with watch._lock:
                    watch.inside[id(direct)] -= 1

        return Inside()


class _Exchange:
    """One request of a caller, and the correlation ids of the replies that it gets."""

    def __init__(self, connection: BrokerConnection, is_accepted: bool) -> None:
        self._connection, self._is_accepted = connection, is_accepted
        self._answered = threading.Event()
        self.asked = 0
        self.replies: list[int] = []

    def run(self, patience_s: float) -> bool:
        """Returns whether the request was sent. Raises TimeoutError if it has no reply."""
        assert self._connection.direct is not None
        result = self._connection.direct.exchange(LIST_GROUPS, self._pack, self._accept, self._on_unanswered)
        if result is False and not self._answered.wait(patience_s):
            raise TimeoutError("the loop has read no reply")
        return result is not None

    def _pack(self, correlation_id: int) -> bytes:
        self.asked = correlation_id
        return frames.encode_request(LIST_GROUPS, self._connection.version(LIST_GROUPS), correlation_id, "c", NO_FILTER)

    def _note(self, reply: memoryview) -> None:
        self.replies.append(int.from_bytes(reply[:4], "big"))

    def _accept(self, reply: memoryview) -> bool:
        if self._is_accepted:
            self._note(reply)
        return self._is_accepted

    def _on_unanswered(self, future: asyncio.Future[memoryview]) -> None:
        future.add_done_callback(self._on_reply)

    def _on_reply(self, future: asyncio.Future[memoryview]) -> None:
        if future.exception() is None:
            self._note(future.result())
        self._answered.set()


def _work_at_once(consumer: Consumer, seconds: float, patience_s: float = PATIENCE_S) -> tuple[int, list[str]]:
    """Two threads make exchanges on one connection while the loop sends requests of its own on it.

    Returns the number of requests of the laziest of the three, and what was wrong."""
    lent = engine_of(consumer).group.direct.lent
    wrong: list[str] = []
    done = [0, 0, 0]
    end = time.monotonic() + seconds

    def call(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            exchange = _Exchange(lent, rng.random() < 0.9)
            try:
                if not exchange.run(patience_s):
                    time.sleep(0.0002)
                    continue
            except Exception as error:
                wrong.append(repr(error))
                return
            done[number] += 1
            if exchange.replies != [exchange.asked]:
                wrong.append(f"{exchange.asked} was answered by {exchange.replies}")

    async def loop_requests() -> None:
        while time.monotonic() < end:
            reply = await lent.call(LIST_GROUPS, NO_FILTER)
            if reply.groups != ():
                wrong.append(f"{reply}")
            done[2] += 1
            lent.lend()
            await asyncio.sleep(0.003)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        loop.run(loop_requests())
    except ConnectionLost as error:
        wrong.append(repr(error))
    for thread in threads:
        thread.join()
    return min(done), wrong


def test_two_threads_never_own_the_io_at_once(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.answers[LIST_GROUPS] = lambda message, version: {"throttle_time": 0, "error_code": 0, "groups": []}
    watch = Watch(monkeypatch)
    done, wrong = _work_at_once(consumer, 2.0)
    assert wrong == []
    assert watch.overlaps == 0
    assert done > 5
    assert watch.exchanges > 20


class TakesWithoutLooking(DirectExchange):
    """A planted bug: a caller takes the I/O that has another owner."""

    def _take(self, claim: object) -> Any:
        self._owner = IoOwner.LENT
        return super()._take(claim)


@pytest.mark.parametrize("kind", [DirectExchange, TakesWithoutLooking])
def test_a_caller_gets_no_io_while_another_one_waits(
    broker: ScriptedBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, kind: type[DirectExchange]
) -> None:
    """With the planted bug, the second caller gets it, and the watch notices that."""
    opened, ended = threading.Event(), threading.Semaphore(0)
    results: list[object] = []

    def held(message: Any, version: int) -> Reply:
        assert opened.wait(PATIENCE_S)
        return {"throttle_time": 0, "error_code": 0, "groups": []}

    broker.answers[LIST_GROUPS] = held
    direct = direct_of(consumer)
    _patient(direct)
    watch = Watch(monkeypatch)
    monkeypatch.setattr(direct, "__class__", kind)
    lent = engine_of(consumer).group.direct.lent

    def call() -> None:
        try:
            results.append(_Exchange(lent, True).run(0.1))
        except Exception as error:  # the planted bug makes a mess
            results.append(error)
        ended.release()

    threading.Thread(target=call, daemon=True).start()
    eventually(lambda: watch.exchanges == 1, within_s=PATIENCE_S, every_s=0.001)
    threading.Thread(target=call, daemon=True).start()
    if kind is DirectExchange:
        assert ended.acquire(timeout=PATIENCE_S)
        assert results == [False]
        assert watch.overlaps == 0
        opened.set()
        assert ended.acquire(timeout=PATIENCE_S)
        assert results == [False, True]
    else:
        eventually(lambda: watch.overlaps > 0, within_s=PATIENCE_S)
        opened.set()
        consumer._closed = True  # its connection has mixed replies
