"""A commit to a Delta table whose outcome is not known is one plain line, whatever deltalake writes."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.logs import LogPosition, OutcomeUnknown, VersionLog
from odradek.pipelines.commit.machine import drive
from odradek.pipelines.commit.state import RunTag, TableState

SAID = (
    "Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to open file /t/_delta_log/00.json#1\n"
    "  \x1b[31m↳\x1b[0m Operation not permitted (os error 1)\n"
)


def test_the_causes_of_deltalake_are_one_plain_line() -> None:
    base = LogPosition(3, TableState())

    def perform(operation: Any) -> Any:
        if isinstance(operation, op.CommitVersion):
            raise OSError(SAID)
        return base

    change = op.TableChange(RunTag(1, f"{1:08x}"))
    with pytest.raises(OutcomeUnknown) as failed:
        drive(VersionLog("Delta table /t").append(base, change), perform)
    assert str(failed.value).startswith(
        "the Delta table /t cannot be written: Generic LocalFileSystem error: Unable to open file "
        "/t/_delta_log/00.json#1: Operation not permitted (os error 1). It is not known whether its log will have"
    )


def test_an_overtaken_commit_that_a_read_does_not_show_names_a_cause() -> None:
    base = LogPosition(3, TableState())
    change = op.TableChange(RunTag(1, f"{1:08x}"))
    with pytest.raises(OutcomeUnknown, match=r"cannot be written: another commit was faster. It is not known"):
        drive(
            VersionLog("/t").append(base, change),
            lambda operation: base if isinstance(operation, op.ReadVersion) else None,
        )
