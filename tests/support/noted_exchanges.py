"""The results of direct exchanges, for tests of requests on the thread of their caller."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.net.direct_exchange import DirectExchange


def exchanges_of(monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    """Returns a list that gets the result of each exchange from now on."""
    results: list[bool | None] = []
    exchange = DirectExchange.exchange

    def noted(*args: Any) -> bool | None:
        results.append(exchange(*args))
        return results[-1]

    monkeypatch.setattr(DirectExchange, "exchange", noted)
    return results
