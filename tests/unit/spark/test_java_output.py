"""What Spark's workers say about kernels reaches the user: Java's standard error is only in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.brokers import eventually

from odradek.batches.kernels.kernel_loader import COMPILING
from odradek.spark.startup import java_output
from odradek.spark.startup.java_output import JavaOutput


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_output, "_LOOK_EVERY_S", 0.01)


@pytest.mark.parametrize("notice", COMPILING)
@pytest.mark.parametrize("shows", [True, False])
def test_the_first_line_about_a_compilation_is_shown(
    notice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, shows: bool
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{notice}: of an earlier session\n")
    printed = JavaOutput(log)
    printed.shows = shows
    with log.open("a") as file:
        for piece in (f"26/11/30 WARN {notice}\n{notice[:9]}", f"{notice[9:]}: now\n{notice}: again\n"):
            file.write(piece)
            file.flush()
    os.write(printed.write, b"table\n")
    eventually(lambda: "table" in log.read_text(), what="the copy")
    seen = ["", ""]

    def read() -> bool:
        out, error = capsys.readouterr()
        seen[:] = seen[0] + out, seen[1] + error
        return not shows or "\n" in seen[1]

    eventually(read, what="the line")
    printed.close_write_end()
    assert seen[1] == (f"{notice}: now\n" if shows else ""), "on no terminal"
    assert seen[0] == ("table\n" if shows else "")
