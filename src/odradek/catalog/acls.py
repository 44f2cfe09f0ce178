"""The ACLs of the metadata log: checks of new ones, filters, and the state by id. Kafka's AclControlManager.

The authorizer decides by an index of these ACLs (``acls/index``).
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.catalog.records import Id16
from odradek.core.access.acl import CLUSTER_NAME, WILDCARD, Acl, Operation, Pattern, Permission, Resource
from odradek.core.errors import ErrorCode, KafkaError


class CreateAcl(NamedTuple):
    """Adds an ACL with a new id. An ACL that exists already makes no record."""

    id: Id16
    acl: Acl


class DeleteAcl(NamedTuple):
    id: Id16


class AclFilter(NamedTuple):
    """Selects ACLs (AclBindingFilter). ``None`` and the number of ANY select all values of a field."""

    resource_type: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (Resource.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern == Pattern.PREFIXED else acl.name == WILDCARD


class AclTable:
    """All ACLs by id. ``by_id`` and ``ids`` change only in ``put`` and ``remove``."""

    def __init__(self) -> None:
        self.by_id: dict[Id16, Acl] = {}
        self.ids: dict[Acl, Id16] = {}

    def put(self, acl_id: Id16, acl: Acl) -> None:
        self.by_id[acl_id] = acl
        self.ids[acl] = acl_id

    def remove(self, acl_id: Id16) -> bool:
        """Removes an ACL. Returns whether it was there."""
        acl = self.by_id.pop(acl_id, None)
        if acl is not None and self.ids.get(acl) == acl_id:
            del self.ids[acl]
        return acl is not None


def check_new(acl: Acl) -> None:
    """Raises KafkaError (INVALID_REQUEST) if Apache Kafka would refuse the ACL."""
    if acl.resource_type == Resource.CLUSTER and acl.name != CLUSTER_NAME:
        fault = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.name:
        fault = "Invalid empty resource name"
    elif not Resource.TOPIC <= acl.resource_type <= Resource.USER:
        fault = f"Invalid resourceType {_shown(Resource, acl.resource_type)}"
    elif acl.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        fault = f"Invalid patternType {_shown(Pattern, acl.pattern)}"
    elif not Operation.ALL <= acl.operation <= Operation.TWO_PHASE_COMMIT:
        fault = f"Invalid operation {_shown(Operation, acl.operation)}"
    elif acl.permission not in (Permission.DENY, Permission.ALLOW):
        fault = f"Invalid permissionType {_shown(Permission, acl.permission)}"
    elif ":" not in acl.principal:
        fault = (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    else:
        return
    raise KafkaError(ErrorCode.invalid_request, fault)


def check_filter(chosen: AclFilter) -> None:
    """Raises KafkaError (INVALID_REQUEST) if a field of a filter has a number that Kafka does not know."""
    if _shown(Resource, chosen.resource_type) == _UNKNOWN or _shown(Pattern, chosen.pattern) == _UNKNOWN:
        raise KafkaError(ErrorCode.invalid_request, "Unknown patternFilter.")
    if _shown(Operation, chosen.operation) == _UNKNOWN or _shown(Permission, chosen.permission) == _UNKNOWN:
        raise KafkaError(ErrorCode.invalid_request, "Unknown entryFilter.")


_UNKNOWN = "UNKNOWN"


def _shown(kind: type, number: int) -> str:
    """Returns Kafka's name of a number."""
    return next((name for name, value in vars(kind).items() if value == number and name.isupper()), _UNKNOWN)
