"""An ACL, and Kafka's numbers of resource types, patterns, operations and permissions.

The numbers are attributes of classes and no enums, because every decision of the authorizer hashes them.
"""

from __future__ import annotations

from typing import NamedTuple


class Resource:
    """The types of resources (ResourceType)."""

    UNKNOWN, ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(8)


class Pattern:
    """How the name in an ACL or filter is compared (PatternType). ANY and MATCH occur only in filters."""

    UNKNOWN, ANY, MATCH, LITERAL, PREFIXED = range(5)


class Operation:
    """What an ACL allows or denies (AclOperation)."""

    (
        UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS,
        ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, TWO_PHASE_COMMIT,
    ) = range(16)  # fmt: skip


class Permission:
    """AclPermissionType."""

    UNKNOWN, ANY, DENY, ALLOW = range(4)


WILDCARD = "*"
"""As a literal name: all resources of the type. As a host: all hosts."""
EVERYONE = "User:*"
"""The principal that stands for all principals, of every kind."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of the type CLUSTER."""


class Acl(NamedTuple):
    """An access control list entry (StandardAcl). ``principal`` is ``kind:name``."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int
