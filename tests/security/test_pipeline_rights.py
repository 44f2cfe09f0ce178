"""``ingest --fence-commits`` on Apache Kafka with ACLs: the rights of docs/security.md suffice. Without one of them, a
line names it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from support.authorized_kafka import AuthorizedKafka, UserRight
from support.brokers import eventually, unique
from support.publish import create_topic, publish

from bench.apache import Unavailable
from odradek.client.admin import Admin
from odradek.core.errors import OdradekError
from odradek.pipelines import ingest
from odradek.pipelines.ingestion.job import Ingested
from odradek.spark.offsets.commit_refusal import TABLE_ID_PREFIX

pytestmark = pytest.mark.slow
COUNT = 30


@dataclass
class RightsRun:
    """A topic, a group and a table on a cluster with ACLs."""

    kafka: AuthorizedKafka
    spark: Any
    output: Path
    topic: str
    group: str

    @property
    def read_topic(self) -> UserRight:
        return UserRight(ResourceType.TOPIC, self.topic, AclOperation.READ)

    @property
    def read_group(self) -> UserRight:
        return UserRight(ResourceType.GROUP, self.group, AclOperation.READ)

    @property
    def write_ids(self) -> UserRight:
        return UserRight(ResourceType.TRANSACTIONAL_ID, TABLE_ID_PREFIX, AclOperation.WRITE, is_prefix=True)

    def allow(self, *rights: UserRight) -> None:
        self.kafka.allow(rights)

    def run(self, **more: Any) -> Ingested:
        options = {f"kafka.{name}": value for name, value in self.kafka.settings.items()}
        given = {"topics": self.topic, "group": self.group, "output": self.output, "fence_commits": True, **more}
        return ingest(self.kafka.user_address, spark=self.spark, options=options, **given)

    def committed(self) -> int:
        with Admin(self.kafka.bootstrap) as admin:
            return sum(one.offset for one in admin.list_group_offsets(self.group).values())

    def refusal(self) -> str:
        """What a run says that ends with an error."""
        with pytest.raises(OdradekError) as refused:
            self.run()
        said = str(refused.value)
        assert "\n" not in said
        return said


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizedKafka]:
    try:
        running = AuthorizedKafka(tmp_path_factory.mktemp("authorized"))
        running.start()
    except Unavailable as why:
        pytest.skip(f"no Apache Kafka: {why}")
    yield running
    running.kill()


@pytest.fixture
def rights(kafka: AuthorizedKafka, spark: Any, tmp_path: Path) -> RightsRun:
    topic = unique("rights")
    eventually(lambda: _is_created(kafka, topic), within_s=60, what="a topic")
    publish(kafka.bootstrap, topic, [b"%d" % number for number in range(COUNT)])
    return RightsRun(kafka, spark, tmp_path / "table", topic, unique("lake"))


def _is_created(kafka: AuthorizedKafka, topic: str) -> bool:
    create_topic(kafka.bootstrap, topic, 2)
    return True


def test_the_listed_rights_suffice(rights: RightsRun) -> None:
    rights.allow(rights.read_topic, rights.read_group, rights.write_ids)
    done = rights.run()
    assert (done.rows, done.group.is_committed) == (COUNT, True), done.group
    assert rights.committed() == COUNT
    publish(rights.kafka.bootstrap, rights.topic, [b"more"] * 5)
    assert rights.run().rows == 5
    assert rights.committed() == COUNT + 5


def test_without_fences_no_right_on_transactional_ids_is_needed(rights: RightsRun) -> None:
    rights.allow(rights.read_topic, rights.read_group)
    done = rights.run(fence_commits=False)
    assert (done.rows, done.group.is_committed) == (COUNT, True), done.group
    assert rights.committed() == COUNT


@pytest.mark.parametrize("left", ["nothing", "Describe"])
def test_without_the_right_on_transactional_ids_the_table_is_complete(left: str, rights: RightsRun) -> None:
    given = [rights.read_topic, rights.read_group]
    if left == "Describe":
        given.append(rights.write_ids._replace(operation=AclOperation.DESCRIBE))
    rights.allow(*given)
    done = rights.run()
    assert (done.rows, done.group.is_committed) == (COUNT, False)
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in done.group.why
    assert (
        f"Allow the user Write and Describe on transactional ids with the prefix {TABLE_ID_PREFIX}" in done.group.remedy
    )
    assert rights.committed() == 0
    rights.allow(rights.read_topic, rights.read_group, rights.write_ids)
    again = rights.run()
    assert (again.rows, again.group.is_committed) == (0, True)
    assert rights.committed() == COUNT


def test_without_any_right_on_the_group_the_run_ends_before_spark(rights: RightsRun) -> None:
    rights.allow(rights.read_topic, rights.write_ids)
    assert f"Allow the user Read on group {rights.group}" in rights.refusal()
    assert not rights.output.exists(), "a refused run leaves no folder"


def test_a_user_who_may_only_describe_the_group_gets_a_complete_table(rights: RightsRun) -> None:
    rights.allow(rights.read_topic, rights.write_ids, rights.read_group._replace(operation=AclOperation.DESCRIBE))
    done = rights.run()
    assert (done.rows, done.group.is_committed) == (COUNT, False)
    assert f"Allow the user Read on group {rights.group}" in done.group.remedy
    assert rights.committed() == 0


def test_without_any_right_on_the_topic_the_run_ends_before_spark(rights: RightsRun) -> None:
    rights.allow(rights.read_group, rights.write_ids)
    said = rights.refusal()
    assert rights.topic in said
    assert "the user may not read the topics" in said
    assert "Allow the user Read on the topics" in said
    assert not rights.output.exists()


def test_a_user_who_may_only_describe_the_topic_needs_to_read_it(rights: RightsRun) -> None:
    rights.allow(rights.read_group, rights.write_ids, rights.read_topic._replace(operation=AclOperation.DESCRIBE))
    said = rights.refusal()
    assert "TOPIC_AUTHORIZATION_FAILED" in said
    assert "Allow the user Read on the topics that are read" in said
    assert rights.committed() == 0
