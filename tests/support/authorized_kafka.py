"""Apache Kafka with ACLs: a listener for a user with a password, and one where clients may do everything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bench.apache import ApacheBroker
from odradek.testing.ports import reserve_ports

USER, SECRET = "lake", "lake-secret"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class UserRight(NamedTuple):
    """An operation on a resource. ``is_prefix``: ``name`` is the beginning of names."""

    kind: ResourceType
    name: str
    operation: AclOperation
    is_prefix: bool = False

    def binding(self) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if self.is_prefix else ResourcePatternType.LITERAL
        return AclBinding(self.kind, self.name, pattern, f"User:{USER}", "*", self.operation, AclPermissionType.ALLOW)


class AuthorizedKafka(ApacheBroker):
    """``settings``: those of the user's clients. At ``bootstrap``, clients may do everything."""

    def __init__(self, directory: Path) -> None:
        (self._reserved,) = reserve_ports(1)
        config = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.user.plain.sasl.jaas.config": f'{_PLAIN} required user_{USER}="{SECRET}";',
            "group.initial.rebalance.delay.ms": "0",
        }
        super().__init__(directory, config, heap="512m")
        own = directory / "server.properties"
        text = own.read_text()
        controller = next(line for line in text.splitlines() if line.startswith("listeners=")).rpartition(":")[2]
        mine = f"PLAINTEXT://127.0.0.1:{self.port},USER://127.0.0.1:{self._reserved.port}"
        own.write_text(
            f"{text}listeners={mine},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners={mine}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,USER:SASL_PLAINTEXT\n"
        )

    @property
    def user_address(self) -> str:
        return f"127.0.0.1:{self._reserved.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{_PLAIN} required username="{USER}" password="{SECRET}";',
        }

    def allow(self, rights: Iterable[UserRight]) -> None:
        """Gives the user these rights, and no others."""
        client = AdminClient({"bootstrap.servers": self.bootstrap})
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for done in client.delete_acls([everything]).values():
            done.result(30)
        for done in client.create_acls([right.binding() for right in rights]).values():
            done.result(30)
