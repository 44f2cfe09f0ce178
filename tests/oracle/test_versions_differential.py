"""Which APIs are served, in which versions: as Apache Kafka 4.3, but for those that belong to what is not there yet."""

from __future__ import annotations

from typing import Any

import pytest
from recording import load, run_scenario
from scenarios_versions import apis_served

NOT_SERVED = {
    "security": {17, 29, 30, 31, 36, 38, 39, 40, 41, 50, 51},
    "transactions": {24, 25, 26, 27, 28, 65, 66},
    "share and streams groups": {76, 77, 78, 79, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92},
    "more brokers than one": {64, 80, 81},
}


def served(step: dict[str, Any]) -> dict[int, tuple[int, int]]:
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in step["reply"]["api_keys"]}


@pytest.mark.parametrize("version", range(5))
def test_what_is_advertised(bootstrap: str, version: int) -> None:
    theirs = served(load("versions")["apis_served"][version])
    ours = served(run_scenario(bootstrap, apis_served)[version])
    missing = set().union(*NOT_SERVED.values())
    # An API that came to be served is to be taken off the list.
    assert theirs.keys() - ours.keys() <= missing
    assert not missing & ours.keys()
    assert ours == {key: versions for key, versions in theirs.items() if key not in missing}
    assert not {71, 72} & ours.keys()  # telemetry: Kafka too is silent about it while nobody collects any
