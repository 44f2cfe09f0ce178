"""Kafka's StandardAuthorizer: the rules for one ACL, the outcome of a decision, the words of the audit log. Pure.

DENY wins over ALLOW. An ALLOW of an operation may imply DESCRIBE or DESCRIBE_CONFIGS; a DENY implies nothing. The names
of operations, types and patterns are those of Kafka's enumerations.
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.core.access.acl import Acl, Operation, Pattern, Permission, Resource

_DESCRIBING = frozenset((Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER))
_DESCRIBING_CONFIGS = frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS))


class Decision(NamedTuple):
    """The answer to a question. ``rule``: the ACL that decides, or the words of the audit log for another reason."""

    is_allowed: bool
    rule: Acl | str


SUPER_USER = Decision(True, "SuperUser")
DEFAULT_ALLOW = Decision(True, "DefaultAllow")
DEFAULT_DENY = Decision(False, "DefaultDeny")


def applies(acl: Acl, operation: int) -> bool:
    """Returns whether an ACL for the right resource, principal and host decides about the operation."""
    own = acl.operation
    if own in (Operation.ALL, operation):
        return True
    if acl.permission != Permission.ALLOW:
        return False
    if operation == Operation.DESCRIBE:
        return own in _DESCRIBING
    return operation == Operation.DESCRIBE_CONFIGS and own in _DESCRIBING_CONFIGS


def _constants(kind: type) -> dict[int, str]:
    return {value: name for name, value in vars(kind).items() if name.isupper()}


RESOURCES, OPERATIONS = _constants(Resource), _constants(Operation)
PATTERNS, PERMISSIONS = _constants(Pattern), _constants(Permission)


def acl_text(acl: Acl) -> str:
    """Returns an ACL as Java prints a StandardAcl."""
    return (
        f"StandardAcl[resourceType={RESOURCES[acl.resource_type]}, resourceName={acl.name}, "
        f"patternType={PATTERNS[acl.pattern]}, principal={acl.principal}, host={acl.host}, "
        f"operation={OPERATIONS[acl.operation]}, permissionType={PERMISSIONS[acl.permission]}]"
    )


def rule_text(rule: Acl | str) -> str:
    """Returns the reason of a decision (``rules.Decision``)."""
    return rule if isinstance(rule, str) else f"MatchingAcl(acl={acl_text(rule)})"


def resource_text(resource_type: int, name: str) -> str:
    """Returns the resource of a question, which always has a literal name."""
    return f"{RESOURCES[resource_type].title().replace('_', '')}:LITERAL:{name}"
