"""The time for which readers wait for kernels that a thread loads."""

from __future__ import annotations

import logging
import subprocess
import threading
from typing import Any

import pytest

from odradek.batches import kernel_loader
from odradek.cli.main import run


class _CountedEvent(threading.Event):
    """Counts the calls of ``wait`` that end before the event is set."""

    expired = 0

    def wait(self, timeout: float | None = None) -> bool:
        found = super().wait(timeout)
        self.expired += not found
        return found


def test_only_one_batch_waits_for_kernels_that_load_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = kernel_loader._Loader()
    loader.tried = event = _CountedEvent()
    may_end = threading.Event()
    monkeypatch.setattr(loader, "load", lambda **_: may_end.wait())
    monkeypatch.setattr(kernel_loader, "_loader", loader)
    monkeypatch.setattr(kernel_loader, "_LONGEST_LOAD_S", 0.01)
    try:
        for _ in range(10):
            kernel_loader.note_decoded_bytes(kernel_loader.WORTH_LOADING_BYTES)
    finally:
        may_end.set()
    assert event.expired == 1


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
    monkeypatch.setattr(kernel_loader, "_is_python", lambda _: True)
    lock: Any = type("Lock", (), {"fd": None})()
    assert kernel_loader._run_compiler(lock)
    (record,) = [record for record in caplog.records if record.name == "odradek.kernels"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("compiling the kernels that decode records: once on this computer")


def test_a_command_leaves_the_level_of_the_log_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("odradek.kernels")
    before = log.level
    assert run(["--version"]) == 0
    assert capsys.readouterr().out
    assert log.level == before
