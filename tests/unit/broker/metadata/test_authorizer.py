"""The authorizer of the broker: settings, changes of ACLs, what it keeps, and addresses as Java prints them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.metadata import standard_authorizer as room
from odradek.broker.metadata.standard_authorizer import StandardAuthorizer, java_address
from odradek.broker.publishers.order import authorizer_of
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.protection import AUTHORIZER, STANDARD_AUTHORIZER
from odradek.catalog.acls import CreateAcl, DeleteAcl
from odradek.catalog.delta import Delta
from odradek.catalog.state import CatalogRequest, CatalogState
from odradek.core.access.acl import Acl, Operation, Pattern, Permission, Resource
from odradek.core.effects import result_of
from odradek.core.errors import ConfigError
from odradek.security.principal import Principal

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def asker(name: str = "u", host: str = "/127.0.0.1", kind: str = "User") -> Any:
    return SimpleNamespace(principal=Principal(kind, name), client_host=host, api_name="Fetch")


def acl(name: str = "t", operation: int = READ, permission: int = Permission.ALLOW, **others: Any) -> Acl:
    given = {"principal": "User:u", "host": "*", "pattern": Pattern.LITERAL, "resource_type": Resource.TOPIC} | others
    return Acl(name=name, operation=operation, permission=permission, **given)


class World:
    """A catalogue with an authorizer that follows it."""

    def __init__(self, **settings: Any) -> None:
        self.shard = CatalogState(lambda data: UUID(bytes=data), (1,), UUID(int=9))
        self.authorizer = StandardAuthorizer(**settings)
        self._next = 0

    def change(self, *requests: CatalogRequest) -> Any:
        """Applies requests to the catalogue. Returns the steps of the authorizer."""
        delta = Delta(self.shard)
        for record in [record for request in requests for record in result_of(self.shard.generate(request))]:
            delta.replay(0, record)
        image: Any = SimpleNamespace(acls=lambda: self.shard.acls.by_id)
        return self.authorizer.on_metadata_update(delta, image)

    def add(self, *acls: Acl) -> None:
        self._next += len(acls)
        steps = self.change(*(CreateAcl(UUID(int=self._next - number), each) for number, each in enumerate(acls)))
        list(steps or ())

    def remove(self, gone: Acl) -> None:
        list(self.change(DeleteAcl(self.shard.acls.ids[gone])))

    def allows(self, who: Any, operation: int = READ, name: str = "t") -> bool:
        return self.authorizer.allows(who, operation, Resource.TOPIC, name)


def test_a_change_holds_for_the_next_question() -> None:
    world = World()
    before = world.authorizer.version
    assert not world.allows(asker())
    world.add(acl())
    assert world.allows(asker())
    assert world.authorizer.version > before
    world.add(acl(permission=Permission.DENY))
    assert not world.allows(asker())
    world.remove(acl(permission=Permission.DENY))
    assert world.allows(asker())
    world.remove(acl())
    assert not world.allows(asker())
    assert world.authorizer.allows_any(asker(), READ, Resource.TOPIC) is False
    world.add(acl("other"))
    assert world.authorizer.allows_any(asker(), READ, Resource.TOPIC) is True


def test_a_change_that_adds_no_acl_changes_nothing() -> None:
    world = World()
    world.add(acl())
    version = world.authorizer.version
    assert world.change(CreateAcl(UUID(int=99), acl())) is None
    assert world.authorizer.version == version


def test_within_a_change_denials_come_before_permissions() -> None:
    """One request gives a permission for all topics and denies one of them. No request comes between the two."""
    world = World()
    secret = acl("secret", permission=Permission.DENY)
    everything = acl("*")
    steps = world.change(CreateAcl(UUID(int=1), everything), CreateAcl(UUID(int=2), secret))
    replaced: list[Acl | None] = []
    replace = world.authorizer._replace

    def note(acl_id: Any, present: Acl | None, new: Acl | None) -> None:
        replaced.append(new)
        replace(acl_id, present, new)

    world.authorizer._replace = note
    list(steps)
    assert replaced == [secret, everything]


def test_super_users_may_do_everything_and_defaults_decide_about_unlisted_resources() -> None:
    world = World(super_users=["User:root"], allows_unlisted=True)
    denied = acl("t", permission=Permission.DENY, principal="User:*")
    assert world.allows(asker())
    world.add(denied)
    assert not world.allows(asker())
    assert world.allows(asker(), name="other")
    assert world.allows(asker("root"))
    assert not world.allows(asker("root", kind="Group"))
    assert world.authorizer.allows_any(asker("root"), WRITE, Resource.TOPIC)


def test_operations_are_the_bits_of_the_asker() -> None:
    world = World()
    world.add(acl(operation=READ), acl(operation=Operation.ALTER_CONFIGS))
    bits = {READ, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS}
    assert world.authorizer.operations(asker(), Resource.TOPIC, "t") == sum(1 << each for each in bits)
    assert world.authorizer.operations(asker("v"), Resource.TOPIC, "t") == 0


def test_the_kept_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_DECISIONS", 10)
    world = World()
    for number in range(100):
        world.allows(asker(), name=f"t{number}")
        assert len(world.authorizer.decisions) <= 10
    world.allows(asker(), name="x" * 30_000)
    assert all(len(key[4]) <= 249 for key in world.authorizer.decisions)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::ff00:42:8329", "2001:db8:0:0:0:ff00:42:8329"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("", ""),
    ],
)
def test_addresses_are_those_of_java(address: str, text: str) -> None:
    assert java_address(address) == text


def test_the_settings_select_the_authorizer() -> None:
    assert authorizer_of(BrokerConfig()) is None
    settings = {AUTHORIZER: STANDARD_AUTHORIZER, "super.users": " User:a ;User:CN=b,O=c:d; "}
    made = authorizer_of(BrokerConfig(settings))
    assert made is not None
    assert made.super_users == {"User:a", "User:CN=b,O=c:d"}
    assert not made.allows(asker(), READ, Resource.TOPIC, "t")
    open_to_all = authorizer_of(
        BrokerConfig({AUTHORIZER: STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"})
    )
    assert open_to_all is not None
    assert open_to_all.allows(asker(), READ, Resource.TOPIC, "t")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({AUTHORIZER: "com.example.Authorizer"}, f"{AUTHORIZER}: this broker has no class 'com.example.Authorizer'"),
        ({AUTHORIZER: STANDARD_AUTHORIZER, "super.users": "admin"}, "super.users: 'admin' is no principal"),
        (
            {"super.users": "User:admin"},
            f"super.users: no authorizer is set, so it would protect nothing; set {AUTHORIZER}",
        ),
    ],
)
def test_a_setting_without_meaning_stops_the_start(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(settings)
    assert str(refused.value).startswith(complaint)
    assert "\n" not in str(refused.value)


def test_commas_between_super_users_have_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = {AUTHORIZER: STANDARD_AUTHORIZER, "super.users": "User:a,User:b;User:CN=c,O=d;User:e"}
    made = StandardAuthorizer.of(BrokerConfig(settings))
    assert made.super_users == {"User:a,User:b", "User:CN=c,O=d", "User:e"}, "as in Kafka"
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == "super.users: 'User:a,User:b' is one user; semicolons separate users, as in User:a;User:b"
