"""Fixtures of the monitor's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from support.hook_receiver import HookReceiver


@pytest.fixture
def receiver() -> Iterator[HookReceiver]:
    made = HookReceiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Skips without playwright or without a browser."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_api.sync_playwright() as playwright:
        try:
            options = {"executable_path": path} if path else {}
            # The sandbox of Chromium does not start as root, as in containers.
            flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
            started = playwright.chromium.launch(args=flags, **options)
        except sync_api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield started
        started.close()
