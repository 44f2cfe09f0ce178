"""Delegation tokens of our broker: restarts, snapshots, ends, logins, and the rules without a broker."""

from __future__ import annotations

import base64
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from oracle.token_requests import USERS, call, log_in, log_in_by_token
from support.brokers import Wire

import odradek
from odradek.broker.metadata.delegation_tokens import DelegationTokens
from odradek.catalog.delta import Delta
from odradek.catalog.image import CatalogImage
from odradek.catalog.state import CatalogState
from odradek.catalog.tokens import FOREVER_MS, PutToken, RemoveToken, TokenTimes, ended
from odradek.core.access.delegation_token import DelegationToken
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.net.errors import AuthenticationFailed
from odradek.security.principal import ANONYMOUS, Principal, TokenPrincipal, may_use_tokens
from odradek.security.scram import salted_password
from odradek.security.secret import Secret
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread
from odradek.wire import frames

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
KEY = "canary-key-of-tokens"


class BrokerWithTokens:
    """A broker with logins by PLAIN and SCRAM. ``start`` and ``stop`` may be repeated."""

    def __init__(self, directory: Path, **config: str) -> None:
        (self._port,) = reserve_ports(1)
        self.address = f"127.0.0.1:{self._port.port}"
        users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
        self._directory = directory
        self._config = {
            "listeners": f"SASL_PLAINTEXT://{self.address}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN} {users};",
            "connection.failed.authentication.delay.ms": "1",
            "delegation.token.secret.key": KEY,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        self.start()

    def start(self) -> None:
        self.broker = BrokerThread(self._directory, config=self._config).start()

    def stop(self) -> None:
        self.broker.stop()

    def log_in(self, user: str = "alice") -> Wire:
        return log_in(Wire(self.address), user)

    def create(self, user: str = "alice", most_ms: int = -1) -> Any:
        message = {"owner_principal_type": None, "owner_principal_name": None, "renewers": [], "max_lifetime": most_ms}
        with self.log_in(user) as wire:
            made = call(wire, 38, 3, message)
        assert made.error_code == 0
        return made

    def ids(self, user: str = "alice") -> list[str]:
        with self.log_in(user) as wire:
            return [row.token_id for row in call(wire, 41, 3, {"owners": None}).tokens]

    def session_ms(self, made: Any, mechanism: str = "SCRAM-SHA-512") -> int | str:
        with Wire(self.address) as wire:
            return log_in_by_token(wire, made.token_id, made.hmac, mechanism)


def test_tokens_stay_when_the_broker_starts_again(tmp_path: Path) -> None:
    broker = BrokerWithTokens(tmp_path)
    try:
        made = [broker.create(), broker.create("bob"), broker.create()]
        broker.stop()
        broker.start()
        assert broker.ids() == [one.token_id for one in made], "without an authorizer all are shown"
        for one in made:
            assert isinstance(broker.session_ms(one), int)
        assert not any(KEY.encode() in path.read_bytes() or made[0].hmac in path.read_bytes()
                       for path in tmp_path.rglob("*") if path.is_file())  # fmt: skip
    finally:
        broker.stop()


def test_a_token_ends_by_itself_and_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        broker = BrokerWithTokens(tmp_path, **{"delegation.token.expiry.check.interval.ms": "100"})
        try:
            made, kept = broker.create(most_ms=1500), broker.create()
            session_ms = broker.session_ms(made)
            assert isinstance(session_ms, int)
            assert 0 < session_ms <= 1500
            with Wire(broker.address) as wire:
                log_in_by_token(wire, made.token_id, made.hmac)
                assert wire.call(3, 0, {"topics": []}).brokers
                deadline_s = time.monotonic() + 10
                while broker.ids() != [kept.token_id]:
                    assert time.monotonic() < deadline_s
                    time.sleep(0.05)
                with pytest.raises((OSError, EOFError)):
                    wire.call(3, 0, {"topics": []})
            assert "invalid credentials" in str(broker.session_ms(made))
            assert isinstance(broker.session_ms(kept), int)
        finally:
            broker.stop()
    assert f"the delegation token {made.token_id} of 'User:alice' has ended" in caplog.text


def test_an_ended_token_that_is_not_removed_yet_logs_no_one_in(tmp_path: Path) -> None:
    broker = BrokerWithTokens(tmp_path)
    try:
        made = broker.create(most_ms=300)
        time.sleep(0.35)
        assert broker.ids() == [made.token_id], "as in Kafka, until the next check"
        assert "invalid credentials" in str(broker.session_ms(made))
    finally:
        broker.stop()


def test_our_clients_log_in_by_a_token(tmp_path: Path) -> None:
    broker = BrokerWithTokens(tmp_path)
    try:
        made = broker.create()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            for secret in (made.hmac, b"x" * 64):
                jaas = (
                    f'{SCRAM} required username="{made.token_id}" password="{base64.b64encode(secret).decode()}" '
                    'tokenauth="true";'
                )
                settings = {"bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT",
                            "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}  # fmt: skip
                with odradek.Admin(settings) as admin:
                    if secret == made.hmac:
                        admin.topics()
                    else:
                        with pytest.raises(AuthenticationFailed):
                            admin.topics()
    finally:
        broker.stop()


def test_a_session_by_a_token_goes_on_after_another_login(tmp_path: Path) -> None:
    broker = BrokerWithTokens(tmp_path)
    try:
        made = broker.create(most_ms=3000)
        with Wire(broker.address) as wire:
            first_ms = log_in_by_token(wire, made.token_id, made.hmac)
            assert isinstance(first_ms, int)
            assert 0 < first_ms <= 3000
            second_ms = log_in_by_token(wire, made.token_id, made.hmac)
            assert isinstance(second_ms, int)
            assert 0 < second_ms <= first_ms
            assert call(wire, 41, 3, {"owners": None}).error_code == 64, "it is a login by a token still"
        with Wire(broker.address) as wire:
            log_in_by_token(wire, made.token_id, made.hmac)
            other = broker.create("bob", most_ms=3000)
            assert "Cannot change principals" in str(log_in_by_token(wire, other.token_id, other.hmac))
    finally:
        broker.stop()


def test_a_password_of_scram_is_no_token_and_a_token_is_no_user(tmp_path: Path) -> None:
    """The extension ``tokenauth`` decides where the name is looked up."""
    broker = BrokerWithTokens(tmp_path)
    try:
        made = broker.create()
        with broker.log_in("admin") as wire:
            row = {"name": made.token_id, "mechanism": 1, "iterations": 4096, "salt": b"s" * 16,
                   "salted_password": salted_password("SCRAM-SHA-256", Secret("eHg="), b"s" * 16, 4096)}  # fmt: skip
            assert wire.call(51, 0, {"deletions": [], "upsertions": [row]}).results[0].error_code == 0
        with Wire(broker.address) as wire:
            assert "invalid credentials" in str(log_in_by_token(wire, made.token_id, b"xx", "SCRAM-SHA-256"))
        assert isinstance(broker.session_ms(made, "SCRAM-SHA-256"), int)
    finally:
        broker.stop()


def test_a_wide_request_of_a_user_keeps_no_one_waiting(tmp_path: Path) -> None:
    """100,000 owners, and 100,000 renewers: the requests of another client go on meanwhile."""
    broker = BrokerWithTokens(tmp_path)
    try:
        made = broker.create()
        rows = [{"principal_type": "User", "principal_name": f"u{number}"} for number in range(100_000)]
        rows[-1]["principal_name"] = "alice"
        with broker.log_in() as wide, broker.log_in("bob") as other:
            wide.send(41, 3, {"owners": rows})
            wide.send(38, 1, {"renewers": rows, "max_lifetime": -1})
            longest_s = 0.0
            while not wide.has_reply(0):
                begin_s = time.monotonic()
                assert other.call(3, 0, {"topics": []}).brokers
                longest_s = max(longest_s, time.monotonic() - begin_s)
            described = frames.decode_reply(41, 3, wide.receive_frame())[1]
            assert [row.token_id for row in described.tokens] == [made.token_id]
            assert wide.receive_frame()[4:6] == int(ErrorCode.policy_violation).to_bytes(2, "big")
            assert longest_s < 5
        with broker.log_in() as gone:
            gone.send(41, 3, {"owners": rows})
        assert broker.ids() == [made.token_id]
    finally:
        broker.stop()


def test_more_renewers_than_a_thousand_are_refused(tmp_path: Path) -> None:
    broker = BrokerWithTokens(tmp_path)
    try:
        rows = [{"principal_type": "User", "principal_name": f"u{number}"} for number in range(1001)]
        for count, code in ((1000, 0), (1001, ErrorCode.policy_violation)):
            with broker.log_in() as wire:
                assert call(wire, 38, 1, {"renewers": rows[:count], "max_lifetime": -1}).error_code == code
        with broker.log_in("bob") as wire:
            rows = [{"principal_type": "User", "principal_name": "u999"}]
            assert len(call(wire, 41, 3, {"owners": rows}).tokens) == 1, "without an authorizer all tokens are shown"
    finally:
        broker.stop()


# --- the rules --------------------------------------------------------------------------------------------------------

TOKEN = DelegationToken("User:a", "User:m", ("User:r",), 0, 1000, 100, "t")


def test_ends_of_tokens() -> None:
    times = TokenTimes(1000, 100)
    assert times.of_new(5, -1) == (1005, 105)
    assert times.of_new(5, 0) == (1005, 105)
    assert times.of_new(5, 50) == (55, 55)
    assert times.of_new(5, 5000) == (1005, 105)
    assert TokenTimes(FOREVER_MS, FOREVER_MS).of_new(5, -1) == (FOREVER_MS, FOREVER_MS)
    assert times.renewed(TOKEN, "User:a", 50, -1).expiry_ms == 150
    assert times.renewed(TOKEN, "User:r", 50, 20).expiry_ms == 70
    assert times.renewed(TOKEN._replace(expiry_ms=990), "User:a", 950, -1).expiry_ms == 1000
    assert ended(TOKEN, "User:a", 50, 10) == TOKEN._replace(expiry_ms=60)
    assert ended(TOKEN, "User:a", 5000, -1) is None, "also a token that has ended"
    for principal in ("User:m", "User:x", "Group:a", ""):
        for change in (lambda p: times.renewed(TOKEN, p, 50, -1), lambda p: ended(TOKEN, p, 50, -1)):
            with pytest.raises(KafkaError) as error:
                change(principal)
            assert error.value.code is ErrorCode.delegation_token_owner_mismatch
    for change in (lambda: times.renewed(TOKEN, "User:a", 101, -1), lambda: ended(TOKEN, "User:a", 101, 5)):
        with pytest.raises(KafkaError) as error:
            change()
        assert error.value.code is ErrorCode.delegation_token_expired


def test_who_may_ask() -> None:
    alice = Principal("User", "alice")
    assert may_use_tokens(alice, "SASL_PLAINTEXT")
    assert may_use_tokens(alice, "SSL")
    assert not may_use_tokens(alice, "PLAINTEXT")
    assert not may_use_tokens(ANONYMOUS, "SSL")
    by_token = TokenPrincipal("User", "alice")
    assert by_token == alice
    assert hash(by_token) == hash(alice)
    assert str(by_token) == "User:alice"
    assert not may_use_tokens(by_token, "SASL_SSL")


class _Id:
    bytes = bytes(16)


def test_a_snapshot_has_the_tokens() -> None:
    shard = CatalogState(lambda data: _Id(), (1,), _Id())
    for request in (PutToken(TOKEN), PutToken(TOKEN._replace(id="u")), PutToken(TOKEN._replace(expiry_ms=7)),
                    RemoveToken("u"), RemoveToken("nothing")):  # fmt: skip
        for record in result_of(shard.generate(request)):
            shard.apply(0, record)
    assert shard.tokens == {"t": TOKEN._replace(expiry_ms=7)}
    copy = CatalogState(lambda data: _Id(), (1,), _Id())
    for value in CatalogImage.of(shard).values():
        copy.replay(-1, value)
    assert copy.tokens == shard.tokens
    assert list(Delta.of(copy).tokens) == ["t"]


def test_secrets_are_kafkas_and_are_not_shown() -> None:
    """The HMAC of the same id and key by Java (``DelegationTokenManager.createHmac``)."""
    tokens = DelegationTokens(Secret("the key of tokens"), TokenTimes(1, 1))
    assert tokens.secret("kDk1Vq3ISDqYbxyR-c1KeA").hex() == JAVAS_HMAC
    assert tokens.find(bytes.fromhex(JAVAS_HMAC)) is None, "the token does not exist"
    assert "key" not in repr(tokens)


JAVAS_HMAC = (
    "a3322d2fb9ea58154fe20c077cb891f5e19c862ba5b9617dc5782cd19459656d"
    "902b07fbf41a3659eef6db253bb612af0af1eda865dfb7dda8ba489c262cecc4"
)
