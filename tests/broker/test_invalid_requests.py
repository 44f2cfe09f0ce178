"""Requests that no client sends: extreme values in every field, or changed bytes.

The broker sends a reply or closes the connection. It loses no data and logs no traceback.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import CONFIG, Wire
from support.instances import Instances, plain
from support.publish import commit, committed, create_topic, numbers, publish

from odradek.client.admin.transaction_wire import read as read_transactions
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode
from odradek.testing.process import BrokerProcess
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, PRODUCE
from odradek.wire.schemas import Kind

TOKENS = (38, 39, 40)
"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken."""
DESCRIBE_TRANSACTIONS = 65
NOT_ALLOWED = ErrorCode.delegation_token_request_not_allowed.to_bytes(2, "big")
SEEDS = 2


@pytest.fixture
def filled_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A separate broker with ten records and a commit, which must survive the requests."""
    with BrokerProcess(tmp_path, config=CONFIG) as broker:
        create_topic(broker.bootstrap, "kept")
        publish(broker.bootstrap, "kept", numbers(10))
        commit(broker.bootstrap, "kept-group", {("kept", 0): 7})
        yield broker


def requests(versions: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """``(API, version, message)``: valid encodings of absurd values."""
    for api_key, (oldest, newest) in versions.items():
        known = schemas.known_versions(api_key)
        for version in range(max(oldest, known[0]), min(newest, known[1]) + 1):
            entity = schemas.message_type(api_key, version, Kind.REQUEST)
            for seed in range(SEEDS):
                message = plain(Instances(1000 * version + seed).of(entity))
                # A request with acks=0 has no reply to wait for.
                yield api_key, version, message | {"acks": 1} if api_key == PRODUCE else message


def answer(wire: Wire) -> bytes | None:
    """The next frame without its length, or None if the broker closed the connection."""
    head = b""
    try:
        while len(head) < 4:
            data = wire.socket.recv(4 - len(head))
            if not data:
                return None
            head += data
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            data = wire.socket.recv(int.from_bytes(head, "big") - len(body))
            if not data:
                return None
            body += data
    except ConnectionResetError:
        return None
    return body


def check_broker_is_unharmed(broker: BrokerProcess) -> None:
    log = broker.log_path.read_text()
    assert "Traceback" not in log, log[-4000:]
    broker.stop()
    broker.start()
    assert committed(broker.bootstrap, "kept-group") == {("kept", 0): 7}
    assert publish(broker.bootstrap, "kept", [b"next"]) == [10]


def is_about_unknown_acls(api_key: int, message: dict[str, Any]) -> bool:
    """Whether a request about ACLs contains code 0, "unknown". Apache Kafka closes the connection of such a request."""
    if api_key == DESCRIBE_ACLS:
        rows = [message]
    else:
        rows = message.get("creations" if api_key == CREATE_ACLS else "filters", ())
    codes = ("resource_type", "pattern_type", "resource_pattern_type", "operation", "permission_type")
    return api_key in (DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS) and any(
        value == 0 for row in rows for name, value in row.items() if name.startswith(codes)
    )


def test_absurd_requests_get_well_formed_replies(filled_broker: BrokerProcess) -> None:
    wire = Wire(filled_broker.bootstrap)
    with contextlib.ExitStack() as open_ones:
        open_ones.enter_context(wire)
        versions = wire.versions()
        for api_key, version, message in requests(versions):
            wire.socket.sendall(frames.encode_request(api_key, version, 9, "absurd", message))
            reply = answer(wire)
            if reply is None and is_about_unknown_acls(api_key, message):
                wire = open_ones.enter_context(Wire(filled_broker.bootstrap))
                continue
            assert reply is not None, (api_key, version, message)
            head = frames.reply_head(api_key, version, 9)
            if api_key in TOKENS:  # kio cannot read the times of -1 that Kafka sends with an error
                assert reply[len(head) : len(head) + 2] == NOT_ALLOWED
                continue
            # kio cannot read the time of -1 that this reply has for a transactional id without a transaction.
            if api_key == DESCRIBE_TRANSACTIONS:
                result_of(read_transactions(version, memoryview(reply)))
                continue
            _, size = schemas.decode(api_key, version, Kind.RESPONSE, reply, len(head))
            assert len(head) + size == len(reply), (api_key, version, message)
    check_broker_is_unharmed(filled_broker)


def test_changed_bytes_close_at_most_their_connection(filled_broker: BrokerProcess) -> None:
    dice = random.Random(20)
    with Wire(filled_broker.bootstrap) as wire:
        versions = wire.versions()
    wire = Wire(filled_broker.bootstrap)
    for api_key, version, message in requests(versions):
        packed = bytearray(frames.encode_request(api_key, version, 9, "turned", message))
        for _ in range(dice.choice([1, 2, 8])):
            # The length is not changed, so that the broker gets the frame; API, version and all other bytes may change.
            packed[dice.randrange(4, len(packed))] = dice.randrange(256)
        wire.socket.sendall(packed)
        # The changed request may have no reply (acks=0) or the reply of another API. The test requires only that the
        # broker serves the next request or closes the connection.
        wire.socket.sendall(frames.encode_request(API_VERSIONS, 0, 10, "turned", {}))
        while (reply := answer(wire)) is not None:
            if int.from_bytes(reply[:4], "big") == 10:
                break
        if reply is None:
            wire.socket.close()
            wire = Wire(filled_broker.bootstrap)
    wire.socket.close()
    check_broker_is_unharmed(filled_broker)
