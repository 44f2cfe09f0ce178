"""The time for which readers wait for kernels that a thread loads."""

from __future__ import annotations

import threading

import pytest

from odradek.batches import kernel_loader


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
