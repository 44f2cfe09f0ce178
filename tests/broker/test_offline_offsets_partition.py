"""A partition of an internal topic that has lost records is offline and named until a person accepts the loss."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest
from support.damaged_directories import Golden, build, observe, started

from odradek.cli.main import main
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OFFSETS_TOPIC


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


PARTITION = f"{OFFSETS_TOPIC}-0"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return build(tmp_path_factory.mktemp("golden"))


def test_an_offsets_partition_that_lost_its_end_is_offline_until_the_loss_is_accepted(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = observe(Path(shutil.copytree(golden.clean, tmp_path / "whole")))
    data = Path(shutil.copytree(golden.clean, tmp_path / "data"))
    max((data / PARTITION).glob("*.log")).unlink()

    async def serve() -> None:
        broker = await started(data)
        try:
            partition = broker.partition(OFFSETS_TOPIC, 0)
            assert partition is not None
            with pytest.raises(KafkaError) as caught:
                _ = partition.log
            assert caught.value.code is ErrorCode.kafka_storage_error
            groups = broker.coordinators.of_key_type(0)
            assert groups is not None
            lost = [group for group, _, _ in whole.commits[PARTITION]]
            kept = [group for group, _, _ in whole.commits[f"{OFFSETS_TOPIC}-1"]]
            assert lost
            assert kept
            assert {groups.leader_of(group) for group in lost} == {-1}  # FindCoordinator: COORDINATOR_NOT_AVAILABLE
            assert {groups.leader_of(group) for group in kept} == {broker.node_id}
        finally:
            await broker.stop()

    for _ in range(2):  # a restart of the broker does not lose the witnesses
        caplog.clear()
        with caplog.at_level(logging.ERROR, "odradek"):
            asyncio.run(serve())
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert PARTITION in line
        assert f"odradek log accept --data-dir {data} {PARTITION}" in line
    assert exit_code("log", "check", "--data-dir", str(data)) == 1
    assert f"`odradek log accept {PARTITION} --data-dir {data}`" in capsys.readouterr().out
    assert exit_code("log", "accept", "--data-dir", str(data), PARTITION) != 0  # no terminal to ask at
    assert exit_code("log", "accept", "--data-dir", str(data), PARTITION, "--yes") == 0
    assert exit_code("log", "check", "--data-dir", str(data)) == 0
    assert "The logs are whole" in capsys.readouterr().out
    found = observe(data)
    assert not found.offline
    assert not found.unreadable
    assert set(found.commits[PARTITION]) <= set(whole.commits[PARTITION])
    assert found.commits[f"{OFFSETS_TOPIC}-1"] == whole.commits[f"{OFFSETS_TOPIC}-1"]
    assert {key: rows for key, rows in found.records.items() if key[0] != PARTITION} == {
        key: rows for key, rows in whole.records.items() if key[0] != PARTITION
    }
