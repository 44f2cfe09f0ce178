"""The number of examples of a property test: few in ``make test``, four times as many in ``make test-long``."""

from __future__ import annotations

import os

LONG = "long"
"""The hypothesis profile of ``make test-long``."""
_FACTOR = 4


def examples(few: int) -> int:
    return few * _FACTOR if os.environ.get("HYPOTHESIS_PROFILE") == LONG else few
