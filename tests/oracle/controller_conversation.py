"""Conversations with a controller: requests of brokers that do not exist, the replies, and the records that follow.

The same scenario runs against Apache Kafka (``record_controller``) and against Odradek. A trace has the replies and the
records of the metadata log, in a form without values that differ between runs: broker epochs are named after their
broker and incarnation, ids of topics after their names. NoOp records and the controller's own records are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol
from uuid import UUID

from odradek.catalog.features import AT_FIRST
from odradek.catalog.records import FeatureLevelRecord, MetadataRecord, TopicRecord
from odradek.cluster.records import BrokerRegistrationChangeRecord, NoOpRecord, RegisterControllerRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import METADATA_TOPIC

BROKER_REGISTRATION, BROKER_HEARTBEAT, UNREGISTER_BROKER = 62, 63, 64
ALLOCATE_PRODUCER_IDS, CONTROLLER_REGISTRATION, ASSIGN_REPLICAS_TO_DIRS, ALTER_PARTITION = 67, 70, 73, 56
ELECT_LEADERS, DESCRIBE_QUORUM, UPDATE_RAFT_VOTER, DELETE_CONFIG = 43, 55, 82, 1
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, ALTER_CONFIGS = 19, 20, 37, 44
FEATURES = {name: (0, level) for name, level in AT_FIRST.items()} | {"kraft.version": (0, 1)}
FAR = 1 << 60
"""The offset of a broker that has all records."""
SESSION_MS = 2000
Step = dict[str, Any]
_ISR_FIELDS = (
    "partition_index", "error_code", "leader_id", "leader_epoch", "isr", "leader_recovery_state", "partition_epoch",
)  # fmt: skip


class Connected(Protocol):
    """A blocking connection to the controller."""

    def call(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any: ...


class Conversation:
    """One scenario with one controller.

    ``read_records`` returns all records of the metadata log in order; ``pass_ms`` lets time pass. ``base``: the number
    that all broker ids of this scenario are above.
    """

    def __init__(
        self,
        wire: Connected,
        cluster_id: str,
        read_records: Callable[[], list[MetadataRecord]],
        pass_ms: Callable[[int], None],
        base: int,
    ) -> None:
        self.cluster_id = cluster_id
        self.steps: list[Step] = []
        self._wire = wire
        self._read_records = read_records
        self._pass_ms = pass_ms
        self._base = base
        self._epochs: dict[int, str] = {}
        self._names: dict[str, str] = {}
        self._topics: list[str] = []
        self._epoch_of: dict[int, int] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._seen = len(read_records())

    # --- values -------------------------------------------------------------------------------------------------

    def directory(self, number: int) -> UUID:
        """A directory's id; the same for the same number in this scenario."""
        found = UUID(int=(self._base << 80) + (number << 64) + 1000)
        self._names[str(found)] = f"directory {number}"
        return found

    def incarnation(self, broker: int, number: int) -> UUID:
        found = UUID(int=(self._base << 96) + (broker << 64) + number + 1)
        self._names[str(found)] = f"incarnation {broker}.{number}"
        return found

    def name(self, label: str) -> str:
        return f"{label}-{self._base}"

    # --- requests -----------------------------------------------------------------------------------------------

    def register(self, broker: int, incarnation: int = 0, *, version: int = 4, **changes: Any) -> int:
        """Registers a broker, by default with one directory. Returns its epoch, or -1."""
        given = {
            "broker_id": self._base + broker,
            "cluster_id": self.cluster_id,
            "incarnation_id": self.incarnation(broker, incarnation),
            "listeners": [listener("PLAINTEXT")],
            "log_dirs": [self.directory(broker)],
        }
        reply = self._wire.call(BROKER_REGISTRATION, version, registration(version, given | changes))
        epoch = int(reply.broker_epoch)
        if epoch >= 0 and epoch not in self._epochs:
            self._epochs[epoch] = f"epoch {broker}.{incarnation}"
        if epoch >= 0:
            self._epoch_of[broker] = epoch
        self._note(f"register {broker}.{incarnation} v{version}", reply)
        return epoch

    def epoch(self, broker: int) -> int:
        return self._epoch_of[broker]

    def beat(
        self,
        broker: int,
        *,
        epoch: int | None = None,
        offset: int = FAR,
        fence: bool = False,
        stop: bool = False,
        offline: Iterable[UUID] = (),
        cordoned: Iterable[UUID] | None = None,
        version: int = 2,
    ) -> Any:
        message: dict[str, Any] = {
            "broker_id": self._base + broker,
            "broker_epoch": self._epoch_of[broker] if epoch is None else epoch,
            "current_metadata_offset": offset,
            "want_fence": fence,
            "want_shut_down": stop,
        }
        if version >= 1:
            message["offline_log_dirs"] = list(offline)
        if version >= 2:
            message["cordoned_log_dirs"] = None if cordoned is None else list(cordoned)
        reply = self._wire.call(BROKER_HEARTBEAT, version, message)
        self._note(f"beat {broker} v{version}", reply)
        return reply

    def start(self, *brokers: int, **changes: Any) -> None:
        """Registers brokers and lifts their fences."""
        for broker in brokers:
            self.register(broker, **changes)
            self.beat(broker)

    def unregister(self, broker: int) -> None:
        self._note(f"unregister {broker}", self._wire.call(UNREGISTER_BROKER, 0, {"broker_id": self._base + broker}))

    def update_voter(self, what: str, **changes: Any) -> None:
        """Sends UpdateRaftVoter as the only voter does after its start, with ``changes``; ``epoch``: added to the
        leader epoch. ``what``: the name of the step. A reply names the leader, which is the voter."""
        asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        quorum = self._wire.call(DESCRIBE_QUORUM, 2, {"topics": asked})
        log, own = quorum.topics[0].partitions[0], quorum.nodes[0].listeners[0]
        (voter,) = log.current_voters
        message = {
            "cluster_id": self.cluster_id,
            "current_leader_epoch": log.leader_epoch + changes.pop("epoch", 0),
            "voter_id": log.leader_id,
            "voter_directory_id": voter.replica_directory_id,
            "listeners": [{"name": changes.pop("listener", own.name), "host": own.host, "port": own.port}],
            "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        }
        reply = self._wire.call(UPDATE_RAFT_VOTER, 0, message | changes)
        leader = reply.current_leader
        same = {
            "leader": (leader.leader_id, log.leader_id), "epoch": (leader.leader_epoch, log.leader_epoch),
            "host": (leader.host, own.host), "port": (leader.port, own.port),
        }  # fmt: skip
        shown = {name: "of the leader" if found == expected else found for name, (found, expected) in same.items()}
        self._add(f"update voter: {what}", {"error_code": reply.error_code.name, **shown})

    def allocate(self, broker: int, epoch: int | None = None) -> None:
        epoch = self._epoch_of[broker] if epoch is None else epoch
        message = {"broker_id": self._base + broker, "broker_epoch": epoch}
        reply = self._wire.call(ALLOCATE_PRODUCER_IDS, 0, message)
        shown = {"error_code": reply.error_code.name, "producer_id_len": reply.producer_id_len}
        self._add(f"allocate {broker}", shown | {"producer_id_start": reply.producer_id_start % 1000})

    def register_controller(self, number: int, **changes: Any) -> None:
        message = {
            "controller_id": self._base + number,
            "incarnation_id": self.incarnation(number, 0),
            "zk_migration_ready": False,
            "listeners": [listener("CONTROLLER")],
            "features": ranges(FEATURES),
        } | changes
        self._note(f"register controller {number}", self._wire.call(CONTROLLER_REGISTRATION, 0, message))

    def create(self, label: str, *assignments: Iterable[int], count: int = -1, factor: int = -1) -> None:
        """Creates a topic with these replicas, or with ``count`` partitions."""
        rows = [
            {"partition_index": index, "broker_ids": [self._base + broker for broker in brokers]}
            for index, brokers in enumerate(assignments)
        ]
        topic = {
            "name": self.name(label), "num_partitions": count, "replication_factor": factor, "assignments": rows,
            "configs": [],
        }  # fmt: skip
        self._topics.append(topic["name"])
        reply = self._wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
        self._topic_ids[label] = reply.topics[0].topic_id
        self._add(f"create {label}", {"error_code": reply.topics[0].error_code.name})

    def delete(self, label: str) -> None:
        rows = [{"name": self.name(label), "topic_id": None}]
        reply = self._wire.call(DELETE_TOPICS, 6, {"topics": rows, "timeout": 10_000})
        self._add(f"delete {label}", {"error_code": reply.responses[0].error_code.name})

    def grow(self, label: str, count: int, *assignments: Iterable[int]) -> None:
        rows = [{"broker_ids": [self._base + broker for broker in brokers]} for brokers in assignments]
        topic = {"name": self.name(label), "count": count, "assignments": rows or None}
        reply = self._wire.call(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout": 10_000, "validate_only": False})
        self._add(f"grow {label}", {"error_code": reply.results[0].error_code.name})

    def set(self, label: str, name: str, value: str | None) -> None:
        """Sets a setting of a topic, or of all brokers (""). None removes it."""
        change = {"name": name, "config_operation": 0 if value is not None else DELETE_CONFIG, "value": value}
        resource = {"resource_type": 2, "resource_name": self.name(label), "configs": [change]}
        if not label:
            resource |= {"resource_type": 4, "resource_name": ""}
        reply = self._wire.call(ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
        self._add(f"set {label} {name}={value}", {"error_code": reply.responses[0].error_code.name})

    def assign(
        self, broker: int, directories: Mapping[UUID, Mapping[str, Iterable[int]]], epoch: int | None = None
    ) -> None:
        """Says in which directories a broker has its replicas: directory → topic → partitions."""
        rows = [
            {
                "id_": directory,
                "topics": [
                    {
                        "topic_id": self._topic_ids.get(label, UUID(int=77 << 64)),
                        "partitions": [{"partition_index": index} for index in indexes],
                    }
                    for label, indexes in topics.items()
                ],
            }
            for directory, topics in directories.items()
        ]
        message = {
            "broker_id": self._base + broker,
            "broker_epoch": self._epoch_of[broker] if epoch is None else epoch,
            "directories": rows,
        }
        reply = self._wire.call(ASSIGN_REPLICAS_TO_DIRS, 0, message)
        codes = [
            [[part.error_code.name for part in topic.partitions] for topic in directory.topics]
            for directory in reply.directories
        ]
        self._add(f"assign {broker}", {"error_code": reply.error_code.name, "codes": codes})

    def isr(self, label: str, *members: int | tuple[int, int], **changes: Any) -> Step:
        """The new ISR of a partition, as ``alter`` sends it. A member is a broker, with its present epoch or another.

        ``changes``: ``index``, ``leader_epoch``, ``partition_epoch``, ``recovering``; each is 0 by default."""
        pairs = [(one, self._epoch_of.get(one, -1)) if isinstance(one, int) else one for one in members]
        rows = [{"broker_id": self._base + broker, "broker_epoch": epoch} for broker, epoch in pairs]
        part = {
            "partition_index": changes.get("index", 0),
            "leader_epoch": changes.get("leader_epoch", 0),
            "new_isr_with_epochs": rows,
            "leader_recovery_state": changes.get("recovering", 0),
            "partition_epoch": changes.get("partition_epoch", 0),
        }
        return {"topic_id": self._topic_ids.get(label, UUID(int=77 << 64)), "partitions": [part]}

    def alter(self, broker: int, *asked: Step, epoch: int | None = None, version: int = 3) -> None:
        """Asks for ISRs, as a leader does."""
        if version < 3:
            for part in itertools.chain.from_iterable(topic["partitions"] for topic in asked):
                part["new_isr"] = [row["broker_id"] for row in part.pop("new_isr_with_epochs")]
        message = {
            "broker_id": self._base + broker,
            "broker_epoch": self._epoch_of.get(broker, 5) if epoch is None else epoch,
            "topics": list(asked),
        }
        reply = self._wire.call(ALTER_PARTITION, version, message)
        rows = [
            {name: self._shown(name, getattr(part, name)) for name in _ISR_FIELDS}
            for topic in reply.topics
            for part in topic.partitions
        ]
        self._add(f"alter {broker} v{version}", {"error_code": reply.error_code.name, "partitions": rows})

    def elect(self, kind: int, asked: Mapping[str, Iterable[int]] | None, *, version: int = 2) -> None:
        """Asks for elections: topic → partitions, or all. ``kind``: 0 preferred, 1 unclean."""
        rows = None
        if asked is not None:
            rows = [{"topic": self.name(label), "partitions": list(indexes)} for label, indexes in asked.items()]
        message = {"topic_partitions": rows, "timeout": 10_000} | ({"election_type": kind} if version else {})
        reply = self._wire.call(ELECT_LEADERS, version, message)
        rows = sorted(
            [self._shown("topic", topic.topic), part.partition_id, part.error_code.name, part.error_message]
            for topic in reply.replica_election_results
            for part in topic.partition_result
        )
        named = sorted(self._shown("topic", topic.topic) for topic in reply.replica_election_results)
        shown = {"results": self._shown("rows", rows), "topics": named}
        whole = {"error_code": reply.error_code.name} if version else {}
        self._add(f"elect {kind} v{version}", whole | shown)

    def pass_ms(self, ms: int) -> None:
        self._pass_ms(ms)

    def end_sessions(self, *living: int) -> None:
        """Lets a session pass. The living brokers send heartbeats meanwhile."""
        for _ in range(6):
            self._pass_ms(SESSION_MS // 4)
            for broker in living:
                self._quiet_beat(broker)

    def _quiet_beat(self, broker: int) -> None:
        message = {
            "broker_id": self._base + broker, "broker_epoch": self._epoch_of[broker],
            "current_metadata_offset": FAR, "want_fence": False, "want_shut_down": False, "offline_log_dirs": [],
            "cordoned_log_dirs": None,
        }  # fmt: skip
        reply = self._wire.call(BROKER_HEARTBEAT, 2, message)
        assert reply.error_code is ErrorCode.none, reply

    def close(self) -> None:
        """Removes the topics and brokers of this scenario: the next one has the same controller."""
        rows = [{"name": name, "topic_id": None} for name in dict.fromkeys(self._topics)]
        self._wire.call(DELETE_TOPICS, 6, {"topics": rows, "timeout": 10_000})
        for broker in self._epoch_of:
            self._wire.call(UNREGISTER_BROKER, 0, {"broker_id": self._base + broker})

    def wait_until_active(self) -> None:
        """Waits until the controller is active. An error that it does not expect makes Kafka's controller resign."""
        message = {
            "broker_id": self._base, "broker_epoch": 0, "current_metadata_offset": 0, "want_fence": False,
            "want_shut_down": False, "offline_log_dirs": [], "cordoned_log_dirs": None,
        }  # fmt: skip
        for _ in range(200):
            if self._wire.call(BROKER_HEARTBEAT, 2, message).error_code is ErrorCode.stale_broker_epoch:
                return
            self._pass_ms(100)
        raise AssertionError("the controller is not active")

    # --- the trace ----------------------------------------------------------------------------------------------

    def records(self) -> None:
        """Adds the records since the last call to the trace."""
        found = self._read_records()
        fresh, self._seen = found[self._seen :], len(found)
        shown = [self._shown_record(one) for one in fresh if self._is_ours(one)]
        self.steps.append({"records": _with_fixed_order(shown)})

    def facts(self, what: str, find: Callable[[list[MetadataRecord]], Any]) -> None:
        """Adds what holds for the records since the last call, where chance decides their values."""
        found = self._read_records()
        fresh, self._seen = found[self._seen :], len(found)
        self.steps.append({"facts": what, "found": find(fresh)})

    def own(self, broker_id: int) -> int:
        """The number of a broker in this scenario."""
        return broker_id - self._base

    def _is_ours(self, record: MetadataRecord) -> bool:
        if isinstance(record, RegisterControllerRecord):
            return record.controller_id > self._base
        if isinstance(record, BrokerRegistrationChangeRecord):
            # After ClearElr and a deleted topic, Kafka's controller cannot unregister a broker of an earlier scenario.
            return record.broker_id > self._base
        return not isinstance(record, NoOpRecord | FeatureLevelRecord)

    def _note(self, what: str, reply: Any) -> None:
        left_out = ("throttle_time", "error_message")
        shown = {
            field.name: self._shown(field.name, getattr(reply, field.name))
            for field in fields(reply)
            if field.name not in left_out
        }
        self._add(what, shown)

    def _add(self, what: str, reply: dict[str, Any]) -> None:
        self.steps.append({"request": what, "reply": reply})

    def _shown_record(self, record: MetadataRecord) -> dict[str, Any]:
        if isinstance(record, TopicRecord):
            self._names[str(record.topic_id)] = record.name
        named = fields(record) if is_dataclass(record) else ()
        names = [field.name for field in named] or list(getattr(record, "_fields", ()))
        shown = {name: self._shown(name, getattr(record, name)) for name in names}
        return {"record": type(record).__name__, **{name: value for name, value in shown.items() if value is not None}}

    def _shown(self, name: str, value: Any) -> Any:
        if isinstance(value, ErrorCode):
            return value.name
        if name in ("broker_epoch", "previous_epoch"):
            return self._epochs.get(value, value if value < 0 else "another epoch")
        if name == "next_producer_id":
            return "next"
        if isinstance(value, UUID):
            return self._names.get(str(value), str(value)).replace(f"-{self._base}", "")
        if isinstance(value, tuple | list):
            return [self._shown(name, one) for one in value]
        if isinstance(value, int) and not isinstance(value, bool) and self._base < value < self._base + 100:
            return f"broker {value - self._base}"
        return value.replace(f"-{self._base}", "") if isinstance(value, str) else value


def _with_fixed_order(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorts neighbouring changes of different partitions, and of different brokers: Kafka takes them from hash tables.

    The changes of one partition or broker keep their order."""

    def kind(record: dict[str, Any]) -> str:
        return str(record["record"])

    def place(record: dict[str, Any]) -> tuple[str, ...]:
        return tuple(str(record.get(name)) for name in ("topic_id", "partition_id", "broker_id"))

    runs = (list(run) for _, run in itertools.groupby(shown, kind))
    changes = ("PartitionChangeRecord", "BrokerRegistrationChangeRecord")
    return [one for run in runs for one in (sorted(run, key=place) if kind(run[0]) in changes else run)]


def listener(name: str, host: str = "h", port: int = 9092, protocol: int = 0) -> dict[str, Any]:
    return {"name": name, "host": host, "port": port, "security_protocol": protocol}


def registration(version: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a BrokerRegistration with these fields, as far as the version has them."""
    usual = {"features": ranges(FEATURES), "rack": None, "is_migrating_zk_broker": False, "previous_broker_epoch": -1}
    oldest = {"is_migrating_zk_broker": 1, "log_dirs": 2, "previous_broker_epoch": 3}
    return {name: value for name, value in (usual | dict(given)).items() if oldest.get(name, 0) <= version}


def ranges(features: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """Returns features and their levels as a registration has them."""
    return [
        {"name": name, "min_supported_version": lowest, "max_supported_version": highest}
        for name, (lowest, highest) in features.items()
    ]
