"""ACLs of a broker with an authorizer: stored as in Apache Kafka, in force for the next request, kept over kill -9."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, odradek_broker, unique
from support.principals import AUTHORIZED, BrokerWithPrincipals

from odradek.broker.metadata.standard_authorizer import audit_log
from odradek.core.access.acl import Acl, Operation, Pattern, Permission, Resource
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS

ANY = 1
EVERYTHING = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


def acl(
    name: str = "t",
    operation: int = Operation.READ,
    *,
    who: str = "User:alice",
    kind: int = Resource.TOPIC,
    pattern: int = Pattern.LITERAL,
    host: str = "*",
    permission: int = Permission.ALLOW,
) -> Acl:
    return Acl(kind, name, pattern, who, host, operation, permission)


def _row(one: Acl) -> dict[str, Any]:
    return {
        "resource_type": one.resource_type,
        "resource_name": one.name,
        "resource_pattern_type": one.pattern,
        "principal": one.principal,
        "host": one.host,
        "operation": one.operation,
        "permission_type": one.permission,
    }


def create(wire: Wire, *acls: Acl) -> list[str]:
    rows = [_row(one) for one in acls]
    return [row.error_code.name for row in wire.call(CREATE_ACLS, 3, {"creations": rows}).results]


def delete(wire: Wire, *filters: dict[str, Any]) -> list[Any]:
    return list(wire.call(DELETE_ACLS, 3, {"filters": [EVERYTHING | one for one in filters]}).filter_results)


def described(wire: Wire, **chosen: Any) -> set[Acl]:
    reply = wire.call(DESCRIBE_ACLS, 3, EVERYTHING | chosen)
    assert reply.error_code is ErrorCode.none, reply
    return {
        Acl(each.resource_type, each.resource_name, each.pattern_type, row.principal, row.host, row.operation,
            row.permission_type)
        for each in reply.resources
        for row in each.acls
    }  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithPrincipals]:
    running = BrokerWithPrincipals(tmp_path_factory.mktemp("acls"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def admin(broker: BrokerWithPrincipals) -> Iterator[Wire]:
    with broker.wire() as wire:
        delete(wire, {})
        yield wire
        delete(wire, {})


def test_acls_are_created_once_described_and_deleted(admin: Wire) -> None:
    first, second = acl("a"), acl("b", pattern=Pattern.PREFIXED, permission=Permission.DENY)
    assert create(admin, first, second, first) == ["none", "none", "none"]
    assert create(admin, first) == ["none"]
    assert described(admin) == {first, second}
    assert described(admin, permission_type=Permission.DENY) == {second}
    assert described(admin, resource_name_filter="bc", pattern_type_filter=Pattern.MATCH) == {second}
    assert described(admin, resource_name_filter="bc") == set()
    found, none, again = delete(admin, {"resource_name_filter": "a"}, {"principal_filter": "User:x"}, {})
    assert [row.resource_name for row in found.matching_acls] == ["a"]
    assert none.matching_acls == ()
    assert {row.resource_name for row in again.matching_acls} == {"a", "b"}, "each filter sees all ACLs"
    assert described(admin) == set()


def test_a_row_with_a_fault_is_refused_alone(admin: Wire) -> None:
    good = acl()
    rows = [
        acl(""),
        acl("other", kind=Resource.CLUSTER),
        acl(kind=Resource.ANY),
        acl(kind=99),
        acl(pattern=Pattern.MATCH),
        acl(operation=Operation.ANY),
        acl(operation=77),
        acl(permission=Permission.ANY),
        good,
    ]
    assert create(admin, *rows) == ["invalid_request"] * (len(rows) - 1) + ["none"]
    assert described(admin) == {good}
    unknown, known = delete(admin, {"operation": 77}, {"operation": Operation.READ})
    assert (unknown.error_code.name, known.error_code.name) == ("invalid_request", "none")
    assert described(admin) == set()
    assert described(admin, operation=77) == set(), "as in Kafka, a description with an unknown number finds nothing"


@pytest.mark.slow
def test_more_than_10000_acls_in_one_request_are_refused_together(admin: Wire) -> None:
    many = [acl(f"t{number}") for number in range(10_001)]
    assert set(create(admin, acl(""), *many)[1:]) == {"policy_violation"}
    assert described(admin) == set()
    assert set(create(admin, *many[1:])) == {"none"}
    assert create(admin, many[0]) == ["none"]
    (refused,) = delete(admin, {})
    assert (refused.error_code.name, refused.matching_acls) == ("invalid_request", ())
    one, rest = delete(admin, {"resource_name_filter": "t0"}, {"resource_name_filter": "t1"})
    assert len(one.matching_acls) == len(rest.matching_acls) == 1
    (all_others,) = delete(admin, {})
    assert len(all_others.matching_acls) == 9_999


def test_only_who_may_describe_or_alter_the_cluster_sees_and_changes_acls(
    broker: BrokerWithPrincipals, admin: Wire
) -> None:
    cluster = {"name": "kafka-cluster", "kind": Resource.CLUSTER, "who": "User:carol"}
    with broker.wire("carol") as wire:
        assert wire.call(DESCRIBE_ACLS, 3, EVERYTHING).error_code is ErrorCode.cluster_authorization_failed
        create(admin, acl(**cluster, operation=Operation.DESCRIBE))
        assert len(described(wire)) == 1
        assert create(wire, acl(), acl("")) == ["cluster_authorization_failed"] * 2
        (refused,) = delete(wire, {})
        assert (refused.error_code.name, refused.matching_acls) == ("cluster_authorization_failed", ())
        create(admin, acl(**cluster, operation=Operation.ALTER))
        assert create(wire, acl(who="User:carol")) == ["none"]
        assert len(described(wire)) == 3
        delete(wire, {})
        assert wire.call(DESCRIBE_ACLS, 3, EVERYTHING).error_code is ErrorCode.cluster_authorization_failed


def test_denials_are_in_the_audit_log_in_kafkas_words(
    broker: BrokerWithPrincipals, admin: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    with broker.wire("da\nve") as wire, caplog.at_level(logging.INFO, audit_log.name):
        wire.call(DESCRIBE_ACLS, 3, EVERYTHING)
        rule = acl("kafka-cluster", Operation.DESCRIBE, who="User:*", kind=Resource.CLUSTER, permission=Permission.DENY)
        create(admin, rule)
        wire.call(DESCRIBE_ACLS, 3, EVERYTHING)
    denied = (
        r"Principal = User:da\nve is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = "
        "Cluster:LITERAL:kafka-cluster for request = DescribeAcls with resourceRefCount = 1 based on rule "
    )
    lines = [record.getMessage() for record in caplog.records if record.name == audit_log.name]
    assert lines == [
        denied + "DefaultDeny",
        denied + "MatchingAcl(acl=StandardAcl[resourceType=CLUSTER, resourceName=kafka-cluster, patternType=LITERAL, "
        "principal=User:*, host=*, operation=DESCRIBE, permissionType=DENY])",
    ]
    with caplog.at_level(logging.DEBUG, audit_log.name):
        caplog.clear()
        described(admin)
    (granted,) = [record for record in caplog.records if record.name == audit_log.name]
    assert granted.levelno == logging.DEBUG
    assert "User:ANONYMOUS is Allowed operation = DESCRIBE" in granted.getMessage()
    assert granted.getMessage().endswith("based on rule SuperUser")


def test_a_change_of_super_users_is_refused_because_only_a_start_sets_them(tmp_path: Path) -> None:
    """An authorizer is set, so the refusal is Kafka's, not that of a broker without one."""
    running = BrokerWithPrincipals(tmp_path)
    running.start()
    rows = [{"name": "super.users", "config_operation": 0, "value": "User:eve"}]
    resource = {"resource_type": 4, "resource_name": "1", "configs": rows}
    try:
        with running.wire() as wire:
            (answer,) = wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses
    finally:
        running.kill()
    assert answer.error_code is ErrorCode.invalid_request
    assert answer.error_message == "Cannot update these configs dynamically: [super.users]"


