"""The bodies of announcements, their signature, and what follows an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from odradek.monitor.incidents.announcements import IncidentEvent
from odradek.monitor.incidents.bodies import BODIES, Message
from odradek.monitor.incidents.delivery import (
    LONGEST_PAUSE_MS,
    DeliveryFate,
    HookAnswer,
    attempt_after,
    retry_after_ms,
)
from odradek.monitor.incidents.incident import Incident, Severity
from odradek.monitor.incidents.signature import Signer, secret_of

OPEN = Incident("a" * 32, "status", "a/b <!channel>", Severity.WARN, "orders-0 is STOP & lags", 1, 1_000, 2_000)
CLOSED = replace(OPEN, closed_ms=61_000)
URL = "https://monitor.example.com"


def body(format_name: str, incident: Incident, event: IncidentEvent, repeat_ms: int = 0) -> Any:
    message = Message("main", URL, event, incident, 7, 5_000, repeat_ms)
    return json.loads(BODIES[format_name](message))


def test_our_json_has_each_field_of_the_incident() -> None:
    assert body("json", CLOSED, IncidentEvent.CLOSED) == {
        "event": "closed", "cluster": "main", "id": "a" * 32, "kind": "status", "group": "a/b <!channel>",
        "severity": "WARN", "text": "orders-0 is STOP & lags", "count": 1, "opened_ms": 1_000, "changed_ms": 2_000,
        "closed_ms": 61_000, "opened_at": "1970-01-01T00:00:01.000Z", "closed_at": "1970-01-01T00:01:01.000Z",
        "link": f"{URL}/group?name=a%2Fb%20%3C%21channel%3E", "delivery": 7,
    }  # fmt: skip


def test_slack_sees_no_command_in_a_name() -> None:
    text = body("slack", OPEN, IncidentEvent.OPENED)["text"]
    assert "<!channel>" not in text
    assert "`a/b &lt;!channel&gt;`" in text
    assert "STOP &amp; lags" in text
    assert text.startswith("*WARN*: bad status, group <https://")
    assert "still open" in body("slack", OPEN, IncidentEvent.REPEATED)["text"]
    assert body("slack", CLOSED, IncidentEvent.CLOSED)["text"].startswith("*Closed*")


def test_alerts_of_alertmanager_end_by_themselves_unless_they_are_repeated() -> None:
    (alert,) = body("alertmanager", OPEN, IncidentEvent.REPEATED, 60_000)
    assert alert["labels"] == {
        "alertname": "OdradekStatus", "cluster": "main", "group": "a/b <!channel>", "kind": "status",
        "severity": "warning", "incident": "a" * 32,
    }  # fmt: skip
    assert (alert["startsAt"], alert["endsAt"]) == ("1970-01-01T00:00:01.000Z", "1970-01-01T00:04:05.000Z")
    (ended,) = body("alertmanager", CLOSED, IncidentEvent.CLOSED, 60_000)
    assert (ended["labels"], ended["endsAt"]) == (alert["labels"], "1970-01-01T00:01:01.000Z")
    (lasting,) = body("alertmanager", OPEN, IncidentEvent.OPENED)
    assert "endsAt" not in lasting


def test_the_webhook_body_of_alertmanager() -> None:
    """The fields are those of its documentation, version 4."""
    found = body("alertmanager-webhook", OPEN, IncidentEvent.OPENED)
    assert found.keys() == {
        "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels", "commonLabels",
        "commonAnnotations", "externalURL", "alerts",
    }  # fmt: skip
    (alert,) = found["alerts"]
    assert alert.keys() == {
        "status", "labels", "annotations", "startsAt", "endsAt", "generatorURL", "fingerprint"
    }  # fmt: skip
    assert (found["status"], alert["endsAt"]) == ("firing", "0001-01-01T00:00:00Z")
    assert body("alertmanager-webhook", CLOSED, IncidentEvent.CLOSED)["status"] == "resolved"


def test_a_signature_is_that_of_the_specification() -> None:
    """The example of Standard Webhooks."""
    signer = Signer(secret_of("whsec_plJ3nmyCDGBKInavdOK15jsl"))
    headers = signer.headers("msg_loFOjxBNrRLzqYUf", 1731705121, b'{"event_type":"ping","data":{"success":true}}')
    assert headers == {
        "webhook-id": "msg_loFOjxBNrRLzqYUf",
        "webhook-timestamp": "1731705121",
        "webhook-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    }
    assert "plJ3" not in repr(signer)
    assert secret_of("a secret of words") == b"a secret of words"


@pytest.mark.parametrize(
    ("answer", "attempts", "fate", "pause_ms"),
    [
        (HookAnswer(200), 1, DeliveryFate.DELIVERED, 0),
        (HookAnswer(204), 12, DeliveryFate.DELIVERED, 0),
        (HookAnswer(0, "refused"), 1, DeliveryFate.REPEATED, 1_000),
        (HookAnswer(500), 4, DeliveryFate.REPEATED, 8_000),
        (HookAnswer(503), 11, DeliveryFate.REPEATED, LONGEST_PAUSE_MS),
        (HookAnswer(503), 12, DeliveryFate.GIVEN_UP, 0),
        (HookAnswer(429, "", 30_000), 1, DeliveryFate.REPEATED, 30_000),
        (HookAnswer(429, "", 10**9), 1, DeliveryFate.REPEATED, LONGEST_PAUSE_MS),
        (HookAnswer(408), 1, DeliveryFate.REPEATED, 1_000),
        (HookAnswer(404), 1, DeliveryFate.GIVEN_UP, 0),
        (HookAnswer(302), 1, DeliveryFate.GIVEN_UP, 0),
    ],
)
def test_what_follows_an_answer(answer: HookAnswer, attempts: int, fate: DeliveryFate, pause_ms: int) -> None:
    assert attempt_after(answer, attempts, 12) == (fate, pause_ms)


def test_retry_after() -> None:
    assert retry_after_ms({"retry-after": " 7 "}) == 7_000
    assert retry_after_ms({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}) == 0
    assert retry_after_ms({}) == 0
