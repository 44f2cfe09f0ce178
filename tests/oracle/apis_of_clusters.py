"""Requests for ``scenarios_apis`` to the APIs of settings, security, credentials and the cluster."""

from __future__ import annotations

import uuid
from typing import Any

from api_requests import send_empty, versions, wait_for_deletions
from group_requests import GroupRequests
from recording import Run
from scenarios_admin import BROKER, CLIENT_METRICS, GROUP, STRANGER, TOPIC, entity_rows

# --- settings ---------------------------------------------------------------------------------------------------


def describes_configs(run: Run) -> None:
    topic = run.topic()
    run.create(topic, retention_ms="5000")
    for version in versions(32):
        send_empty(run, 32, version)
        asked = ((TOPIC, topic, "retention.ms"), (BROKER, "1", "num.partitions"), (BROKER, "", "num.partitions"),
                 (TOPIC, run.topic("unknown"), "retention.ms"), (GROUP, "g", "consumer.session.timeout.ms"),
                 (CLIENT_METRICS, "m", "interval.ms"), (99, "x", "y"))  # fmt: skip
        for kind, name, key in asked:
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
            message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
            run.call(32, version, message)


def alters(run: Run, api_key: int) -> None:
    topic = run.topic()
    run.create(topic)
    for version in versions(api_key):
        send_empty(run, api_key, version)
        for kind, name, key, value in (
            (TOPIC, topic, "retention.ms", f"{version}000"),
            (TOPIC, topic, "retention.ms", "soon"),
            (TOPIC, run.topic("unknown"), "retention.ms", "1"),
            (99, "x", "y", "z"),
        ):
            config = {"name": key, "value": value, "config_operation": 0}
            resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
            run.call(api_key, version, {"resources": [resource], "validate_only": False})


def lists_config_resources(run: Run) -> None:
    wait_for_deletions(run)
    GroupRequests(run)  # now the offsets topic exists
    topic = run.topic()
    run.create(topic)
    for version in versions(74):
        send_empty(run, 74, version)
        for kinds in ([TOPIC], [BROKER, GROUP], [99]):
            run.call(74, version, {"resource_types": kinds}, unordered=("config_resources",))


def describes_quotas(run: Run) -> None:
    for version in versions(48):
        send_empty(run, 48, version)
        for kind, how, name in (("user", 0, run.fresh("user")), ("user", 2, None), ("planet", 2, None)):
            row = {"entity_type": kind, "match_type": how, "match": name}
            run.call(48, version, {"components": [row], "strict": False})


def alters_quotas(run: Run) -> None:
    for version in versions(49):
        send_empty(run, 49, version)
        for entity, key in (({"user": run.fresh("user")}, "producer_byte_rate"), ({"user": "u"}, "no_such"), ({}, "x")):
            op = {"key": key, "value": 1000.0, "remove": False}
            entry = {"entity": entity_rows(entity), "ops": [op]}
            run.call(49, version, {"entries": [entry], "validate_only": True})


# --- authorization ----------------------------------------------------------------------------------------------


def handshakes(run: Run) -> None:
    for version in versions(17):
        send_empty(run, 17, version)
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            run.call(17, version, {"mechanism": mechanism})


def authenticates(run: Run) -> None:
    for version in versions(36):
        send_empty(run, 36, version)
        run.call(36, version, {"auth_bytes": b"\0alice\0secret"})


ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, DENY, ALLOW = 3, 2, 3


def describes_acls(run: Run) -> None:
    everything = {"resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
                  "principal_filter": None, "host_filter": None, "operation": ANY, "permission_type": ANY}  # fmt: skip
    one = {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": LITERAL,
           "principal_filter": "User:a", "host_filter": "*", "operation": READ, "permission_type": ALLOW}  # fmt: skip
    for version in versions(29):
        send_empty(run, 29, version)
        run.call(29, version, everything)
        run.call(29, version, one)
        for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            for value in (0, 50, -1):
                run.call(29, version, one | {name: value})


def creates_acls(run: Run) -> None:
    one = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": LITERAL, "principal": "User:a",
           "host": "*", "operation": READ, "permission_type": ALLOW}  # fmt: skip
    for version in versions(30):
        send_empty(run, 30, version)
        run.call(30, version, {"creations": [one]})
        run.call(30, version, {"creations": [one, one | {"resource_pattern_type": PREFIXED, "principal": "unknown"}]})
        for name in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
            for value in (0, 1, 50, -1):
                run.call(30, version, {"creations": [one, one | {name: value}]})
        for name in ("resource_name", "principal", "host"):
            run.call(30, version, {"creations": [one | {name: ""}]})


