"""What Apache Kafka serves, and in which versions."""

from __future__ import annotations

from recording import Run, Scenario


def apis_served(run: Run) -> None:
    for version in range(5):
        asked = {"client_software_name": "t", "client_software_version": "1"}
        run.call(18, version, asked, unordered=("api_keys",))


SCENARIOS: tuple[Scenario, ...] = (apis_served,)
