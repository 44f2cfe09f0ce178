"""Our answers to users with different ACLs equal those of Apache Kafka 4.3 with StandardAuthorizer.

``traces/acls.json`` has the answers of Apache Kafka: each API × each operation, allowed and denied × literal, prefixed
and wildcard patterns × existing and missing resources (``acl_requests``).
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acl_requests import User, users
from acl_world import AUDIT_TRACE, CONFIG, AclWorld, audited, stored
from recording import differences
from support.principals import BrokerWithPrincipals

from odradek.broker.handlers import handler_files
from odradek.broker.metadata.standard_authorizer import audit_log

KNOWN: dict[str, str] = {}
"""A pattern of a difference → its reason."""
KNOWN_LINES = {
    r"Kafka \d+x .* on resource = Topic:LITERAL: for request = Offset(Commit|Fetch) ": "for an unknown id, Kafka asks "
    "about a topic with an empty name, and its answer has no effect",
}
"""A pattern of a line of the audit log that only one of both has → its reason."""
ASKS_NOTHING = {
    17: "the login itself",
    18: "Kafka tells everyone its versions",
    36: "the login itself",
    38: "tokens are refused before any question, until clients can log in",
    39: "the same reason",
    40: "the same reason",
    41: "the same reason",
}
"""The APIs whose requests ask the authorizer nothing."""
EVERY = 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclWorld]:
    broker = BrokerWithPrincipals(tmp_path_factory.mktemp("acls"), CONFIG)
    broker.start()
    made = AclWorld(broker.bootstrap_servers, broker.wire)
    made.prepare(users())
    yield made
    made.close()
    broker.kill()


def different(world: AclWorld, trace: dict[str, Any], user: User) -> list[str]:
    number = trace["users"].index(user.name)
    found = []
    for case, ours in zip(world.cases, world.replies(user), strict=True):
        theirs = trace["replies"][trace["requests"][case.name][number]]
        if theirs != ours:
            where = f"{case.name}, {user.name}: "
            found += [where + line for line in differences(json.loads(theirs), json.loads(ours))]
    return found


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, EVERY))])
def test_each_answer_equals_that_of_apache_kafka(world: AclWorld, part: int) -> None:
    """A twentieth of the users in each part."""
    trace = stored()
    assert list(trace["requests"]) == [case.name for case in world.cases], "record the trace again"
    lines = [line for user in users()[part::EVERY] for line in different(world, trace, user)]
    new = [line for line in lines if not any(re.search(known, line) for known in KNOWN)]
    assert new == [], "\n" + "\n".join(new[:40])


class AuditLines(logging.Handler):
    """The lines of the audit log that are new since the last ``read``."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelname, record.getMessage()))

    def read(self) -> list[tuple[str, str]]:
        found, self._lines = self._lines, []
        return found


@pytest.fixture
def audit_lines() -> Iterator[AuditLines]:
    handler, level = AuditLines(), audit_log.level
    audit_log.addHandler(handler)
    audit_log.setLevel(logging.DEBUG)
    yield handler
    audit_log.setLevel(level)
    audit_log.removeHandler(handler)


def test_the_audit_log_equals_that_of_apache_kafka(world: AclWorld, audit_lines: AuditLines) -> None:
    """Every line, denied and granted, that the requests of some users make (``record_audit``)."""
    theirs = json.loads(AUDIT_TRACE.read_text())
    ours = audited(world, audit_lines.read)
    assert list(theirs) == list(ours)
    found = []
    for user, requests in theirs.items():
        for name, lines in requests.items():
            missing, more = Counter(lines) - Counter(ours[user][name]), Counter(ours[user][name]) - Counter(lines)
            found += [f"{user} {name} Kafka {count}x {line}" for line, count in sorted(missing.items())]
            found += [f"{user} {name} ours {count}x {line}" for line, count in sorted(more.items())]
    new = [line for line in found if not any(re.search(known, line) for known in KNOWN_LINES)]
    assert new == [], "\n" + "\n".join(new[:400])


def test_every_api_is_asked_about() -> None:
    """An API without a request here, or whose answer is the same for all users, would ask the authorizer nothing."""
    trace = stored()
    asked: dict[int, set[int]] = {}
    for name, answers in trace["requests"].items():
        asked.setdefault(int(name.split()[0]), set()).update(answers)
    silent = {key for key, answers in asked.items() if len(answers) < 2}
    served = {api.key for api in handler_files("client")}
    assert served - asked.keys() | silent == ASKS_NOTHING.keys()


def test_the_trace_has_every_user() -> None:
    assert stored()["users"] == [user.name for user in users()]
    assert len({user.name for user in users()}) == len(users()) > 290
    assert Path(__file__).with_name("record_acls.py").exists()
