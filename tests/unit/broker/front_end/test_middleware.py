"""Middleware between router and handlers: order and counted time. Without middleware there is no cost."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from support.connections import Server, connect, heartbeat, metadata, turn
from test_broker_router import loop  # noqa: F401

from odradek.broker.front_end.request_quota import RequestQuota
from odradek.broker.front_end.router import Api
from odradek.broker.handlers.middleware import Middleware, chain, time_counter
from odradek.broker.limits.quotas import CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, Quotas
from odradek.broker.limits.request_elements import RequestElements
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire import frames

REPLY = {"error_code": 0}


class Wrapper(Middleware):
    """Records a note before and after the handler."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def serve(self, api: Any, context: Any, message: Any, following: Any) -> Any:
        self.notes.append(f"{self.name} begins")
        try:
            return following(api, context, message)
        finally:
            self.notes.append(f"{self.name} ends")


class Counter(Middleware):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def count_time(self, context: Any, seconds: float) -> None:
        self.seconds.append(seconds)


def ask(server: Server) -> Any:
    return server.router.serve(server.router.apis[12], SimpleNamespace(api_key=12, version=0), None)


def serving(handle: Any) -> Server:
    return Server(k12=handle)


def test_the_middleware_added_last_is_called_first() -> None:
    notes: list[str] = []
    server = serving(lambda *_: notes.append("handler") or REPLY)
    one, other = Wrapper("one", notes), Wrapper("other", notes)
    server.router.install(one)
    server.router.install(other)
    server.router.install(one)
    assert ask(server) == REPLY
    assert notes == ["other begins", "one begins", "handler", "one ends", "other ends"]
    server.router.remove(other)
    server.router.remove(other)
    notes.clear()
    ask(server)
    assert notes == ["one begins", "handler", "one ends"]
    server.router.remove(one)
    assert not server.router.has_middleware


def test_a_middleware_may_refuse_a_request() -> None:
    class Refusing(Middleware):
        def serve(self, *_: Any, following: Any) -> Any:
            raise KafkaError(ErrorCode.cluster_authorization_failed)

    server = serving(lambda *_: pytest.fail("the handler was called"))
    server.router.install(Refusing())
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        ask(server)


def test_without_middleware_the_router_calls_the_handler_directly() -> None:
    """After the last middleware is removed, no clock is read and nothing else is called."""

    def handler(*_: Any) -> Any:
        return REPLY

    server = serving(handler)
    counter, wrapper = Counter(), Wrapper("one", [])
    for middleware in (counter, wrapper):
        server.router.install(middleware)
    assert ask(server) == REPLY
    assert len(counter.seconds) == 1
    for middleware in (counter, wrapper):
        server.router.remove(middleware)
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)
        elif event == "c_call":
            called.append(argument.__name__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        answer = ask(server)
    finally:
        sys.setprofile(before)
    assert answer == REPLY
    assert not {"serve", "count_time", "perf_counter"} & set(called)
    assert "handler" in called


def test_a_method_that_a_middleware_does_not_override_is_not_called() -> None:
    def handler(*_: Any) -> Any:
        return REPLY

    assert chain([Counter(), RequestQuota(SimpleNamespace())], handler) is handler
    assert time_counter([Wrapper("one", [])]) is None
    one, other = Counter(), Counter()
    count = time_counter([one, Wrapper("between", []), other])
    assert count is not None
    count(SimpleNamespace(), 0.5)
    assert (one.seconds, other.seconds) == ([0.5], [0.5])


def test_time_is_counted_for_each_share_of_the_loop_and_for_failures(loop) -> None:  # noqa: F811
    def steps(*_: Any) -> Any:
        for _ in range(3):
            yield
        return REPLY

    counter, server = Counter(), Server(k12=steps, k3=lambda *_: 1 / 0)
    connection, transport = connect(loop, server)
    server.router.install(counter)
    connection.data_received(heartbeat(1))
    assert len(counter.seconds) == 2, "the call that created the generator, and the share of the loop that finished it"
    connection.data_received(metadata(2))
    turn(loop)
    assert len(counter.seconds) == 3
    assert len(transport.replies()) == 1


def test_a_long_request_passes_through_the_middleware(loop) -> None:  # noqa: F811
    """The long request is read completely before it is served. The connection serves no other request in between."""
    notes: list[str] = []
    ticks = iter(range(1_000_000))

    def steps(*_: Any) -> Any:
        notes.append("begun")
        for _ in range(20):
            yield
        notes.append("done")
        return b"reply"

    server = Server(k3=steps)
    server.config.socket_request_max_bytes = 1 << 20
    server.request_memory = SimpleNamespace(begin=lambda size: None, end=lambda size: None)
    server.request_elements = RequestElements()
    server.leftovers = SimpleNamespace(add=lambda *_, then=None: then and then())
    connection, transport = connect(loop, server)
    server.use(loop, clock=lambda: next(ticks) * 0.0005)
    server.router.install(Wrapper("one", notes))
    names = [{"name": f"topic-{number}"} for number in range(5000)]
    connection.data_received(frames.encode_request(3, 1, 1, "c", {"topics": names}) + metadata(2))
    assert not notes, "the request is still being read"
    for _ in range(20_000):
        turn(loop)
        if len(transport.replies()) == 2:
            break
    assert [note for note in notes if note != "one ends"] == ["one begins", "begun", "done"] * 2


def test_the_request_quota_throttles_its_client() -> None:
    now = SimpleNamespace(ms=0)
    config: Any = SimpleNamespace(quota_window_num=11, quota_window_size_seconds=1)
    quotas = Quotas(config, lambda: now.ms)
    quotas.replace({(("client-id", "c"),): {REQUEST_PERCENTAGE: 1.0}})
    rests: list[int] = []
    context: Any = SimpleNamespace(user="u", client_id="c", throttle=rests.append, is_exempt=True)
    RequestQuota(quotas).count_time(context, 10.0)
    assert not rests, "the request of another broker"
    context.is_exempt = False
    RequestQuota(quotas).count_time(context, 0.05)
    RequestQuota(quotas).count_time(context, 10.0)
    assert rests[0] == 0
    assert rests[1] > 0


def test_quotas_report_changed_limits() -> None:
    quotas, changes = Quotas(SimpleNamespace(), lambda: 0), []
    quotas.on_replaced = lambda: changes.append(quotas.has_quota(REQUEST_PERCENTAGE))
    quotas.replace({(("client-id", "c"),): {REQUEST_PERCENTAGE: 1.0}})
    quotas.replace({(("client-id", "c"),): {CONSUMER_BYTE_RATE: 1.0}})
    assert changes == [True, False]


def test_an_api_declares_its_special_properties() -> None:
    from odradek.broker.handlers import handler_files

    said = {api.key: api for api in handler_files("client")}
    assert [key for key, api in said.items() if api.replies_to_any_version] == [18]
    assert [key for key, api in said.items() if api.keeps_requests] == [9]
    assert Api.of(said[18]).replies_to_any_version
    assert Api.of(said[9]).keeps_requests
    assert {key for key, api in said.items() if api.is_frequent} >= {0, 1, 3, 8, 9, 18}
    assert (said[0].versions, said[0].advertised_oldest) == ((3, 13), 0)
