"""The ACLs in an order in which a question finds its few ACLs among thousands. Pure.

The ACLs of one pattern are a section, with a list for each principal and host. A question about a name looks at the
section of the literal name, the sections whose prefixes begin the name, from the longest to the shortest, and the
section of the wildcard. The prefixes are sorted, and each one knows the longest other prefix that begins it. So a
search by bisection finds the last prefix that is not after the name; all prefixes of the name are this one or begin it.

Kafka's authorizer goes through the ACLs in this order, too. The order decides which ACL the audit log names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from odradek.acls.rules import DEFAULT_ALLOW, DEFAULT_DENY, Decision, applies
from odradek.core.access.acl import EVERYONE, WILDCARD, Acl, Operation, Pattern, Permission

Section = dict[tuple[str, str], list[Acl]]
"""Principal and host → their ACLs for one pattern, in Kafka's order."""


def _order(acl: Acl) -> tuple[int, bytes, bytes, int]:
    """Kafka's order of the ACLs of one pattern. Java compares texts by their UTF-16 units."""
    return acl.operation, _units(acl.principal), _units(acl.host), acl.permission


def _units(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


class _OneType:
    """The ACLs of one type of resources."""

    def __init__(self) -> None:
        self.literal: dict[str, Section] = {}
        self.prefixed: dict[str, Section] = {}
        self._prefixes: list[str] = []
        self._parents: dict[str, str | None] = {}

    def add(self, acl: Acl) -> None:
        if acl.pattern == Pattern.PREFIXED and acl.name not in self.prefixed:
            self._add_prefix(acl.name)
        section = self._sections(acl).setdefault(acl.name, {})
        present = section.setdefault((acl.principal, acl.host), [])
        if present:
            insort(present, acl, key=_order)
        else:
            present.append(acl)

    def remove(self, acl: Acl) -> None:
        sections = self._sections(acl)
        section = sections[acl.name]
        who = acl.principal, acl.host
        section[who].remove(acl)
        if not section[who]:
            del section[who]
        if not section:
            del sections[acl.name]
            if acl.pattern == Pattern.PREFIXED:
                self._remove_prefix(acl.name)

    def _sections(self, acl: Acl) -> dict[str, Section]:
        return self.prefixed if acl.pattern == Pattern.PREFIXED else self.literal

    def _add_prefix(self, prefix: str) -> None:
        parent = self._longest_prefix(prefix)
        self._parents[prefix] = parent
        at = bisect_left(self._prefixes, prefix)
        self._prefixes.insert(at, prefix)
        for name in self._extensions(at):
            if self._parents[name] == parent:
                self._parents[name] = prefix

    def _remove_prefix(self, prefix: str) -> None:
        at = bisect_left(self._prefixes, prefix)
        parent = self._parents.pop(prefix)
        for name in self._extensions(at):
            if self._parents[name] == prefix:
                self._parents[name] = parent
        del self._prefixes[at]

    def _extensions(self, at: int) -> Iterator[str]:
        """Yields the prefixes that begin with the one at this place. They follow it."""
        prefixes = self._prefixes
        prefix = prefixes[at]
        for place in range(at + 1, len(prefixes)):
            if not prefixes[place].startswith(prefix):
                return
            yield prefixes[place]

    def _longest_prefix(self, name: str) -> str | None:
        """Returns the longest prefix of the name that has ACLs."""
        at = bisect_right(self._prefixes, name)
        prefix = self._prefixes[at - 1] if at else None
        while prefix is not None and not name.startswith(prefix):
            prefix = self._parents[prefix]
        return prefix

    def sections(self, name: str) -> Iterator[Section]:
        """Yields the sections for a name in the order in which Kafka reads them."""
        if name in self.literal:
            yield self.literal[name]
        prefix = self._longest_prefix(name)
        while prefix is not None:
            yield self.prefixed[prefix]
            prefix = self._parents[prefix]
        if name != WILDCARD and WILDCARD in self.literal:
            yield self.literal[WILDCARD]


class AclIndex:
    """All ACLs. ``allows_unlisted``: whether everyone may use a resource that no ACL names
    (``allow.everyone.if.no.acl.found``)."""

    def __init__(self, acls: Iterable[Acl] = (), *, allows_unlisted: bool = False) -> None:
        self._types: dict[int, _OneType] = {}
        self._otherwise = DEFAULT_ALLOW if allows_unlisted else DEFAULT_DENY
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        """Adds an ACL that is not in the index."""
        self._types.setdefault(acl.resource_type, _OneType()).add(acl)

    def remove(self, acl: Acl) -> None:
        """Removes an ACL. Raises KeyError or ValueError if it is not in the index."""
        self._types[acl.resource_type].remove(acl)

    def decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Decision:
        """Returns whether the principal may do the operation. ``host``: an address as Java writes it."""
        one_type = self._types.get(resource_type)
        if one_type is None:
            return self._otherwise
        allowing: Acl | None = None
        is_listed = False
        for section in one_type.sections(name):
            is_listed = True
            for acl in _of(section, principal, host):
                if applies(acl, operation):
                    if acl.permission != Permission.ALLOW:
                        return Decision(False, acl)
                    allowing = acl
        if allowing is not None:
            return Decision(True, allowing)
        return DEFAULT_DENY if is_listed else self._otherwise

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Returns whether the principal may do the operation on at least one resource of the type.

        Only ACLs of this very operation and of ALL count, as in Kafka (``Authorizer.authorizeByResourceType``).
        """
        one_type = self._types.get(resource_type)
        if one_type is None:
            return False
        denied = _named(one_type, principal, host, operation, Permission.DENY)
        allowed = _named(one_type, principal, host, operation, Permission.ALLOW)
        if WILDCARD in denied[Pattern.LITERAL]:
            return False
        if WILDCARD in allowed[Pattern.LITERAL]:
            return True
        prefixes = denied[Pattern.PREFIXED]
        free = allowed[Pattern.LITERAL] - denied[Pattern.LITERAL] | allowed[Pattern.PREFIXED]
        return any(not any(name[:length] in prefixes for length in range(1, len(name) + 1)) for name in free)


def _of(section: Section, principal: str, host: str) -> Sequence[Acl]:
    """Returns the ACLs for a principal and a host, in Kafka's order."""
    whos = {(principal, host), (principal, WILDCARD), (EVERYONE, host), (EVERYONE, WILDCARD)}
    groups = [section[who] for who in whos if who in section]
    if len(groups) > 1:
        return sorted(chain.from_iterable(groups), key=_order)
    return groups[0] if groups else ()


def _named(one_type: _OneType, principal: str, host: str, operation: int, permission: int) -> dict[int, set[str]]:
    """Returns the names in the ACLs for the operation, by pattern."""
    return {
        pattern: {
            name
            for name, section in named.items()
            if any(
                acl.permission == permission and acl.operation in (operation, Operation.ALL)
                for acl in _of(section, principal, host)
            )
        }
        for pattern, named in ((Pattern.LITERAL, one_type.literal), (Pattern.PREFIXED, one_type.prefixed))
    }
