"""SCRAM credentials and feature levels of a real broker: stored as in Apache Kafka, and kept across kill -9."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, eventually

from odradek.batches.rows import iter_records
from odradek.wire.api_keys import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_CONFIGS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    UPDATE_FEATURES,
)

SHA_256, SHA_512 = 1, 2
SAFE = 2


@contextmanager
def wire(running: RunningBroker) -> Iterator[Wire]:
    with Wire(running.bootstrap) as connected:
        yield connected


def put(running: RunningBroker, user: str, mechanism: int, iterations: int, password: bytes = b"x" * 32) -> str:
    row = {"name": user, "mechanism": mechanism, "iterations": iterations, "salt": b"salt", "salted_password": password}
    with wire(running) as connected:
        (result,) = connected.call(ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [row]}).results
    return str(result.error_code.name)


def remove(running: RunningBroker, user: str, mechanism: int) -> str:
    row = {"name": user, "mechanism": mechanism}
    with wire(running) as connected:
        (result,) = connected.call(ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [row], "upsertions": []}).results
    return str(result.error_code.name)


def users(running: RunningBroker) -> set[tuple[str, int, int]]:
    with wire(running) as connected:
        reply = connected.call(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
    return {(row.user, kept.mechanism, kept.iterations) for row in reply.results for kept in row.credential_infos}


def levels(running: RunningBroker) -> dict[str, int]:
    with wire(running) as connected:
        asked = {"client_software_name": "t", "client_software_version": "1"}
        return {row.name: row.max_version_level for row in connected.call(18, 4, asked).finalized_features}


def update(running: RunningBroker, name: str, level: int, how: int) -> None:
    row = {"feature": name, "max_version_level": level, "upgrade_type": how}
    message = {"timeout": 10_000, "feature_updates": [row], "validate_only": False}
    with wire(running) as connected:
        assert connected.call(UPDATE_FEATURES, 2, message).error_code == 0


def test_users_and_levels_survive_kill_9(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()
    assert put(running, "alice", SHA_256, 4096) == "none"
    assert put(running, "alice", SHA_512, 8192) == "none"
    assert put(running, "bob", SHA_512, 16_384) == "none"
    assert remove(running, "alice", SHA_256) == "none"
    update(running, "transaction.version", 1, SAFE)
    update(running, "group.version", 0, SAFE)
    kept = {("alice", SHA_512, 8192), ("bob", SHA_512, 16_384)}
    eventually(lambda: users(running) == kept)
    before = levels(running)
    assert before["transaction.version"] == 1
    assert "group.version" not in before
    running.kill()
    running.start()
    eventually(lambda: users(running) == kept)
    assert levels(running) == before
    assert remove(running, "alice", SHA_256) == "resource_not_found"
    assert remove(running, "bob", SHA_512) == "none"


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [pytest.param(SHA_256, "sha256", id="SHA-256"), pytest.param(SHA_512, "sha512", id="SHA-512")],
)
def test_a_password_is_stored_only_as_kafkas_record(
    own_broker: Callable[..., RunningBroker], mechanism: int, name: str
) -> None:
    running = own_broker()
    salted = hashlib.pbkdf2_hmac(name, b"secret", b"salt", 4096)
    assert put(running, "alice", mechanism, 4096, salted) == "none"
    running.stop()
    log = b"".join(path.read_bytes() for path in running.directory.rglob("__cluster_metadata-0/*.log"))
    records = [row.value for row in iter_records(log) if not row.is_control and row.value[1] == 11]
    assert [base64.b64encode(value).decode() for value in records] == [RECORDS[name]]
    assert salted not in log
    assert b"secret" not in log


# The bytes that Apache Kafka 4.3 writes for the same password, salt and iterations.
RECORDS = {
    "sha256": (
        "AQsABmFsaWNlAQVzYWx0IWYDgZ093uJuroNEWlgI0/sG21so8oOLUUlbOWEa5XJIIWiBIhstG1eT2tcNfwJOprPE2aKg8yqZ3r2R"
        "qS7BWW3pAAAQAAA="
    ),
    "sha512": (
        "AQsABmFsaWNlAgVzYWx0QVJQCAEIXBO7OaNxsVuY3NrINIqalVfed16FxiBB5x9On5JorR5eWNnwV2lgQUs95IzG/uHTj5+5Q1yf"
        "YgAOsy9BlWR2j72DnbAIJhJHS8zya+LasnYJ3dApaYR2iraggaQbQNM6F5luDvowK3GKzNEf2GEQ8DGozrRdn1niSNAdSgAAEAAA"
    ),
}


def test_a_salted_password_is_in_no_file_of_the_broker(own_broker: Callable[..., RunningBroker]) -> None:
    if os.environ.get("ODRADEK_TEST_ORACLE"):
        pytest.skip("the test looks at the files of odradek's broker")
    running = own_broker()
    put(running, "alice", SHA_256, 4096, b"s3cr3t" * 6)
    put(running, "alice", SHA_256, 1, b"s3cr3t" * 6)
    put(running, "alice", 9, 4096, b"s3cr3t" * 6)
    running.stop()
    assert b"s3cr3t" not in b"".join(path.read_bytes() for path in running.directory.rglob("*") if path.is_file())


def test_min_insync_replicas_stays_at_level_0_of_its_feature(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()

    def source() -> tuple[Any, ...]:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["min.insync.replicas"]}
        message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
        with wire(running) as connected:
            (row,) = connected.call(DESCRIBE_CONFIGS, 4, message).results[0].configs
        return row.config_source, [twin.source for twin in row.synonyms]

    default_broker, default = 3, 5
    assert source() == (default_broker, [default_broker, default])
    update(running, "eligible.leader.replicas.version", 0, SAFE)
    running.kill()
    running.start()
    assert source() == (default_broker, [default_broker, default]), "the setting stays at level 0 of the feature"
