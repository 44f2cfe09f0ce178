"""Tools of agents over a view: a time that no calendar shows stays the number that it is, and hides no other row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from odradek.monitor.agents.view_tools import view_tools

SHOWN = {1_790_000_000_000: "2026-09-21T14:13:20+00:00", 253_402_300_799_999: "9999-12-31T23:59:59+00:00"}
BEYOND = [253_402_300_800_000, 9_223_372_036_854_775, -62_135_596_800_001, -9_223_372_036_854_775]


class View:
    """A view of one group whose times are ``ms``."""

    name = "127.0.0.1:9092"

    def __init__(self, ms: int) -> None:
        row = {"topic": "t", "partition": 0, "lag": 7, "commit_ms": ms, "expires_ms": ms, "time_lag_ms": ms}
        finding = {"kind": "rewind", "group": "g", "from_ms": ms, "to_ms": ms, "proof": [{"record_ms": ms}]}
        self._row = {
            "group": "g",
            "state": "Empty",
            "lag": 7,
            "partitions": 1,
            "newest_commit_ms": ms,
            "expires_ms": ms,
        }
        self._found = {"group": "g", "summary": self._row, "partitions": [row], "findings": [finding]}

    def state(self) -> dict[str, Any]:
        return {"polled_ms": 1, "trouble": None}

    def groups(self, query: Mapping[str, str]) -> dict[str, Any]:
        return {"total": 1, "groups": [self._row]}

    def group(self, name: str) -> dict[str, Any] | None:
        return self._found

    def findings(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._found["findings"]
        return rows

    def topic(self, name: str) -> dict[str, Any] | None:
        return None


@pytest.mark.parametrize("ms", [*SHOWN, *BEYOND])
def test_each_time_is_the_number_and_its_text_where_there_is_one(ms: int) -> None:
    ask = {tool.name: tool for tool in view_tools(View(ms))}
    arguments: dict[str, dict[str, Any]] = {
        "list_groups": {"search": "", "status": "any", "sort": "group", "limit": 9, "offset": 0},
        "describe_group": {"group": "g", "limit": 9},
        "list_findings": {"group": "", "kind": "", "limit": 9, "proofs": 9},
        "list_expiring_offsets": {"limit": 9},
    }
    found = {name: ask[name].call(**given) for name, given in arguments.items()}
    rows = [
        found["list_groups"]["groups"][0], found["describe_group"]["summary"], *found["describe_group"]["partitions"],
        *found["list_findings"]["findings"], *found["list_findings"]["findings"][0]["proof"],
        *found["list_expiring_offsets"]["groups"],
    ]  # fmt: skip
    for row in rows:
        numbers = {name: value for name, value in row.items() if name.endswith("_ms")}
        assert set(numbers.values()) == {ms}
        texts = {row[name.removesuffix("_ms")] for name in numbers if name.removesuffix("_ms") in row}
        assert texts == ({SHOWN[ms]} if ms in SHOWN else set())
