"""The bodies of announcements: our own JSON, Slack's, those of Alertmanager, or a template. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from odradek.monitor.incidents.announcements import IncidentEvent
from odradek.monitor.incidents.incident import Incident, Severity

Json = dict[str, Any]
_LEVELS = {Severity.WARN: "warning", Severity.ERR: "critical"}
_TITLES = {
    "status": "bad status", "expiring": "offsets expire soon", "never_commits": "never commits",
    "rewind": "offsets went back", "jump": "offsets jumped ahead", "rebalance_storm": "rebalance storm",
}  # fmt: skip
_TIMES_OF_REPEAT = 4
"""An open alert ends by itself after this many times without a repetition, as with Prometheus."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a body says. ``monitor_url``: that of the page, or "". ``number``: of the delivery, the same in each
    attempt."""

    cluster: str
    monitor_url: str
    event: IncidentEvent
    incident: Incident
    number: int
    made_ms: int
    repeat_ms: int = 0

    @property
    def link(self) -> str:
        """The page of the group; "" without the address of the monitor."""
        if not self.monitor_url:
            return ""
        return f"{self.monitor_url.rstrip('/')}/group?name={quote(self.incident.group, safe='')}"

    @property
    def values(self) -> Json:
        """Our own JSON, and the names of a template."""
        return {
            "event": self.event.value,
            "cluster": self.cluster,
            **incident_values(self.incident),
            "link": self.link or None,
            "delivery": self.number,
        }


def incident_values(one: Incident) -> Json:
    """Returns an incident as a JSON value."""
    return {
        "id": one.id,
        "kind": one.kind,
        "group": one.group,
        "severity": one.severity.name,
        "text": one.text,
        "count": one.count,
        "opened_ms": one.opened_ms,
        "changed_ms": one.changed_ms,
        "closed_ms": one.closed_ms,
        "opened_at": iso(one.opened_ms),
        "closed_at": None if one.closed_ms is None else iso(one.closed_ms),
    }


Render = Callable[[Message], bytes]


def iso(time_ms: int) -> str:
    """Returns a time in UTC by RFC 3339, with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_body(message: Message) -> bytes:
    return _encoded(message.values)


def slack_body(message: Message) -> bytes:
    """A message of Slack's incoming webhooks, which Mattermost and Rocket.Chat accept, too."""
    one = message.incident
    name = f"`{_slack(one.group)}`"
    group = f"<{message.link}|{name}>" if message.link else name
    if message.event is IncidentEvent.CLOSED:
        head = f"*Closed*: {_TITLES.get(one.kind, one.kind)}"
    else:
        again = " (still open)" if message.event is IncidentEvent.REPEATED else ""
        head = f"*{one.severity.name}*: {_TITLES.get(one.kind, one.kind)}{again}"
    text = f"{head}, group {group} of cluster {_slack(message.cluster)}\n{_slack(one.text)}"
    return _encoded({"text": text})


def alertmanager_body(message: Message) -> bytes:
    """The alerts of a POST to /api/v2/alerts of Alertmanager. Times are those of the incident."""
    one = message.incident
    ends = one.closed_ms
    if ends is None and message.repeat_ms:
        ends = message.made_ms + _TIMES_OF_REPEAT * message.repeat_ms
    alert: Json = {
        "labels": _labels(message),
        "annotations": {"summary": one.text},
        "startsAt": iso(one.opened_ms),
    }
    if ends is not None:
        alert["endsAt"] = iso(ends)
    if message.link:
        alert["generatorURL"] = message.link
    return _encoded([alert])


def alertmanager_webhook_body(message: Message) -> bytes:
    """The body (version 4) that Alertmanager itself sends to webhooks, for receivers that know it."""
    one, labels = message.incident, _labels(message)
    state = "firing" if one.closed_ms is None else "resolved"
    annotations = {"summary": one.text}
    alert = {
        "status": state,
        "labels": labels,
        "annotations": annotations,
        "startsAt": iso(one.opened_ms),
        "endsAt": "0001-01-01T00:00:00Z" if one.closed_ms is None else iso(one.closed_ms),
        "generatorURL": message.link,
        "fingerprint": one.id[:16],
    }
    return _encoded(
        {
            "version": "4",
            "groupKey": f"{{}}:{{incident={json.dumps(one.id)}}}",
            "truncatedAlerts": 0,
            "status": state,
            "receiver": "odradek",
            "groupLabels": {"incident": one.id},
            "commonLabels": labels,
            "commonAnnotations": annotations,
            "externalURL": message.monitor_url,
            "alerts": [alert],
        }
    )


BODIES: Mapping[str, Render] = {
    "json": json_body,
    "slack": slack_body,
    "alertmanager": alertmanager_body,
    "alertmanager-webhook": alertmanager_webhook_body,
}


def _labels(message: Message) -> dict[str, str]:
    one = message.incident
    return {
        "alertname": "Odradek" + "".join(part.capitalize() for part in one.kind.split("_")),
        "cluster": message.cluster,
        "group": one.group,
        "kind": one.kind,
        "severity": _LEVELS[one.severity],
        "incident": one.id,
    }


def _slack(text: str) -> str:
    """Returns a text in which Slack sees no link and no command."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
