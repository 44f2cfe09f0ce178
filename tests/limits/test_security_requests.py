"""Requests with thousands of users, ACLs or feature levels: one sync, short steps, and limits of stored values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_connection_shares import Client, connect
from test_topic_bursts import API_VERSIONS, CountingFiles, codes, count_turns, run_with_broker

from odradek.broker.metadata.change import MAX_CHANGE_RECORDS
from odradek.broker.server import BrokerServer
from odradek.catalog.credentials import MAX_SECRET_BYTES
from odradek.wire import frames
from odradek.wire.api_keys import (
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)

STEPS_BETWEEN = 20
"""The allowed number of steps between two replies to the other client. An iteration of the loop (``TICK_S``) has about
7 steps of 0.3 ms by the scheduler's clock. The other client's next request arrives one or two iterations later."""


def users(*names: str, salt: bytes = b"salt", salted_password: bytes = b"x" * 32) -> dict[str, Any]:
    secrets = {"mechanism": 1, "iterations": 4096, "salt": salt, "salted_password": salted_password}
    return {"deletions": [], "upsertions": [{"name": name} | secrets for name in names]}


def acls(count: int) -> dict[str, Any]:
    rule = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
            "operation": 3, "permission_type": 3}  # fmt: skip
    return {"creations": [rule] * count}


def filters(count: int) -> dict[str, Any]:
    rule = {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": 3,
            "principal_filter": None, "host_filter": None, "operation": 3, "permission_type": 3}  # fmt: skip
    return {"filters": [rule] * count}


COUNT = 3000
LONG: Mapping[str, tuple[int, int, dict[str, Any], int]] = {  # with the number of steps for each element
    "users set": (ALTER_USER_SCRAM_CREDENTIALS, 0, users(*(f"u{n}" for n in range(COUNT))), 3),
    "users described": (DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": f"u{n}"} for n in range(COUNT)]}, 2),
    "ACLs made": (CREATE_ACLS, 3, acls(COUNT), 1),
    "ACLs removed": (DELETE_ACLS, 3, filters(COUNT), 1),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_request_delays_no_other_client(tmp_path: Path, name: str) -> None:
    key, version, message, steps = LONG[name]

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        other = await connect(broker)
        count_turns(broker, files)
        client.writer.write(frames.encode_request(key, version, 1, "c", message))
        await other.ask(API_VERSIONS, 0, {})
        answered = 0
        while broker.scheduler.busy:
            await other.ask(API_VERSIONS, 0, {})
            answered += 1
        _, reply = frames.decode_reply(key, version, await client.reply())
        results = getattr(reply, "results", None) or reply.filter_results
        assert len(results) == COUNT
        assert answered >= steps * COUNT / STEPS_BETWEEN

    run_with_broker(tmp_path, scenario)


def test_all_users_of_one_request_need_one_sync(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        # the first epoch of the log is stored in a separate file
        await client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, users("first"))
        files.syncs.clear()
        reply = await client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, users(*(f"u{n}" for n in range(COUNT))))
        assert codes(reply.results) == {"none": COUNT}
        assert files.syncs["metadata log"] == files.syncs.total() == 1
        assert len(broker.catalog.users()) == COUNT + 1

    run_with_broker(tmp_path, scenario)


def test_too_many_users_for_a_batch_are_refused_together(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        end = broker.catalog.log_end_offset
        names = [f"u{n}" for n in range(MAX_CHANGE_RECORDS + 1)]
        reply = await client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, users(*names))
        assert codes(reply.results) == {"policy_violation": len(names)}
        assert broker.catalog.log_end_offset == end
        assert not broker.catalog.users()
        reply = await client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, users(*names[1:]))
        assert codes(reply.results) == {"none": MAX_CHANGE_RECORDS}

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("name", ["salt", "salted_password"])
def test_the_size_of_secrets_is_limited(tmp_path: Path, name: str) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        reply = await client.ask(
            ALTER_USER_SCRAM_CREDENTIALS, 0, users("long", **{name: b"x" * (MAX_SECRET_BYTES + 1)})
        )
        assert codes(reply.results) == {"unacceptable_credential": 1}
        assert not broker.catalog.users()
        reply = await client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, users("long", **{name: b"x" * MAX_SECRET_BYTES}))
        assert codes(reply.results) == {"none": 1}

    run_with_broker(tmp_path, scenario)
