"""The HTTP service: Burrow's replies, our own, and who is refused. The application is called without a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.offset_entries import STEP_MS, batch_of, entry, machine_with

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")

from odradek.cli.monitor.monitor import is_loopback
from odradek.core.ids import TopicPartition
from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.group_tracker import ListedState, LogBoundsRow
from odradek.monitor.http.metrics import MetricsOptions
from odradek.monitor.http.service import Service, ServiceOptions
from odradek.monitor.incidents.incident import ConditionView, GroupCondition, Severity
from odradek.monitor.incidents.service import Incidents
from odradek.monitor.incidents.webhook_file import Webhooks
from odradek.monitor.offsets_reader import Trouble

ORDERS = [TopicPartition("orders", number) for number in range(2)]
ODD = ("a/b", "%2F", "<b>bold</b>", "🙂", " ")


class FixedFollower:
    """A reader with one view, without a cluster."""

    def __init__(self) -> None:
        commits = {("billing", ORDERS[0]): list(range(10, 110, 10)), ("billing", ORDERS[1]): [40]}
        self.tracker = machine_with(commits | {(name, ORDERS[0]): [100] for name in ODD}, end=100)
        self.tracker.set_groups({"billing": ListedState("Stable", "consumer"), "idle": ListedState("Empty", "classic")})
        now_ms = self.tracker.last_poll_ms + STEP_MS
        self.tracker.add_bounds(now_ms, {tp: LogBoundsRow(0, 160) for tp in ORDERS}, {})
        self.groups = self.tracker.groups(now_ms)
        self.access = threading.Lock()
        self.trouble: Trouble | None = None
        self.source, self.source_reason, self.poll_ms = "topic", "", 5

    @property
    def is_ready(self) -> bool:
        return self.trouble is None


class Answer:
    def __init__(self) -> None:
        self.code, self.headers, self.body = 0, {}, b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    raw_path: str, *, method: str = "GET", host: str = "localhost:8000", token: str = "", send: str = "",
    reader: Any = None, incidents: Incidents | None = None,
) -> Answer:  # fmt: skip
    """Calls the application. ``token``: what it demands; ``send``: what the client sends."""
    options = ServiceOptions(MetricsOptions("main"), frozenset({"localhost"}), token, ("127.0.0.1:9092",))
    app = Service(reader or FixedFollower(), options, incidents).app()
    path, _, query = raw_path.partition("?")
    headers = [(b"host", host.encode())] + ([(b"authorization", send.encode())] if send else [])
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("localhost", 8000), "root_path": "",
    }  # fmt: skip
    found = Answer()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.code, found.headers = message["status"], dict(message["headers"])
        else:
            found.body += message.get("body", b"")

    asyncio.run(app(scope, receive, sent))
    return found


OFFSET_KEYS = {"offset": int, "timestamp": int, "observedAt": int}
PARTITION = {
    "topic": str, "partition": int, "owner": str, "client_id": str, "status": str, "start": dict, "end": dict,
    "current_lag": int, "complete": float,
}  # fmt: skip


def check_types(value: dict[str, Any], types: dict[str, type]) -> None:
    assert {name: type(one) for name, one in value.items()} == types


def test_burrows_lag_of_a_group() -> None:
    """Keys and types are those of ``core/protocol/evaluator.go``."""
    reply = ask("/v3/kafka/main/consumer/billing/lag")
    assert (reply.code, reply.headers[b"content-type"]) == (200, b"application/json")
    assert {name: reply.json[name] for name in ("error", "message")} == {
        "error": False,
        "message": "consumer status returned",
    }
    assert reply.json["request"]["url"] == "/v3/kafka/main/consumer/billing/lag"
    status = reply.json["status"]
    assert {name: status[name] for name in ("cluster", "group", "partition_count", "totallag", "complete")} == {
        "cluster": "main", "group": "billing", "partition_count": 2, "totallag": 180, "complete": 0.5,
    }  # fmt: skip
    assert [one["partition"] for one in status["partitions"]] == [0, 1]
    for one in (*status["partitions"], status["maxlag"]):
        check_types(one, PARTITION)
        assert set(one["start"]) == {*OFFSET_KEYS, "lag"}
    assert status["maxlag"]["current_lag"] == 120
    assert status["partitions"][1]["complete"] == 0.1


def test_burrows_status_has_only_partitions_that_are_not_ok() -> None:
    found = ask("/v3/kafka/main/consumer/billing/status").json["status"]
    everything = ask("/v3/kafka/main/consumer/billing/lag").json["status"]
    assert found["partitions"] == [one for one in everything["partitions"] if one["status"] != "OK"] != []
    assert found["partition_count"] == 2


def test_burrows_detail_of_a_group_has_missing_commits_first() -> None:
    topics = ask("/v3/kafka/main/consumer/billing").json["topics"]
    short = topics["orders"][1]
    check_types(short, {"offsets": list, "owner": str, "client_id": str, "current-lag": int})
    assert short["offsets"][:9] == [None] * 9
    assert short["offsets"][9]["offset"] == 40


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("/v3/kafka/main", 200, "cluster module detail returned"),
        ("/v3/kafka/main/topic", 200, "topic list returned"),
        ("/v3/kafka/main/topic/orders", 200, "topic offsets returned"),
        ("/v3/kafka/main/topic/orders/consumers", 200, "consumers of topic returned"),
        ("/v3/kafka/main/consumer", 200, "consumer list returned"),
        ("/v3/kafka/other", 404, "cluster module not found"),
        ("/v3/kafka/other/topic", 404, "cluster not found"),
        ("/v3/kafka/main/topic/none", 404, "cluster or topic not found"),
        ("/v3/kafka/other/consumer", 404, "cluster not found"),
        ("/v3/kafka/main/consumer/none", 404, "cluster or consumer not found"),
        ("/v3/kafka/other/topic/orders/consumers", 404, "cluster not found"),
    ],
)
def test_burrows_messages_and_codes(path: str, code: int, message: str) -> None:
    reply = ask(path)
    assert (reply.code, reply.json["message"], reply.json["error"]) == (code, message, code != 200)


def test_burrows_status_of_an_unknown_group() -> None:
    """404, but no error, as in Burrow."""
    reply = ask("/v3/kafka/main/consumer/none/lag")
    assert reply.code == 404
    assert reply.json["error"] is False
    assert reply.json["status"] == {
        "cluster": "main", "group": "none", "status": "NOTFOUND", "complete": 1.0, "partitions": [],
        "partition_count": 0, "maxlag": None, "totallag": 0,
    }  # fmt: skip


def test_delete_forgets_a_group_in_this_view() -> None:
    reader = FixedFollower()
    assert ask("/v3/kafka/main/consumer/billing", method="DELETE", reader=reader).code == 200
    assert ask("/v3/kafka/main/consumer/billing", reader=reader).code == 404
    assert ask("/v3/kafka/main/consumer/a%2Fb/topic/orders", method="DELETE", reader=reader).code == 200
    assert "a/b" not in ask("/v3/kafka/main/consumer", reader=reader).json["consumers"]


@pytest.mark.parametrize(
    ("encoded", "name"), list(zip(("a%2Fb", "%252F", "%3Cb%3Ebold%3C%2Fb%3E", "%F0%9F%99%82", "%20"), ODD, strict=True))
)
def test_any_name_of_a_group_is_one_segment_of_the_path(encoded: str, name: str) -> None:
    assert ask(f"/api/v1/groups/{encoded}").json["group"] == name
    assert ask(f"/v3/kafka/main/consumer/{encoded}/status").json["status"]["group"] == name


def test_groups_are_sorted_filtered_and_paged() -> None:
    page = ask("/api/v1/groups?sort=-lag&limit=2&offset=0").json
    assert (page["total"], page["groups"][0]["group"]) == (7, "billing")
    assert [row["group"] for row in ask("/api/v1/groups?state=Stable").json["groups"]] == ["billing"]
    assert [row["group"] for row in ask("/api/v1/groups?search=BILL").json["groups"]] == ["billing"]
    assert ask("/api/v1/groups?status=NOTFOUND").json["total"] == 1  # idle: it has no offsets
    names = [row["group"] for row in ask("/api/v1/groups?sort=-name").json["groups"]]
    assert names == sorted(names, reverse=True)


def test_a_group_of_the_list_has_the_time_lag_of_its_worst_partition() -> None:
    rows = {row["group"]: row for row in ask("/api/v1/groups?sort=-time_lag").json["groups"]}
    partitions = ask("/api/v1/groups/billing").json["partitions"]
    worst = max(partitions, key=lambda row: (row["status"] != "OK", row["lag"]))
    shown = rows["billing"]
    assert (shown["time_lag_ms"], shown["time_lag_error_ms"]) == (worst["time_lag_ms"], worst["time_lag_error_ms"])
    assert rows["idle"]["time_lag_ms"] is None


def test_the_place_of_a_group_is_found_in_each_order() -> None:
    for sort in ("name", "-name", "-lag", "time_lag"):
        names = [row["group"] for row in ask(f"/api/v1/groups?sort={sort}").json["groups"]]
        for place, name in enumerate(names):
            found = ask(f"/api/v1/groups?sort={sort}&limit=1&position_of={quote(name)}").json
            assert (found["position"], len(found["groups"])) == (place, 1)
    assert ask("/api/v1/groups?search=idle&position_of=billing").json["position"] is None
    assert ask("/api/v1/groups?position_of=zzz").json["position"] is None
    assert "position" not in ask("/api/v1/groups").json


@pytest.mark.parametrize("query", ["sort=colour", "limit=-1", "limit=9999", "offset=x", "status=BAD", "status=STALL"])
def test_a_wrong_value_names_its_field(query: str) -> None:
    reply = ask(f"/api/v1/groups?{query}")
    assert (reply.code, reply.json["field"]) == (400, query.partition("=")[0])


def test_an_unknown_parameter_is_refused_with_a_similar_name() -> None:
    reply = ask("/api/v1/groups?serch=billing")
    assert (reply.code, reply.json["field"]) == (400, "serch")
    assert "there is no parameter serch (did you mean search?)" in str(reply.json)


def test_a_group_shows_rule_lag_and_time_lag_of_its_partitions() -> None:
    rows = ask("/api/v1/groups/billing").json["partitions"]
    first = next(row for row in rows if row["partition"] == 0)
    assert (first["lag"], first["committed_offset"], first["log_end_offset"]) == (60, 100, 160)
    assert 0 < first["time_lag_ms"] <= STEP_MS == first["time_lag_error_ms"]
    assert first["reason"]
    assert ask("/api/v1/topics/orders").json["groups"] == sorted(("billing", *ODD))
    assert (ask("/api/v1/groups/none").code, ask("/api/v1/topics/none").code, ask("/nowhere").code) == (404, 404, 404)


def test_a_group_shows_findings_and_expiry() -> None:
    reader = FixedFollower()
    reader.tracker.add_entries(batch_of([entry("billing", ORDERS[0], (0, 900), 900_000, 15, None)]))
    now_ms = reader.tracker.last_poll_ms + STEP_MS
    reader.tracker.add_bounds(now_ms, {tp: LogBoundsRow(0, 160) for tp in ORDERS}, {})
    reader.groups = reader.tracker.groups(now_ms)
    group = ask("/api/v1/groups/billing", reader=reader).json
    (rewind,) = [one for one in group["findings"] if one["kind"] == "rewind"]
    assert (rewind["from_offset"], rewind["to_offset"], rewind["to_ms"]) == (15, 100, 900_000)
    assert [one["record_offset"] for one in rewind["proof"]] == [10, 900]
    week = 7 * 86_400_000
    assert group["partitions"][0]["expires_ms"] == 900_000 + week
    assert group["partitions"][0]["expiry_counts_from"] == "commit"
    assert group["summary"]["findings"] == 1
    assert ask("/api/v1/groups?sort=-findings", reader=reader).json["groups"][0]["group"] == "billing"
    assert ask("/api/v1/findings", reader=reader).json["findings"] == group["findings"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8000", "", "localhost@evil"])
def test_a_foreign_host_is_refused(host: str) -> None:
    """A page of another site whose name points to this tracker (DNS rebinding) sends its own name."""
    assert ask("/metrics", host=host).code == 403


def test_a_token_is_needed_for_data_only() -> None:
    token = "s" * 32
    for path in ("/metrics", "/v3/kafka", "/api/v1/groups", "/nowhere"):
        assert ask(path, token=token).code == 401
        assert ask(path, token=token, send=f"Bearer {token}x").code == 401
    assert ask("/metrics", token=token, send=f"Bearer {token}").code == 200
    assert ask("/healthz", token=token).code == 200
    assert ask("/burrow/admin", token=token).body == b"GOOD"
    assert ask("/burrow/admin", token=token, host="evil.example").code == 403


def test_every_reply_has_the_headers_of_safety() -> None:
    for path, host in (("/metrics", "localhost"), ("/nowhere", "localhost"), ("/metrics", "evil.example")):
        headers = ask(path, host=host).headers
        assert headers[b"content-security-policy"].startswith(b"default-src 'none'")
        assert headers[b"x-content-type-options"] == b"nosniff"


def test_readiness_says_what_is_wrong_and_since_when() -> None:
    reader = FixedFollower()
    assert (ask("/readyz", reader=reader).code, ask("/burrow/admin/ready", reader=reader).body) == (
        200,
        b"READY",
    )
    reader.trouble = Trouble(123, "no broker answers")
    reply = ask("/readyz", reader=reader)
    assert (reply.code, reply.json) == (503, {"error": "no broker answers", "since_ms": 123})
    assert ask("/burrow/admin/ready", reader=reader).code == 503
    assert b'odradek_monitor_up{cluster_name="main"} 0' in ask("/metrics", reader=reader).body


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.9.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))


@pytest.fixture
def incidents(tmp_path: Path) -> Iterator[Incidents]:
    database = MonitorDatabase(tmp_path)
    made = Incidents(database, Webhooks(), "main", keep_ms=10**12, new_id=lambda: next(IDS))
    yield made
    made.close()
    database.close()


IDS = (f"{number:032x}" for number in itertools.count(1))


def test_incidents_are_replies_metrics_and_a_page(incidents: Incidents) -> None:
    bad = [GroupCondition("status", name, Severity.ERR, f"bad: {name}") for name in ("billing", "<b>bold</b>")]
    incidents.observer.record(ConditionView(1_000, bad))
    incidents.observer.record(ConditionView(61_000, bad[:1]))
    found = ask("/api/v1/incidents", incidents=incidents)
    assert (found.code, [one["group"] for one in found.json["incidents"]]) == (200, ["billing", "<b>bold</b>"])
    assert (found.json["trouble"], found.json["pending"]) == (None, {})
    one, two = found.json["incidents"]
    assert (one["closed_at"], two["closed_at"]) == (None, "1970-01-01T00:01:01.000Z")
    assert ask(f"/api/v1/incidents/{one['id']}", incidents=incidents).json == one
    assert len(ask("/api/v1/incidents?closed=0", incidents=incidents).json["incidents"]) == 1
    page = ask("/incidents", incidents=incidents)
    assert page.code == 200
    assert b"1 open incident" in page.body
    assert b"<b>bold" not in page.body
    assert b"1 min" in page.body
    metrics = ask("/metrics", incidents=incidents).body.decode()
    assert 'odradek_incidents_open{cluster_name="main",kind="status",severity="ERR"} 1' in metrics


def test_unknown_incidents_and_a_monitor_without_a_directory(incidents: Incidents) -> None:
    missing = ask("/api/v1/incidents/none", incidents=incidents)
    assert (missing.code, missing.json["error"]) == (
        404, "the monitor knows no incident 'none': /api/v1/incidents lists them",
    )  # fmt: skip
    assert ask("/api/v1/incidents?closed=x", incidents=incidents).json["field"] == "closed"
    without = ask("/api/v1/incidents")
    assert (without.code, without.json["error"]) == (404, "this monitor keeps no incidents: start it with --data DIR")
    assert ask("/incidents").code == 404
    assert b"open incident" not in ask("/").body