def deletes_acls(run: Run) -> None:
    one = {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": MATCH,
           "principal_filter": "User:a", "host_filter": None, "operation": READ, "permission_type": DENY}  # fmt: skip
    for version in versions(31):
        send_empty(run, 31, version)
        run.call(31, version, {"filters": [one]})
        run.call(31, version, {"filters": [one, one | {"resource_name_filter": None}]})
        for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            for value in (0, ANY, 50, -1):
                run.call(31, version, {"filters": [one, one | {name: value}]})


_RENEWER = {"principal_type": "User", "principal_name": "bob"}


def creates_tokens(run: Run) -> None:
    for version in versions(38):
        send_empty(run, 38, version)
        for renewers in ([], [_RENEWER], [{"principal_type": "Group", "principal_name": "g"}]):
            for owner in (None, "alice"):
                who = {"owner_principal_type": owner and "User", "owner_principal_name": owner}
                run.call(38, version, who | {"renewers": renewers, "max_lifetime": 60_000})


def renews_tokens(run: Run) -> None:
    for version in versions(39):
        send_empty(run, 39, version)
        run.call(39, version, {"hmac": b"0123", "renew_period": 1000})


def expires_tokens(run: Run) -> None:
    for version in versions(40):
        send_empty(run, 40, version)
        run.call(40, version, {"hmac": b"0123", "expiry_time_period": -1})


def describes_tokens(run: Run) -> None:
    for version in versions(41):
        send_empty(run, 41, version)
        for owners in (None, [_RENEWER]):
            run.call(41, version, {"owners": owners})


# --- the cluster ------------------------------------------------------------------------------------------------


def requests_versions(run: Run) -> None:
    for version in versions(18):
        send_empty(run, 18, version)
        for name, software in (("t", "1"), ("-t", "1"), ("t", "1_")):
            asked = {"client_software_name": name, "client_software_version": software}
            run.call(18, version, asked, unordered=("api_keys", "supported_features", "finalized_features"))


def describes_clusters(run: Run) -> None:
    for version in versions(60):
        send_empty(run, 60, version)
        for kind in (1, 2, 3):
            message = {"include_cluster_authorized_operations": kind == 1, "endpoint_type": kind}
            run.call(60, version, message | {"include_fenced_brokers": True})


def describes_quorums(run: Run) -> None:
    for version in versions(55):
        send_empty(run, 55, version)
        for name, partition in (("elsewhere", 0), ("__cluster_metadata", 7)):
            rows = [{"topic_name": name, "partitions": [{"partition_index": partition}]}]
            run.call(55, version, {"topics": rows})


def updates_features(run: Run) -> None:
    for version in versions(57):
        send_empty(run, 57, version)
        for name, level, how in (("group.version", 1, 1), ("group.version", 2, 1), ("no.such", 1, 1)):
            row = {"feature": name, "max_version_level": level, "upgrade_type": how, "allow_downgrade": False}
            run.call(57, version, {"timeout": 10_000, "feature_updates": [row], "validate_only": True})


def unregisters(run: Run) -> None:
    for version in versions(64):
        send_empty(run, 64, version)
        for broker in (7, -1):
            run.call(64, version, {"broker_id": broker})


def _voters(run: Run) -> tuple[str, str]:
    """The cluster id, and the name of the listener between controllers."""
    row = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    listener: str = run.quietly(55, 2, {"topics": [row]}).nodes[0].listeners[0].name
    run.name_value(listener, "listener")
    return run.quietly(60, 0, {"include_cluster_authorized_operations": False}).cluster_id, listener


_VOTERS = ((1, STRANGER), (2, STRANGER), (2, None), (-1, STRANGER))


def ask_for_voters(run: Run, voter: int, directory: uuid.UUID | None, version: int = 1, **other: Any) -> None:
    cluster, listener = _voters(run)
    row = {"name": other.pop("listener", listener), "host": "127.0.0.1", "port": 1}
    message = {"cluster_id": cluster, "timeout": 1000, "voter_id": voter, "listeners": [row]} | other
    run.call(80, version, message | {"voter_directory_id": directory, "ack_when_committed": True})