def test_acls_survive_a_snapshot_and_a_restart(tmp_path: Path) -> None:
    """Also when the broker ran without an authorizer meanwhile."""
    kept = {acl("a"), acl("p", pattern=Pattern.PREFIXED), acl("b", who="User:é:x")}
    small = {"metadata.log.max.record.bytes.between.snapshots": "1000"}
    running = BrokerWithPrincipals(tmp_path, small)
    running.start()
    try:
        with running.wire() as wire:
            create(wire, *kept, *(acl(f"gone{number}") for number in range(40)))
            delete(wire, *({"resource_name_filter": f"gone{number}"} for number in range(40)))
        running.stop()
        assert list((tmp_path / "__cluster_metadata-0").glob("*.checkpoint"))
        without = running.config.copy()
        for name in ("authorizer.class.name", "super.users"):
            del running.config[name]
        running.start()
        with running.wire() as wire:
            assert wire.call(DESCRIBE_ACLS, 3, EVERYTHING).error_code is ErrorCode.security_disabled
            assert create(wire, acl("x")) == ["security_disabled"]
            assert delete(wire, {})[0].error_code is ErrorCode.security_disabled
        running.kill()
        running.config = without
        running.start()
        with running.wire() as wire:
            assert described(wire) == kept
    finally:
        running.kill()


def test_what_was_answered_is_there_after_kill_9(tmp_path: Path) -> None:
    """Two clients create and delete ACLs. The broker is killed between requests and in the middle of one."""
    running = odradek_broker(tmp_path, dict(AUTHORIZED))
    running.start()
    answered: set[Acl] = set()
    try:
        for round_number in range(2):
            with Wire(running.bootstrap) as one, Wire(running.bootstrap) as two:
                for number in range(20):
                    new = acl(unique(f"t{round_number}.{number}"))
                    assert create(one, new, acl("same")) == ["none", "none"]
                    answered |= {new, acl("same")}
                gone = min(answered - {acl("same")})
                assert len(delete(two, {"resource_name_filter": gone.name})[0].matching_acls) == 1
                answered.discard(gone)
                asked = [acl(unique("cut")) for _ in range(300)]
                one.send(CREATE_ACLS, 3, {"creations": [_row(each) for each in asked]})
                running.kill()
            running.start()
            with Wire(running.bootstrap) as wire:
                found = described(wire)
            assert found >= answered
            assert found - answered in (set(), set(asked)), "one request is one batch: all of its ACLs or none"
            answered = found
    finally:
        running.kill()
