"""Our clients as users with ACLs: situations of Kafka's AuthorizerIntegrationTest that concern the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers import Wire, unique

import odradek
import odradek.aio
from odradek.broker.settings.protection import AUTHORIZER, STANDARD_AUTHORIZER
from odradek.client.model import NewTopic
from odradek.core.access.acl import CLUSTER_NAME, Operation, Pattern, Permission, Resource
from odradek.core.errors import ErrorCode, OdradekError
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
Alter = Callable[..., None]


class Setup:
    """A broker whose clients at INSIDE are super users. ``settings``: those of alice, who has no right."""

    def __init__(self, directory: Path) -> None:
        self._ports = reserve_ports(2)
        inside, outside = (f"127.0.0.1:{one.port}" for one in self._ports)
        config = {
            AUTHORIZER: STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "listeners": f"INSIDE://{inside},OUTSIDE://{outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.outside.plain.sasl.jaas.config": f'{PLAIN} user_alice="secret";',
            "group.initial.rebalance.delay.ms": "0",
        }
        self.inside = inside
        self.broker = BrokerThread(directory, config=config).start()
        self.settings = {
            "bootstrap.servers": outside,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    made = Setup(tmp_path_factory.mktemp("acls"))
    yield made
    made.broker.stop()


@pytest.fixture
def topic(setup: Setup) -> str:
    name = unique("topic")
    with odradek.Admin(setup.inside) as admin:
        admin.create_topics([NewTopic(name, 1)])
    return name


@pytest.fixture
def alter(setup: Setup) -> Iterator[Alter]:
    """Adds an ACL of alice, or removes all of one resource. At the end alice has none."""
    with Wire(setup.inside) as wire:

        def change(
            kind: int,
            name: str,
            operation: int = Operation.WRITE,
            *,
            pattern: int = Pattern.LITERAL,
            denies: bool = False,
            is_removed: bool = False,
        ) -> None:
            if is_removed:
                chosen = {"resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": pattern}
                chosen |= {"principal_filter": "User:alice", "host_filter": None, "operation": 1, "permission_type": 1}
                assert wire.call(31, 3, {"filters": [chosen]}).filter_results[0].matching_acls
                return
            permission = Permission.DENY if denies else Permission.ALLOW
            row = {"resource_type": kind, "resource_name": name, "resource_pattern_type": pattern, "host": "*"}
            row |= {"principal": "User:alice", "operation": operation, "permission_type": permission}
            assert wire.call(30, 3, {"creations": [row]}).results[0].error_code is ErrorCode.none

        yield change
        everything = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1}
        everything |= {"principal_filter": "User:alice", "host_filter": None, "operation": 1, "permission_type": 1}
        wire.call(31, 3, {"filters": [everything]})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_without_any_right_is_made_and_closed(setup: Setup, protocol: str) -> None:
    given = setup.settings | {"group.id": "g", "group.protocol": protocol}
    odradek.Consumer(given).close()

    async def work() -> None:
        await odradek.aio.Consumer(given).close()

    asyncio.run(work())


def test_an_idempotent_producer_with_the_rights_of_cluster_and_topic(setup: Setup, topic: str, alter: Alter) -> None:
    alter(Resource.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE)
    alter(Resource.TOPIC, topic)
    with odradek.Producer(setup.settings) as producer:
        assert producer.send(topic, value=b"1").result(20).offset == 0


def test_a_producer_that_was_refused_goes_on_when_the_denial_is_gone(setup: Setup, topic: str, alter: Alter) -> None:
    """One producer: it begins with a denial of all topics, then gets permissions by a prefix and by the name."""
    alter(Resource.TOPIC, "*", denies=True)
    with odradek.Producer(setup.settings) as producer:
        with pytest.raises(OdradekError, match=r"(?i)authoriz"):
            producer.send(topic, value=b"1").result(20)
        alter(Resource.TOPIC, "*", is_removed=True)
        alter(Resource.TOPIC, "t", pattern=Pattern.PREFIXED)
        alter(Resource.TOPIC, topic)
        assert producer.send(topic, value=b"2").result(20).offset == 0
