"""Losses that a run goes on after are logged once, by whichever process they were found."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.core.ids import TopicPartition
from odradek.pipelines.loss_notes import LossNotes
from odradek.spark.offsets import data_loss
from odradek.spark.offsets.offset_ranges import Range

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_each_loss_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    notes = LossNotes()
    (file,) = notes.options.values()
    data_loss.warn([f"{FIRST}: offsets 3 to 5 are lost (its log starts at 6)"], file)
    notes.show([Range(FIRST, 3, 6), Range(SECOND, 1, 2)])
    data_loss.warn([f"{FIRST}: offsets 3 to 5 are lost (its log starts at 6)"], file)
    notes.show()
    data_loss.warn(["\n t-2: a name with a line feed"], file)
    notes.close()
    data_loss.warn([f"{FIRST}: of a worker that outlives the run"], file)
    logged = [record for record in caplog.records if record.name == "odradek.pipelines"]
    assert [record.getMessage().partition(". The query")[0] for record in logged] == [
        "data may have been lost: t-0: offsets 3 to 5 are lost (its log starts at 6)",
        "data may have been lost: t-1: offset 1 is lost",
        "data may have been lost: \n t-2: a name with a line feed",
    ]
    others = [record for record in caplog.records if record not in logged and record.levelname == "WARNING"]
    assert [record.args for record in others] == [(f"{FIRST}: of a worker that outlives the run",)]


def test_another_machine_makes_no_file(tmp_path: Path) -> None:
    data_loss.warn(["t-0: lost"], str(tmp_path / "losses"))
    assert not list(tmp_path.iterdir())
