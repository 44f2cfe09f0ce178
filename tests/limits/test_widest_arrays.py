"""The widest request of each array of each API against a real broker. The arrays come from the schemas.

A fast test checks that no API is forgotten. The slow one prints the table of `docs/limits.md`; no time gates it.
`ODRADEK_WIDEST=49,51` measures only these APIs.
"""

from __future__ import annotations

import os

import pytest
from widest import NOT_WIDE, Wide, by_api, measured_each, table, wide_arrays

from odradek.broker.handlers import handler_files

KEYS = [int(key) for key in os.environ.get("ODRADEK_WIDEST", "").split(",") if key]
PATIENCE_S = 20
"""Ten clients give up after this time: the most memory is used when all requests have arrived."""
MEMORY_BYTES = 200_000_000
"""Above the idle broker. Ten such requests at once took 232 to 476 MB without a limit for all elements."""


def test_each_api_has_a_wide_request_or_a_reason_why_not() -> None:
    assert {wide.api_key for wide in wide_arrays()} | NOT_WIDE.keys() == {api.key for api in handler_files("client")}
    assert not {wide.api_key for wide in wide_arrays()} & NOT_WIDE.keys()


def test_the_table_has_the_largest_value_of_each_array() -> None:
    row = {"size": 2_000_000, "cpu_ms": 1500, "peak": 5_000_000}
    rows = [
        row | {"wide": [48, 1, "/components", "known"], "at_once": 1, "turn_ms": 7, "wait_ms": 9},
        row | {"wide": [48, 1, "/components", "strange"], "at_once": 1, "turn_ms": 8, "wait_ms": 3},
        row | {"wide": [48, 1, "/components", "strange"], "at_once": 10, "turn_ms": 20, "wait_ms": 31},
    ]
    cells = "describe_client_quotas v1 /components | 2.0 MB | 8 ms; 20 ms | 5 MB; 5 MB | 9 ms; 31 ms | 1.5 s"
    assert table(rows).splitlines()[2:] == [f"| {cells} |"]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 10])
@pytest.mark.parametrize(
    "wides", by_api(wide_arrays(variants=("strange",), keys=KEYS)), ids=lambda wides: str(wides[0])
)
def test_the_broker_survives_its_widest_requests(wides: list[Wide], at_once: int) -> None:
    found = list(measured_each(wides, at_once, PATIENCE_S))
    print("\n" + table(each._asdict() | {"wide": list(each.wide)} for each in found))
    assert [each.wide for each in found] == wides
    for each in found:
        assert each.alive
        assert each.peak < MEMORY_BYTES, str(each.wide)
