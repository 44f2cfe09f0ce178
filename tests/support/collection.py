"""All tests that pytest has collected, before any of them is deselected."""

from __future__ import annotations

import pytest

COLLECTED = pytest.StashKey[list[pytest.Item]]()
