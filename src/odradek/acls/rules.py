"""The rules of Kafka's StandardAuthorizer for one ACL, and the outcome of a decision. Pure.

DENY wins over ALLOW. An ALLOW of an operation may imply DESCRIBE or DESCRIBE_CONFIGS; a DENY implies nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.core.access.acl import Acl, Operation, Permission

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
