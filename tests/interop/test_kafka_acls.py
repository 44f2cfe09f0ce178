"""The commands of the section on ACLs in docs/security.md, run by Apache Kafka's own tool against our broker.

The user and the administrator log in with SASL/PLAIN, so the broker asks about the users of real logins.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.jvm import KafkaTools
from support.pages import DOCS

import odradek
from odradek.client.model import NewTopic
from odradek.core.errors import OdradekError
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess

TEXT = (DOCS / "security.md").read_text().partition("\n## ACLs\n")[2].partition("\n## ")[0]
PLACE = "kafka.example.com:9093"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = {"admin": "admin-secret", "alice": "alice-secret"}


class AclBroker:
    """``run`` runs a command of the page. ``settings``: those of alice's clients."""

    def __init__(self, folder: Path, tools: KafkaTools) -> None:
        (self._reserved,) = reserve_ports(1)
        place = f"127.0.0.1:{self._reserved.port}"
        users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
        lines = dict(
            line.split("=", 1)
            for line in re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)[0].splitlines()
        )
        config = lines | {
            "listeners": f"INSIDE://127.0.0.1:0,OUTSIDE://{place}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.outside.plain.sasl.jaas.config": f"{PLAIN} {users};",
            "group.initial.rebalance.delay.ms": "0",
        }
        self.process = BrokerProcess(folder, config=config)
        self._folder, self._tools, self._place = folder, tools, place
        self.settings = self._login("alice")
        file = "".join(f"{name}={value}\n" for name, value in {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} username="admin" password="{USERS["admin"]}";',
        }.items())  # fmt: skip
        (folder / "admin.properties").write_text(file)

    def _login(self, user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self._place, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": user, "sasl.password": USERS[user],
        }  # fmt: skip

    def create_topics(self, *names: str) -> None:
        with odradek.Admin(self._login("admin")) as admin:
            admin.create_topics([NewTopic(name, 1) for name in names])

    def run(self, command: str) -> str:
        words = command.replace(PLACE, self._place).replace("admin.properties", str(self._folder / "admin.properties"))
        program, *arguments = shlex.split(words)
        assert program == "kafka-acls.sh"
        done = self._tools.run("org.apache.kafka.tools.AclCommand", *arguments)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def records(self) -> dict[str, int]:
        """The records about ACLs that Kafka's tool reads in our metadata log, by type."""
        segment = self.process.data_dir / "__cluster_metadata-0" / f"{0:020d}.log"
        files = ("--cluster-metadata-decoder", "--files", str(segment))
        dump = self._tools.run("org.apache.kafka.tools.DumpLogSegments", *files).stdout
        assert "malformed" not in dump.lower()
        return dict(Counter(re.findall(r'"type":"((?:REMOVE_)?ACCESS_CONTROL_ENTRY_RECORD)"', dump)))


@pytest.fixture
def broker(tmp_path: Path, kafka_tools: KafkaTools) -> Iterator[AclBroker]:
    made = AclBroker(tmp_path, kafka_tools)
    made.process.start()
    yield made
    made.process.kill()


def sends(broker: AclBroker, topic: str) -> bool:
    try:
        with odradek.Producer(broker.settings) as producer:
            producer.send(topic, value=b"1").result(10)
    except OdradekError as error:
        if "authoriz" not in str(error).lower():
            raise
        return False
    return True


def reads(broker: AclBroker, topic: str, group: str) -> bool:
    settings = broker.settings | {"group.id": group, "auto.offset.reset": "earliest"}
    try:
        with odradek.Consumer(settings) as consumer:
            consumer.subscribe([topic])
            for _ in range(50):
                consumer.poll(0.1)
                if consumer.assignment():
                    return True
    except OdradekError as error:
        if "authoriz" not in str(error).lower():
            raise
        return False
    raise AssertionError("the consumer gets neither partitions nor an error")


def test_the_commands_of_the_page_manage_acls(broker: AclBroker) -> None:
    (block,) = re.findall(r"```\n(kafka-acls.*?)```", TEXT, re.DOTALL)
    commands = block.replace("\\\n", " ").splitlines()
    consume, produce, deny, listing, remove = commands
    broker.create_topics("orders", "invoices.new", "invoices.secret")
    asks: Callable[[], tuple[bool, ...]] = lambda: (  # noqa: E731 -- one question, asked three times
        reads(broker, "orders", "billing"), sends(broker, "invoices.new"), sends(broker, "invoices.secret"),
    )  # fmt: skip
    assert asks() == (False, False, False)
    for command in (consume, produce):
        assert "Adding ACLs" in broker.run(command)
    assert asks() == (True, True, True)
    broker.run(deny)
    assert asks() == (True, True, False)
    listed = broker.run(listing)
    assert "ResourcePattern(resourceType=TOPIC, name=invoices., patternType=PREFIXED)" in listed
    assert "operation=ALL, permissionType=DENY" in listed
    assert listed.count("principal=User:alice") >= 7
    broker.run(remove)
    assert asks() == (False, True, False)
    assert "name=orders" not in broker.run(listing)
    assert broker.records() == {"ACCESS_CONTROL_ENTRY_RECORD": 7, "REMOVE_ACCESS_CONTROL_ENTRY_RECORD": 3}
