"""Decisions of the index of ACLs against a plain reading of the rules of Kafka's StandardAuthorizer.

The model looks at every ACL for each question. The sets of ACLs come from few names that begin one another, so that
patterns overlap, and ACLs are also removed again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from odradek.acls.index import AclIndex
from odradek.acls.rules import DEFAULT_ALLOW, DEFAULT_DENY, Decision
from odradek.core.access.acl import EVERYONE, Acl, Operation, Pattern, Permission, Resource

NAMES = ("a", "ab", "abc", "abd", "ac", "b", "ba", "*", "*a", "a*", "A", "ab" * 40, "aé", "a\U0001f600", "a\uffee")
PRINCIPALS = ("User:u", "User:v", EVERYONE, "Group:u", "Group:*", "User:u:v", "u")
ASKERS = ("User:u", "User:v", "User:w", "Group:u", "User:*")
HOSTS = ("*", "127.0.0.1", "0:0:0:0:0:0:0:1")
TYPES = (Resource.TOPIC, Resource.GROUP)
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def random_acl(chance: random.Random) -> Acl:
    return Acl(
        chance.choice(TYPES),
        chance.choice(NAMES),
        chance.choice((Pattern.LITERAL, Pattern.PREFIXED)),
        chance.choice(PRINCIPALS),
        chance.choice(HOSTS),
        chance.randrange(Operation.ALL, Operation.TWO_PHASE_COMMIT + 1),
        chance.choice((Permission.DENY, Permission.ALLOW, Permission.ALLOW)),
    )


def is_for(acl: Acl, resource_type: int, name: str) -> bool:
    if acl.resource_type != resource_type:
        return False
    if acl.pattern == Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def decides(acl: Acl, asker: str, host: str, operation: int) -> bool:
    if acl.principal not in (asker, "User:*") or acl.host not in ("*", host):
        return False
    if acl.operation in (Operation.ALL, operation):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in IMPLIED.get(operation, set())


def model(acls: set[Acl], asker: str, host: str, operation: int, resource_type: int, name: str) -> bool | None:
    """Whether the asker may do it. None: no ACL names the resource, so the default decides."""
    listed = [acl for acl in acls if is_for(acl, resource_type, name)]
    votes = {acl.permission for acl in listed if decides(acl, asker, host, operation)}
    if Permission.DENY in votes:
        return False
    if Permission.ALLOW in votes:
        return True
    return False if listed else None


def model_of_any(acls: set[Acl], asker: str, host: str, operation: int, resource_type: int) -> bool:
    """Kafka's default ``authorizeByResourceType`` without its first question about a name that no resource has."""
    mine = [
        acl
        for acl in acls
        if acl.resource_type == resource_type
        and acl.principal in (asker, "User:*")
        and acl.host in ("*", host)
        and acl.operation in (Operation.ALL, operation)
    ]
    denies = [(acl.pattern, acl.name) for acl in mine if acl.permission == Permission.DENY]
    if (Pattern.LITERAL, "*") in denies:
        return False
    for acl in mine:
        if acl.permission != Permission.ALLOW:
            continue
        if acl.pattern == Pattern.LITERAL and acl.name == "*":
            return True
        if acl.pattern == Pattern.LITERAL and (Pattern.LITERAL, acl.name) in denies:
            continue
        if not any(pattern == Pattern.PREFIXED and acl.name.startswith(name) for pattern, name in denies):
            return True
    return False


def in_kafkas_order(acls: set[Acl], resource_type: int, name: str) -> Iterator[Acl]:
    """The ACLs for a name as Kafka meets them: longer names first, and the wildcard last."""

    def order(acl: Acl) -> tuple[object, ...]:
        is_last = acl.pattern == Pattern.LITERAL and acl.name == "*" != name
        own = acl.operation, acl.principal.encode("utf-16-be"), acl.host, acl.permission
        return is_last, -len(acl.name), acl.pattern, *own

    yield from sorted((acl for acl in acls if is_for(acl, resource_type, name)), key=order)


def compare(chance: random.Random) -> None:
    acls = {random_acl(chance) for _ in range(chance.choice((0, 1, 3, 8, 20)))}
    unlisted = chance.choice((True, False))
    shuffled = chance.sample(sorted(acls), len(acls))
    index = AclIndex(shuffled, allows_unlisted=unlisted)
    for gone in shuffled[: chance.randrange(len(acls) + 1) if chance.random() < 0.5 else 0]:
        index.remove(gone)
        acls.discard(gone)
    for _ in range(12):
        asker, host = chance.choice(ASKERS), chance.choice(HOSTS[1:])
        operation = chance.randrange(Operation.READ, Operation.TWO_PHASE_COMMIT + 1)
        kind, name = chance.choice(TYPES), chance.choice(NAMES)
        found = index.decide(asker, host, operation, kind, name)
        expected = model(acls, asker, host, operation, kind, name)
        context = f"{sorted(acls)} {asker} {host} {operation} {kind} {name}"
        assert found.is_allowed == (unlisted if expected is None else expected), context
        assert found == reason(acls, found, expected, (asker, host, operation, kind, name)), context
        any_found = index.allows_any(asker, host, operation, kind)
        assert any_found == model_of_any(acls, asker, host, operation, kind), context


def reason(acls: set[Acl], found: Decision, expected: bool | None, asked: tuple[str, str, int, int, str]) -> Decision:
    """The decision with the ACL that Kafka's audit log names: the first denial, or the last permission."""
    asker, host, operation, kind, name = asked
    if expected is None:
        return DEFAULT_ALLOW if found.is_allowed else DEFAULT_DENY
    ordered = [acl for acl in in_kafkas_order(acls, kind, name) if decides(acl, asker, host, operation)]
    denials = [acl for acl in ordered if acl.permission == Permission.DENY]
    if not ordered:
        return DEFAULT_DENY
    return Decision(False, denials[0]) if denials else Decision(True, ordered[-1])


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_decisions_follow_the_rules(part: int) -> None:
    """500 sets of ACLs; the slow part has the other 9,500."""
    for seed in range(*((0, 500), (500, 10_000))[part]):
        compare(random.Random(seed))


def test_removed_acls_decide_nothing() -> None:
    """After the last ACL of a resource is gone, the default decides about it again."""
    acls = [Acl(Resource.TOPIC, "t", Pattern.LITERAL, f"User:u{n}", f"10.0.{n >> 8}.{n & 255}", 3, 3) for n in range(9)]
    index = AclIndex(acls)
    assert index.decide("User:u3", "10.0.0.3", Operation.READ, Resource.TOPIC, "t") == (True, acls[3])
    assert not index.decide("User:u3", "10.0.0.4", Operation.READ, Resource.TOPIC, "t").is_allowed
    for acl in acls:
        index.remove(acl)
    assert index.decide("User:u3", "10.0.0.3", Operation.READ, Resource.TOPIC, "t") == DEFAULT_DENY
    with pytest.raises((KeyError, ValueError)):
        index.remove(acls[0])
