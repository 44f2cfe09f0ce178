"""A command says that it compiles kernels, once, and leaves the logger as it was."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from odradek.batches.kernels import kernel_cache
from odradek.cli.main import run
from odradek.cli.pipeline import history as pipeline_history
from odradek.cli.progress_lines import kernel_notice

KERNELS = logging.getLogger("odradek.kernels")


@pytest.fixture(autouse=True)
def _first_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_noted", set())


def compile_kernels() -> None:
    for folder in ("batches", "history"):
        kernel_cache._note_compilation(folder)


@pytest.mark.parametrize("is_shown", [True, False])
def test_one_line_and_warnings(capsys: pytest.CaptureFixture[str], *, is_shown: bool) -> None:
    before = (KERNELS.level, list(KERNELS.handlers))
    with kernel_notice(is_shown=is_shown):
        compile_kernels()
        KERNELS.warning("the kernels do not load")
    lines = ["numba compiles kernels, which takes seconds (once; batches keeps the code)", "the kernels do not load"]
    assert capsys.readouterr().err.splitlines() == (lines if is_shown else [])
    assert (KERNELS.level, KERNELS.handlers) == before


def test_history_says_it_in_a_pipe_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It compiled for eight seconds of processor time, and said only that it reads: on a terminal not even that."""
    monkeypatch.setattr(pipeline_history, "_history", lambda line, seen: compile_kernels())
    assert run(["pipeline", "history", "-b", "127.0.0.1:1", "--report", str(Path("h.html"))]) == 0
    assert capsys.readouterr().err.count("numba compiles kernels") == 1