def ask_without_voters(run: Run, voter: int, directory: uuid.UUID | None, version: int = 0, **other: Any) -> None:
    cluster, _ = _voters(run)
    message = {"cluster_id": cluster, "voter_id": voter, "voter_directory_id": directory}
    run.call(81, version, message | other)


def adds_voters(run: Run) -> None:
    for version in versions(80):
        send_empty(run, 80, version)
        for voter, directory in _VOTERS:
            ask_for_voters(run, voter, directory, version)
            ask_for_voters(run, voter, directory, version, listener="elsewhere")
            ask_for_voters(run, voter, directory, version, cluster_id=None)
            ask_for_voters(run, voter, directory, version, cluster_id="other")
            ask_for_voters(run, voter, directory, version, listeners=[])


def removes_voters(run: Run) -> None:
    for version in versions(81):
        send_empty(run, 81, version)
        for voter, directory in _VOTERS:
            ask_without_voters(run, voter, directory, version)
            ask_without_voters(run, voter, directory, version, cluster_id=None)
            ask_without_voters(run, voter, directory, version, cluster_id="other")


# --- credentials ------------------------------------------------------------------------------------------------

SHA_256, SHA_512 = 1, 2


def wait_for_users(run: Run, *expected: tuple[str, int, int]) -> None:
    """Waits until exactly these credentials exist: (user, mechanism, iterations)."""

    def ready(reply: Any) -> bool:
        rows = ((row.user, kept) for row in reply.results for kept in row.credential_infos)
        return {(user, kept.mechanism, kept.iterations) for user, kept in rows} == set(expected)

    run.until(50, 0, {"users": None}, ready)


def describe_users(run: Run, *names: str) -> Any:
    return run.call(50, 0, {"users": [{"name": name} for name in names]}, unordered=("results", "credential_infos"))


def alter_users(
    run: Run,
    set_: list[tuple[str, int, int]] | None = None,
    deleted: list[tuple[str, int]] | None = None,
    salt: bytes = b"salt",
    salted_password: bytes = b"x" * 32,
) -> Any:
    """``set_``: user, mechanism, iterations."""
    secrets = {"salt": salt, "salted_password": salted_password}
    upsertions = [
        {"name": name, "mechanism": mechanism, "iterations": iterations} | secrets
        for name, mechanism, iterations in set_ or []
    ]
    deletions = [{"name": name, "mechanism": mechanism} for name, mechanism in deleted or []]
    return run.call(
        51, 0, {"deletions": deletions, "upsertions": upsertions}, unordered=("results", "credential_infos")
    )


def describes_users(run: Run) -> None:
    user = run.fresh("user")
    for version in versions(50):
        send_empty(run, 50, version)
        run.call(50, version, {"users": None})
        for names in ([user], [user, user], ["", user]):
            describe_users(run, *names)


def alters_users(run: Run) -> None:
    user, other = run.fresh("user"), run.fresh("user", "b")
    send_empty(run, 51, 0)
    for iterations in (0, 4095, 4096, 16_384, 16_385):
        alter_users(run, [(user, SHA_256, iterations)])
        alter_users(run, [(other, SHA_512, iterations)])
    alter_users(run, [(user, 0, 4096), (other, 3, 4096), ("", SHA_256, 4096)])
    alter_users(run, [(user, SHA_256, 4096), (user, SHA_512, 4096), (other, SHA_256, 5000)])
    alter_users(run, [(user, SHA_512, 4096)], [(user, SHA_256)])
    alter_users(run, [], [(user, SHA_256), (user, SHA_256), (other, SHA_512)])
    alter_users(run, [], [(user, SHA_512), (other, 0), ("", SHA_512)])
    alter_users(run, [(user, SHA_256, 4096)], salt=b"", salted_password=b"x")
    alter_users(run, [(user, SHA_256, 4096)], salted_password=b"")
    alter_users(run, [(user, SHA_256, 4096)], salt=b"s" * 1024, salted_password=b"x" * 1024)
    wait_for_users(run, (user, SHA_256, 4096), (other, SHA_256, 5000))
    describe_users(run)
    alter_users(run, [], [(user, SHA_256), (other, SHA_256)])
    wait_for_users(run)
    describe_users(run)
