"""What the broker asks an authorizer. ``settings/protection.AUTHORIZERS`` has the authorizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol, Self

    from odradek.broker.metadata.catalog_view import Publisher
    from odradek.broker.settings.config import BrokerConfig
    from odradek.security.principal import Principal

    # For type checks only: at run time the Protocols would occupy kilobytes.

    class Asker(Protocol):
        """The request of a client. ``client_host``: its address after a slash."""

        @property
        def client_host(self) -> str: ...

        @property
        def principal(self) -> Principal: ...

        @property
        def api_name(self) -> str: ...

    class Authorizer(Publisher, Protocol):
        """As a publisher, it follows the ACLs of the catalogue. ``version`` grows with each change of its answers."""

        version: int

        @classmethod
        def of(cls, config: BrokerConfig) -> Self:
            """Returns the authorizer with these settings."""
            ...

        @property
        def logs_grants(self) -> bool:
            """Whether the audit log has allowed operations, too: then each question has to be asked."""
            ...

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
            """Returns whether a client may do an operation. ``count``: how often the request names the resource.

            ``logs_grant`` and ``logs_denial``: whether the audit log has an allowed or a denied operation. A question
            whose answer only leaves something out of a list is no access.
            """
            ...

        def allows_any(self, asker: Asker, operation: int, resource_type: int) -> bool:
            """Returns whether a client may do an operation on at least one resource of the type."""
            ...

        def operations(self, asker: Asker, resource_type: int, name: str) -> int:
            """Returns the operations that a client may do with a resource, as the bits of a reply."""
            ...
