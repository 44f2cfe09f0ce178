"""Every setting that Apache Kafka describes, for each kind of resource: a broker, all brokers, a topic, a group, and a
client metrics subscription."""

from __future__ import annotations

from recording import Run, Scenario
from scenarios_admin import BROKER, CLIENT_METRICS, GROUP, TOPIC


def all_settings(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    run.name_value(run.quietly(35, 4, {"topics": []}).results[0].log_dir, "log dir")
    group, subscription = run.fresh("group"), run.fresh("m")
    for kind, name in ((BROKER, "1"), (BROKER, ""), (TOPIC, topic), (GROUP, group), (CLIENT_METRICS, subscription)):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        message = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
        run.call(32, 4, message, unordered=("configs",))


SCENARIOS: tuple[Scenario, ...] = (all_settings,)
