"""The delivery of announcements to a receiver over HTTP."""

from __future__ import annotations

import hashlib
import hmac
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import eventually
from support.hook_receiver import HookReceiver
from support.owned_stores import OwnedIncidentStore

from odradek.monitor.incidents.announcements import HookRule, IncidentEvent
from odradek.monitor.incidents.bodies import Message, json_body
from odradek.monitor.incidents.delivery import DeliveryFate
from odradek.monitor.incidents.incident import Incident, Severity
from odradek.monitor.incidents.sender import HookSender, send
from odradek.monitor.incidents.signature import Signer, secret_of
from odradek.monitor.incidents.store import Announcement, IncidentStore, PendingDelivery
from odradek.monitor.incidents.webhook_file import Webhook

OPEN = Incident("1" * 32, "status", "g", Severity.WARN, "text", 1, 10, 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IncidentStore]:
    made = OwnedIncidentStore(tmp_path)
    yield made
    made.close()


def hook_to(url: str, *, signer: Signer | None = None, attempts: int = 12) -> Webhook:
    headers = {"Authorization": "Bearer x"}
    return Webhook(HookRule("a"), url, json_body, "application/json", headers, signer, 2.0, attempts, None)


def message_of(delivery: PendingDelivery) -> Message:
    return Message("main", "", delivery.event, delivery.incident, delivery.number, delivery.made_ms)


def announce(store: IncidentStore, *events: IncidentEvent) -> None:
    store.record(0, [OPEN], {}, [Announcement("a", event, OPEN) for event in events])


def test_an_announcement_is_repeated_until_it_is_accepted(store: IncidentStore, receiver: HookReceiver) -> None:
    announce(store, IncidentEvent.OPENED, IncidentEvent.REPEATED)
    receiver.codes = [503, 500]
    now = [1_000]
    sender = HookSender(hook_to(receiver.url), store, message_of, lambda: now[0])
    assert sender.step() == 0.0
    assert sender.step() == 1.0, "nothing is due for a second"
    now[0] += 1_000
    sender.step()
    now[0] += 2_000
    sender.step()
    assert [one.json["event"] for one in receiver.received] == ["opened"] * 3
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
    sender.step()
    assert receiver.received[-1].json["event"] == "repeated"
    assert receiver.received[-1].headers["webhook-id"] != receiver.received[0].headers["webhook-id"]
    assert sender.counts == {DeliveryFate.REPEATED: 2, DeliveryFate.DELIVERED: 2}
    assert store.pending() == {}


def test_a_clock_that_goes_back_delays_no_delivery(store: IncidentStore, receiver: HookReceiver) -> None:
    announce(store, IncidentEvent.OPENED)
    receiver.codes = [503]
    now = [10_000_000]
    sender = HookSender(hook_to(receiver.url), store, message_of, lambda: now[0])
    sender.step()
    now[0] -= 3_600_000
    sender.step()
    assert len(receiver.received) == 2


def test_a_refused_announcement_is_given_up_with_a_line(
    store: IncidentStore, receiver: HookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    announce(store, IncidentEvent.OPENED)
    receiver.codes = [404]
    sender = HookSender(hook_to(receiver.url), store, message_of)
    sender.step()
    assert store.pending() == {}
    assert "webhook a: incident " + "1" * 32 + " (opened) is given up: HTTP 404" in caplog.text


def test_no_redirect_is_followed(receiver: HookReceiver) -> None:
    receiver.codes, receiver.more_headers = [302], {"Location": receiver.url}
    answer = send(hook_to(receiver.url), Message("m", "", IncidentEvent.OPENED, OPEN, 1, 0), 5)
    assert (answer.code, len(receiver.received)) == (302, 1)
    assert receiver.received[0].headers["authorization"] == "Bearer x"


def test_a_receiver_proves_the_signature(receiver: HookReceiver) -> None:
    secret = "whsec_" + b64encode(b"k" * 24).decode()
    send(
        hook_to(receiver.url, signer=Signer(secret_of(secret))), Message("m", "", IncidentEvent.OPENED, OPEN, 1, 0), 77
    )
    (got,) = receiver.received
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    proof = b64decode(got.headers["webhook-signature"].removeprefix("v1,"))
    assert hmac.compare_digest(proof, hmac.digest(b"k" * 24, signed, hashlib.sha256))
    assert got.headers["webhook-timestamp"] == "77"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://no-such-host.invalid/", "https://127.0.0.1:1/"])
def test_an_address_without_a_receiver_is_a_reason(url: str) -> None:
    answer = send(hook_to(url), Message("m", "", IncidentEvent.OPENED, OPEN, 1, 0), 5)
    assert answer.code == 0
    assert answer.reason


def test_a_thread_delivers_what_comes_and_ends_at_once(store: IncidentStore, receiver: HookReceiver) -> None:
    sender, stop = HookSender(hook_to(receiver.url), store, message_of), threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    announce(store, IncidentEvent.OPENED)
    sender.wake()
    eventually(lambda: len(receiver.received) == 1, what="the announcement")
    stop.set()
    sender.wake()
    thread.join(timeout=10)
    assert not thread.is_alive()
