"""The time for which readers wait for kernels that a thread loads."""

from __future__ import annotations

import logging
import subprocess
import threading
from typing import Any

import pytest

from odradek.batches.kernels import kernel_loader
from odradek.cli.main import run


class _CountedEvent(threading.Event):
    """Counts the calls of ``wait`` that end before the event is set."""

    expired = 0

    def wait(self, timeout: float | None = None) -> bool:
        found = super().wait(timeout)
        self.expired += not found
        return found


def test_only_one_batch_waits_for_kernels_that_load_slowly(caplog: pytest.LogCaptureFixture) -> None:
    may_end = threading.Event()

    class SlowLoader(kernel_loader.KernelLoader):
        def load(self, *, cached_only: bool) -> bool:
            return may_end.wait()

    loader = SlowLoader(longest_load_s=0.01)
    loader.tried = event = _CountedEvent()
    try:
        for _ in range(10):
            loader.note_decoded_bytes(kernel_loader.WORTH_LOADING_BYTES)
    finally:
        may_end.set()
    assert event.expired == 1
    (record,) = [record for record in caplog.records if record.name == "odradek.kernels"]
    assert record.levelname == "WARNING"
    assert "take more than a second to load: plain Python decodes records until then" in record.getMessage()


class _Compiler:
    """Takes the place of the process that compiles."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait(self) -> int:
        return 0


def test_a_compilation_is_announced_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, seven CPU seconds passed without a word."""
    monkeypatch.setattr(subprocess, "Popen", _Compiler)
    lock: Any = type("Lock", (), {"fd": None})()
    assert kernel_loader.run_compiler(lock, "python3")
    (record,) = [record for record in caplog.records if record.name == "odradek.kernels"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("compiling the kernels that decode records: once on this computer")


def test_a_command_leaves_the_level_of_the_log_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("odradek.kernels")
    before = log.level
    assert run(["--version"]) == 0
    assert capsys.readouterr().out
    assert log.level == before
