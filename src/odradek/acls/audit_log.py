"""The words of Kafka's audit log. Pure.

The names of operations, types and patterns are those of Kafka's enumerations.
"""

from __future__ import annotations

from odradek.core.access.acl import Acl, Operation, Pattern, Permission, Resource


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
