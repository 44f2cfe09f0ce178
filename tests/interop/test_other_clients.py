"""kafkajs, sarama and kafka-go with the broker, which is killed with -9 in the middle.

Each program has the same steps: topics and settings, every codec of the client, a group whose second member joins
later, commits, a restart, a seek, a reset of offsets, deletion of groups, ACLs. Apache Kafka 4.3 passes all
steps, too (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Steps, codecs, compiled, converse, node_modules
from support.brokers import RunningBroker, unique
from support.go_programs import go_program

HERE = Path(__file__).parent
PARTITIONS, EACH = 4, 10
ALL = ["none", "gzip", "snappy", "lz4", "zstd"]


def command_of(client: str, names: list[str]) -> tuple[list[str | Path], dict[str, str]]:
    if client == "kafkajs":
        modules = node_modules(HERE / client)
        if "lz4" in names:
            compiled(modules, "lz4")
        return ["node", HERE / client / "main.js"], {"NODE_PATH": str(modules)}
    return [go_program(HERE / client)], {}


@pytest.mark.parametrize(
    ("client", "names"),
    [
        # The reset of kafkajs waits ten seconds for two empty fetches of its own.
        pytest.param("kafkajs", [name for name in ALL if name != "lz4"], marks=pytest.mark.slow),
        # This codec must be compiled, which is not possible everywhere.
        pytest.param("kafkajs", ["lz4"], marks=pytest.mark.slow),
        # To compile these takes a minute of both processors. In `make test` franz-go is the client for Go.
        pytest.param("sarama", ALL, marks=pytest.mark.slow),
        pytest.param("kafka_go", ALL, marks=pytest.mark.slow),
    ],
)
def test_a_client_works_from_topic_creation_to_group_deletion(
    own_broker: Callable[..., RunningBroker], client: str, names: list[str]
) -> None:
    command, environment = command_of(client, names)
    broker = own_broker()
    topic, group = unique(client), unique(f"{client}-group")
    on_disk: list[list[int]] = []

    def restart() -> None:
        broker.kill()
        on_disk.append(codecs(broker.directory, topic))
        broker.start()

    steps = converse([*command, broker.bootstrap, topic, group, ",".join(names)], restart, **environment)
    check_topics_and_records(steps, names)
    assert on_disk[0] == [ALL.index(name) for name in names], "the broker keeps the codec of each batch"
    check_group(steps, len(names) * EACH)
    assert steps["ending"] == [{"left": [], "acls": "SECURITY_DISABLED"}], "without an authorizer there are no ACLs"


def check_topics_and_records(steps: Steps, names: list[str]) -> None:
    (topics,) = steps["topics"]
    assert sorted(topics.pop("settings")) == ["4", "7200000"], "of the broker and of the topic"
    assert topics == {"created": True, "again": False, "brokers": 1}
    assert [entry["codec"] for entry in steps["produced"]] == [*names, "after"]
    for number, entry in enumerate(steps["produced"], 1):
        assert entry["ends"] == [EACH * number] * PARTITIONS


def check_group(steps: Steps, before: int) -> None:
    """``before``: the records of each partition before the restart."""
    (alone,) = steps["alone"]
    everything = list(range(PARTITIONS))
    assert alone == {"owned": everything, "read": before * 4, "twice": 0, "committed": [before] * PARTITIONS}
    (together,) = steps["together"]
    assert together == {"owned": everything, "state": "Stable", "members": 2, "refused": True}
    (continued,) = steps["continued"]
    end = before + EACH
    assert continued == {"read": end * PARTITIONS, "twice": 0, "committed": [end] * PARTITIONS}
    assert steps["seek"] == [{"first": [1, 17], "count": end - 17}]
    assert steps["reset"] == [{"committed": [0] * PARTITIONS}]
