"""A node uses its quorum by ``MetadataQuorum`` alone, so that a quorum of another kind needs to share no code."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.memory_files import MemoryFiles

from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata.quorum import InThread, LoneQuorum, MetadataQuorum, Quorums
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import MetadataConfig
from odradek.broker.node.writer_role import WriterRole
from odradek.broker.remote.observer_quorum import ObserverQuorum
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.cluster.metadata_log.log_observer import LogObserver
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE

MEMBERS = {name for name in vars(MetadataQuorum) if not name.startswith("_")}


class ForeignQuorum:
    """Has the members of the protocol and no others."""

    def __init__(self, behind: MetadataQuorum) -> None:
        self._behind = behind
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name not in MEMBERS:
            raise AttributeError(f"MetadataQuorum has no {name}")
        self.used.add(name)
        return getattr(self._behind, name)


class ForeignQuorums(Quorums):
    def __init__(self) -> None:
        self.made: list[ForeignQuorum] = []

    def quorum_of(self, stored: StoredCatalog, node_id: int, in_thread: InThread) -> MetadataQuorum:
        self.made.append(ForeignQuorum(super().quorum_of(stored, node_id, in_thread)))
        return self.made[-1]


def test_a_broker_runs_on_a_quorum_that_has_only_the_members_of_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorums = ForeignQuorums()
    monkeypatch.setattr(WriterRole, "quorums", quorums)

    async def run(names: list[str]) -> None:
        broker = BrokerServer(BrokerConfig(), tmp_path / "data", ("127.0.0.1", 0))
        await broker.start()
        try:
            assert sorted(topic.name for topic in broker.catalog.topics()) == names
            broker.create_topic(f"flights-{len(names)}", partition_count=2)
            await broker.run_due_alarms()
        finally:
            await broker.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run([]))
        runner.run(run(["flights-0"]))
    assert len(quorums.made) == 2
    for quorum in quorums.made:
        assert quorum.used >= {"append", "at_once", "is_newest", "is_syncing"}


def test_an_observer_appends_nothing_and_shares_no_code_with_a_lone_quorum() -> None:
    files = MemoryFiles()
    copy = ObserverLog.open_copy(
        Path("/broker"), lambda *_: None, (100,), now_ms=lambda: 5, files=files, config=MetadataConfig()
    )
    quorum: MetadataQuorum = ObserverQuorum(copy, LogObserver(copy, copy.leader_epoch, -1, 0))
    assert not isinstance(quorum, LoneQuorum)
    assert all(hasattr(quorum, name) for name in MEMBERS)
    before = {path: bytes(data) for path, data in files.data.items()}
    with quorum.at_once():
        refused = quorum.append([b"record"], 1).value
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.not_controller
    assert (quorum.is_syncing, quorum.leader, quorum.is_newest(0)) == (False, NO_NODE, False)
    assert {path: bytes(data) for path, data in files.data.items()} == before
    copy.metadata_log.close()
