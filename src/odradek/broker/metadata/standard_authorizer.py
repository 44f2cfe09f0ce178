"""Kafka's StandardAuthorizer: it answers whether a client may do what it asks for, and writes the audit log.

It follows the ACLs of the catalogue as a publisher. ``acls/index`` makes the decisions. They are kept until an ACL
changes, because clients ask the same again and again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

from odradek.acls.index import AclIndex
from odradek.acls.rules import OPERATIONS, SUPER_USER, Decision, resource_text, rule_text
from odradek.broker.loop.scheduler import Steps
from odradek.broker.settings.protection import allows_unlisted, super_users
from odradek.core.access.acl import Acl, Operation, Permission, Resource
from odradek.core.pace import Pace
from odradek.text.log_lines import AUDIT_LOG, escape_controls

if TYPE_CHECKING:
    from odradek.broker.metadata.authorizer import Asker
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta
    from odradek.catalog.records import Id16
    from odradek.security.principal import Principal


audit_log = logging.getLogger(AUDIT_LOG)
"""Kafka's name: denials at INFO, grants at DEBUG."""
audit_log.addFilter(escape_controls)
log = logging.getLogger("odradek.broker")

MAX_DECISIONS, MAX_NAME = 10_000, 249
"""The authorizer keeps this many decisions, about names of no more than this length. So they take less than 20 MiB."""
HARDCODED = "hardcode"
"""A name that stands for all names in a question about a type of resources, as in Kafka."""
_BITS = {
    Resource.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
}  # fmt: skip
"""The operations that replies list for a resource."""


class StandardAuthorizer:
    """``version`` grows with each change of the ACLs."""

    def __init__(self, super_users: Iterable[str] = (), *, allows_unlisted: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self._index = AclIndex(allows_unlisted=allows_unlisted)
        self._acls: dict[Id16, Acl] = {}
        self.decisions: dict[tuple[Principal, str, int, int, str], Decision] = {}
        self._allowed_any: dict[tuple[Principal, str, int, int], bool] = {}
        self.version = 0

    @classmethod
    def of(cls, config: BrokerConfig) -> StandardAuthorizer:
        """Returns the authorizer with the super users and the default of the settings."""
        users = super_users(config.texts)
        for user in users:
            if re.search(r",\s*User:", user):
                log.warning("super.users: %r is one user; semicolons separate users, as in User:a;User:b", user)
        return cls(users, allows_unlisted=allows_unlisted(config.texts))

    # --- ACLs ---------------------------------------------------------------------------------------------------

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> Steps[None] | None:
        """Applies changed ACLs. What denies comes first: no request is allowed more than before and after a change."""
        if not delta.acls:
            return None
        present = cast("Mapping[Id16, Acl]", image.acls())
        return self._apply({acl_id: present.get(acl_id) for acl_id in delta.acls})

    def _apply(self, changes: Mapping[Id16, Acl | None]) -> Steps[None]:
        pace = Pace()
        for denies in (True, False):
            for acl_id, acl in changes.items():
                present = self._acls.get(acl_id)
                if present != acl and _is_restriction(present, acl) is denies:
                    self._replace(acl_id, present, acl)
                if pace.spend():
                    yield None

    def _replace(self, acl_id: Id16, present: Acl | None, acl: Acl | None) -> None:
        if present is not None:
            self._index.remove(present)
            del self._acls[acl_id]
        if acl is not None:
            self._index.add(acl)
            self._acls[acl_id] = acl
        self.version += 1
        self.decisions.clear()
        self._allowed_any.clear()

    @property
    def logs_grants(self) -> bool:
        return audit_log.isEnabledFor(logging.DEBUG)

    # --- questions ----------------------------------------------------------------------------------------------

    def allows(
        self,
        asker: Asker,
        operation: int,
        resource_type: int,
        name: str,
        *,
        count: int = 1,
        logs_grant: bool = True,
        logs_denial: bool = True,
    ) -> bool:
        key = asker.principal, asker.client_host, operation, resource_type, name
        decision = self.decisions.get(key)
        if decision is None:
            decision = self._decide(*key)
        if decision.is_allowed:
            if logs_grant and audit_log.isEnabledFor(logging.DEBUG):
                self._log(logging.DEBUG, asker, key[2:], count, decision)
            return True
        if logs_denial and audit_log.isEnabledFor(logging.INFO):
            self._log(logging.INFO, asker, key[2:], count, decision)
        return False

    def _decide(self, principal: Principal, host: str, operation: int, resource_type: int, name: str) -> Decision:
        who = str(principal)
        if who in self.super_users:
            return SUPER_USER
        decision = self._index.decide(who, java_address(host[1:]), operation, resource_type, name)
        if len(name) <= MAX_NAME:
            if len(self.decisions) >= MAX_DECISIONS:
                self.decisions.clear()
            self.decisions[principal, host, operation, resource_type, name] = decision
        return decision

    def allows_any(self, asker: Asker, operation: int, resource_type: int) -> bool:
        if self.allows(asker, operation, resource_type, HARDCODED, count=0, logs_denial=False):
            return True
        key = asker.principal, asker.client_host, operation, resource_type
        allowed = self._allowed_any.get(key)
        if allowed is None:
            if len(self._allowed_any) >= MAX_DECISIONS:
                self._allowed_any.clear()
            host = java_address(asker.client_host[1:])
            allowed = self._index.allows_any(str(asker.principal), host, operation, resource_type)
            self._allowed_any[key] = allowed
        return allowed

    def operations(self, asker: Asker, resource_type: int, name: str) -> int:
        allowed = [
            operation
            for operation in _BITS[resource_type]
            if self.allows(asker, operation, resource_type, name, logs_grant=False, logs_denial=False)
        ]
        return sum(1 << operation for operation in allowed)

    def _log(self, level: int, asker: Asker, asked: tuple[int, int, str], count: int, decision: Decision) -> None:
        operation, resource_type, name = asked
        audit_log.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s for request = %s with "
            "resourceRefCount = %d based on rule %s",
            asker.principal,
            "Allowed" if decision.is_allowed else "Denied",
            OPERATIONS[operation],
            java_address(asker.client_host[1:]),
            resource_text(resource_type, name),
            asker.api_name,
            count,
            rule_text(decision.rule),
        )


def _is_restriction(present: Acl | None, acl: Acl | None) -> bool:
    """Returns whether a change of an ACL can only take permissions away: a new denial, or a permission that goes."""
    if acl is None:
        return present is not None and present.permission == Permission.ALLOW
    return present is None and acl.permission == Permission.DENY


def java_address(host: str) -> str:
    """Returns an address as Java prints it: the eight numbers of an IPv6 address without ``::``."""
    if ":" not in host:
        return host
    host, percent, zone = host.partition("%")
    address = ip_address(host)
    if (mapped := getattr(address, "ipv4_mapped", None)) is not None:
        return str(mapped)
    return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":")) + percent + zone
