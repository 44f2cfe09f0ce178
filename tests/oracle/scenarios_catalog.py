"""Feature levels, credentials, voters and brokers: allowed and refused changes, and the state after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from apis_of_clusters import (
    SHA_256,
    SHA_512,
    alter_users,
    ask_for_voters,
    ask_without_voters,
    describe_users,
    wait_for_users,
)
from group_requests import CONSUMER_HEARTBEAT, GroupRequests
from recording import Run, Scenario
from scenarios_admin import BROKER, DELETE, SET, STRANGER, alter, describe, wait_for_setting

CONFIG = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
RESTARTS = True

UPGRADE, SAFE, UNSAFE = 1, 2, 3
LEVELS = {
    "metadata.version": (-1, 0, 6, 7, 22, 29, 30, 31),
    "kraft.version": (-1, 0, 1, 2),
    "transaction.version": (-1, 0, 1, 2, 3),
    "group.version": (-1, 0, 1, 2),
    "share.version": (-1, 0, 1, 2),
    "streams.version": (-1, 0, 1, 2),
    "eligible.leader.replicas.version": (-1, 0, 1, 2),
    "no.such": (-1, 0, 1),
    "": (0, 1),
}

Update = tuple[str, int, int]


def update(run: Run, *updates: Update, version: int = 2, validate_only: bool = False) -> Any:
    rows = [
        {"feature": name, "max_version_level": level, "upgrade_type": how, "allow_downgrade": how > UPGRADE}
        for name, level, how in updates
    ]
    return run.call(57, version, {"timeout": 10_000, "feature_updates": rows, "validate_only": validate_only})


def _finalized_features(run: Run) -> dict[str, Any]:
    asked = {"client_software_name": "t", "client_software_version": "1"}
    reply = run.quietly(18, 4, asked)
    return {row.name: [row.min_version_level, row.max_version_level] for row in reply.finalized_features}


def levels(run: Run, wanted: Callable[[dict[str, Any]], bool] = lambda features: True) -> None:
    """Waits until ``wanted`` is true for the finalized feature levels, and adds the levels to the trace."""
    run.until(3, 12, {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
              lambda reply: wanted(_finalized_features(run)))  # fmt: skip
    run.note("levels", {}, dict(sorted(_finalized_features(run).items())))


def at(name: str, level: int) -> Callable[[dict[str, Any]], bool]:
    return lambda features: features.get(name, [0, 0])[1] == level


def updates_are_checked(run: Run) -> None:
    for name, asked in LEVELS.items():
        for level in asked:
            for how in range(5):
                update(run, (name, level, how), validate_only=True)
    group, transaction = "group.version", "transaction.version"
    for version in (1, 2):
        update(run, (group, 0, SAFE), (transaction, 1, SAFE), validate_only=True, version=version)
        update(run, (group, 0, SAFE), ("no.such", 1, UPGRADE), (transaction, 1, SAFE), version=version)
        update(run, (group, 1, UPGRADE), (group, 0, UPGRADE), version=version)
        update(run, (group, 0, UPGRADE), (group, 1, UPGRADE), version=version)
    update(run, (group, 0, SAFE), version=0)
    levels(run)


def updates_are_kept(run: Run) -> None:
    levels(run)
    update(run, ("transaction.version", 1, SAFE), ("share.version", 0, UNSAFE), version=1)
    levels(run, at("share.version", 0))
    update(run, ("streams.version", 0, SAFE))
    levels(run, at("streams.version", 0))
    update(run, ("transaction.version", 2, SAFE), validate_only=True)
    update(run, ("streams.version", 1, SAFE))
    run.restart()
    levels(run, at("transaction.version", 1))
    update(run, ("transaction.version", 2, UPGRADE), ("share.version", 1, UPGRADE), ("streams.version", 1, UPGRADE))
    levels(run, at("streams.version", 1))
    run.restart()
    levels(run, at("streams.version", 1))


def groups_without_their_feature(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.known_topic()
    epoch = requests.join_consumer("m", [topic]).member_epoch
    update(run, ("group.version", 0, SAFE))
    levels(run, at("group.version", 0))
    for version in (0, 1):
        requests.heartbeat("m", epoch, version=version)
        requests.inspect(requests.group, run.fresh("group", "unknown"), version=version)
    requests.describe()
    requests.listed()
    update(run, ("group.version", 1, UPGRADE))
    levels(run, at("group.version", 1))
    minimal = requests.minimal_heartbeat(member_id="m", member_epoch=epoch)
    run.until(CONSUMER_HEARTBEAT, 1, minimal, lambda reply: reply.error_code == 0)
    requests.heartbeat("m", epoch)
    requests.inspect()


def eligible_leaders(run: Run) -> None:
    """When eligible.leader.replicas.version rises to 1, Kafka stores min.insync.replicas for all brokers."""
    feature, setting = "eligible.leader.replicas.version", "min.insync.replicas"
    update(run, (feature, 0, SAFE))
    levels(run, at(feature, 0))
    alter(run, BROKER, "", (setting, DELETE, None))
    wait_for_default(run, setting)
    alter(run, BROKER, "1", (setting, SET, "1"))
    wait_for_setting(run, BROKER, "1", setting, "1")
    update(run, (feature, 1, UPGRADE))
    levels(run, at(feature, 1))
    run.until(32, 4, _asked(setting), lambda reply: len(reply.results[0].configs[0].synonyms) == 2)
    describe(run, BROKER, "1", [setting])
    describe(run, BROKER, "", [setting])


def wait_for_default(run: Run, setting: str) -> None:
    run.until(32, 4, _asked(setting), lambda reply: reply.results[0].configs[0].config_source == 5)


def _asked(setting: str) -> dict[str, Any]:
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": [setting]}
    return {"resources": [resource], "include_synonyms": True, "include_documentation": False}


def users_are_kept(run: Run) -> None:
    """Users and their credentials survive restarts, and deleted credentials stay deleted."""
    a, b = run.fresh("user", "a"), run.fresh("user", "b")
    alter_users(run, [(a, SHA_256, 4096), (b, SHA_512, 8192)])
    alter_users(run, [(a, SHA_512, 16_384)])
    alter_users(run, [(b, SHA_512, 9000)])
    kept = [(a, SHA_256, 4096), (a, SHA_512, 16_384), (b, SHA_512, 9000)]
    wait_for_users(run, *kept)
    describe_users(run)
    run.restart()
    wait_for_users(run, *kept)
    describe_users(run)
    describe_users(run, a, run.fresh("user", "unknown"))
    alter_users(run, [(b, SHA_512, 9500)], [(a, SHA_256)])
    alter_users(run, [], [(a, SHA_256)])
    kept = [(a, SHA_512, 16_384), (b, SHA_512, 9500)]
    wait_for_users(run, *kept)
    run.restart()
    wait_for_users(run, *kept)
    describe_users(run)
    alter_users(run, [], [(a, SHA_512)])
    alter_users(run, [], [(b, SHA_512)])
    wait_for_users(run)


def voters_may_change(run: Run) -> None:
    """kraft.version can be raised but not lowered, so this scenario is one of the last."""
    ask_for_voters(run, 1, STRANGER)
    update(run, ("kraft.version", 1, UPGRADE), validate_only=True)
    levels(run)
    update(run, ("kraft.version", 1, UPGRADE))
    levels(run, at("kraft.version", 1))
    run.restart()
    levels(run, at("kraft.version", 1))
    for level in (0, 1):
        for how in (UPGRADE, SAFE, UNSAFE):
            update(run, ("kraft.version", level, how))
    for voter, directory in ((1, STRANGER), (2, STRANGER), (2, None), (-1, STRANGER)):
        ask_for_voters(run, voter, directory)
        ask_without_voters(run, voter, directory)
    levels(run)


def the_only_broker_is_unregistered(run: Run) -> None:
    """Apache Kafka's broker cannot be used afterwards, so this scenario is the last."""
    run.call(64, 0, {"broker_id": 1})
    asked = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
    time.sleep(0.5)
    run.call(60, 2, asked)


SCENARIOS: tuple[Scenario, ...] = (
    updates_are_checked,
    updates_are_kept,
    groups_without_their_feature,
    eligible_leaders,
    users_are_kept,
    voters_may_change,
    the_only_broker_is_unregistered,
)
