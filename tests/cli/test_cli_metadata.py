"""``odradek metadata``: what a stranger does with a damaged data directory."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from support.catalogs import lone_quorum, written

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata.lone_broker import BeginEpochs
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.replay import DamagedMetadata
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.publishers.logs import PartitionLogs
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CreateTopic
from odradek.cli.main import run
from odradek.core.errors import StorageError

LOG = Path(DIRECTORY) / "00000000000000000000.log"


def served(data_dir: Path, *create: str) -> list[str]:
    """Starts and stops a broker's logs, with new topics. Returns all topics."""
    directory = LogDirectory(data_dir, lambda: 1_700_000_000_000)
    try:
        directory.acquire(BrokerConfig())
        catalog = directory.open_catalog()
        logs = PartitionLogs(directory, BrokerConfig(), lambda: catalog.apply(BeginEpochs()), lone_quorum(catalog))
        loader = MetadataLoader(catalog.catalog, [logs, catalog.catalog])
        loader.load()
        for number, name in enumerate(create, 1):
            change = Change(catalog.catalog.state)
            finish(change.add(CreateTopic(name, UUID(int=number), 1, 1)))
            finish(loader.commit(written(catalog, change), change.records))
        names = sorted(topic.name for topic in catalog.catalog.topics())
        catalog.close()
        directory.close()
        return names
    finally:
        directory.lock.release()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    served(tmp_path, "precious", "other")
    return tmp_path


def test_a_damaged_log_is_checked_repaired_and_taken_back(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data_dir / LOG
    whole = path.read_bytes()
    path.write_bytes(bytes(100) + whole[100:])
    with pytest.raises(DamagedMetadata, match="only directories name the topics precious") as stopped:
        served(data_dir)
    assert f"odradek metadata repair --data-dir {data_dir}" in str(stopped.value)
    assert run(["metadata", "check", "--data-dir", str(data_dir)]) == 1
    assert "lost: offset" in capsys.readouterr().out
    assert run(["metadata", "repair", "--data", str(data_dir)]) == 2, "without a terminal and --yes it only shows"
    shown = capsys.readouterr()
    assert "take the topic precious (partitions: 1) from its directories" in shown.out
    assert "--yes" in shown.err
    assert path.exists()
    assert run(["metadata", "repair", "--data-dir", str(data_dir), "--yes"]) == 0
    assert run(["metadata", "check", "--data-dir", str(data_dir)]) == 0
    assert served(data_dir) == ["other", "precious"]
    capsys.readouterr()
    assert run(["metadata", "strays", "--data-dir", str(data_dir), "--json"]) == 0
    (copy,) = json.loads(capsys.readouterr().out)
    assert copy["topic"] == "__cluster_metadata"
    assert (data_dir / copy["directory"] / LOG.name).read_bytes() == path.read_bytes() if path.exists() else True
    assert run(["metadata", "strays", "--data-dir", str(data_dir), "--restore", copy["directory"], "--yes"]) == 0
    assert (data_dir / LOG).read_bytes() == bytes(100) + whole[100:], "the repair is undone"
    assert run(["metadata", "repair", "--data-dir", str(data_dir), "--yes"]) == 0
    assert served(data_dir) == ["other", "precious"]


@pytest.mark.parametrize("field", ["cluster.id", "directory.id", "node.id", None, ""])
def test_lost_or_foreign_meta_properties_stop_the_start_and_come_back(
    data_dir: Path, field: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data_dir / "meta.properties"
    whole = path.read_text()
    if field is None:
        path.unlink()
    else:
        lines = [
            line.replace("=", "=7", 1) if field and line.startswith(field) else line for line in whole.splitlines()
        ]
        path.write_text("\n".join(lines) if field else "")
    with pytest.raises(StorageError, match=r"meta\.properties") as stopped:
        served(data_dir)
    assert f"odradek metadata repair --data-dir {data_dir}" in str(stopped.value)
    assert run(["metadata", "repair", "--data-dir", str(data_dir), "--yes"]) == 0
    assert sorted(path.read_text().splitlines()) == sorted(whole.splitlines())
    assert served(data_dir) == ["other", "precious"]
    capsys.readouterr()


def test_a_removed_metadata_log_is_made_from_the_directories(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the mark, as in the directory of an earlier release, and without meta.properties."""
    for file in (data_dir / DIRECTORY).iterdir():
        file.unlink()
    (data_dir / "metadata-recovery-point").unlink()
    (data_dir / "meta.properties").unlink()
    before = sorted(path.name for path in data_dir.iterdir())
    with pytest.raises(StorageError, match="no metadata log"):
        served(data_dir)
    assert sorted(path.name for path in data_dir.iterdir()) == before
    assert run(["metadata", "repair", "--data-dir", str(data_dir), "--yes"]) == 0
    assert served(data_dir) == ["other", "precious"]
    capsys.readouterr()


def test_a_directory_in_use_and_one_that_is_missing_are_refused(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = LogDirectory(data_dir, lambda: 0)
    directory.lock.acquire()
    assert run(["metadata", "check", "--data-dir", str(data_dir)]) == 2
    assert "is held by another broker" in capsys.readouterr().err
    directory.lock.release()
    assert run(["metadata", "check", "--data-dir", str(tmp_path / "missing")]) == 2
    assert f"--data-dir {tmp_path / 'missing'} does not exist: give the folder" in capsys.readouterr().err
    (tmp_path / "other" / "pytest-0").mkdir(parents=True)  # the name of a partition's folder, and no file of one
    assert run(["metadata", "check", "--data-dir", str(tmp_path / "other")]) == 2
    assert "is not the data directory of a broker" in capsys.readouterr().err
    assert run(["metadata", "strays", "--data-dir", str(data_dir), "--restore", "x", "--yes"]) == 2
    assert "there is no directory with -stray of x" in capsys.readouterr().err
    assert run(["metadata", "repair", "--data-dir", str(data_dir)]) == 0
    assert run(["metadata", "strays", "--data-dir", str(data_dir)]) == 0
