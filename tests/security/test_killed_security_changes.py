"""kill -9 while users, ACLs and delegation tokens are made: whatever was answered is there after the next start."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from oracle.token_requests import USERS, acl, call, log_in, log_in_by_token
from support.brokers import Wire

import odradek
from odradek.security.scram import salted_password
from odradek.security.secret import Secret
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ROUNDS = int(os.environ.get("ODRADEK_KILLED_SECURITY_ROUNDS", "15"))
PASSWORD = "secret of the users"
SALTED = salted_password("SCRAM-SHA-256", Secret(PASSWORD), b"s" * 16, 4096)


class Answered:
    """What the broker has answered to its clients: users, resources with an ACL, tokens with their secrets. ``False``:
    a removal was sent, and its answer is not there."""

    def __init__(self) -> None:
        self.users: dict[str, bool] = {}
        self.acls: dict[str, bool] = {}
        self.tokens: dict[str, Any] = {}
        self.is_over = threading.Event()

    @property
    def count(self) -> tuple[int, int, int]:
        return len(self.users), len(self.acls), len(self.tokens)


class KilledBroker:
    def __init__(self, directory: Path) -> None:
        self._ports = reserve_ports(2)
        self.inside, self.outside = (f"127.0.0.1:{one.port}" for one in self._ports)
        users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
        config = {
            "listeners": f"INSIDE://{self.inside},OUTSIDE://{self.outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.outside.plain.sasl.jaas.config": f"{PLAIN} {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
            "delegation.token.secret.key": "a key",
            "metadata.log.max.record.bytes.between.snapshots": "20000",
        }
        self.process = BrokerProcess(directory, config=config)


def make_users(broker: KilledBroker, answered: Answered, names: Iterator[int]) -> None:
    with Wire(broker.inside) as wire:
        for number in names:
            user = f"u{number}"
            row = {"name": user, "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": SALTED}
            (result,) = wire.call(51, 0, {"deletions": [], "upsertions": [row]}).results
            assert result.error_code == 0
            answered.users[user] = True
            if number % 5 == 0:
                answered.users[user] = False
                gone = {"name": user, "mechanism": 1}
                assert wire.call(51, 0, {"deletions": [gone], "upsertions": []}).results[0].error_code == 0
                del answered.users[user]


def make_acls(broker: KilledBroker, answered: Answered, names: Iterator[int]) -> None:
    with Wire(broker.inside) as wire:
        for number in names:
            name = f"topic-{number}"
            created = wire.call(30, 3, {"creations": [acl("bob", 3, 2, name), acl("bob", 4, 2, name)]})
            assert [row.error_code for row in created.results] == [0, 0]
            answered.acls[name] = True
            if number % 5 == 0:
                answered.acls[name] = False
                chosen = {"resource_type_filter": 2, "resource_name_filter": name, "pattern_type_filter": 3,
                          "principal_filter": None, "host_filter": None, "operation": 1,
                          "permission_type": 1}  # fmt: skip
                (removed,) = wire.call(31, 3, {"filters": [chosen]}).filter_results
                assert len(removed.matching_acls) == 2
                del answered.acls[name]


def make_tokens(broker: KilledBroker, answered: Answered, names: Iterator[int]) -> None:
    with log_in(Wire(broker.outside), "alice") as wire:
        for number in names:
            made = call(wire, 38, 2, {"renewers": [], "max_lifetime": -1})
            assert made.error_code == 0
            answered.tokens[made.token_id] = made
            if number % 5 == 0:
                kept = answered.tokens.pop(made.token_id)
                assert call(wire, 40, 2, {"hmac": kept.hmac, "expiry_time_period": -1}).error_code == 0


def work(job: Any, broker: KilledBroker, answered: Answered, names: Iterator[int], faults: list[BaseException]) -> None:
    try:
        job(broker, answered, names)
    except (OSError, EOFError) as error:
        if not answered.is_over.is_set():
            faults.append(error)
    except BaseException as error:
        faults.append(error)


@contextmanager
def clients(broker: KilledBroker, answered: Answered, names: Iterator[int]) -> Iterator[None]:
    faults: list[BaseException] = []
    threads = [threading.Thread(target=work, args=(job, broker, answered, names, faults))
               for job in (make_users, make_acls, make_tokens)]  # fmt: skip
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30)
    assert faults == []


def check(broker: KilledBroker, answered: Answered) -> None:
    with Wire(broker.inside) as wire:
        users = {row.user for row in wire.call(50, 0, {"users": None}).results}
        assert {name for name, is_kept in answered.users.items() if is_kept} - users == set()
        everything = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
                      "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip
        acls = {row.resource_name: len(row.acls) for row in wire.call(29, 3, everything).resources}
        assert {name for name, is_kept in answered.acls.items() if is_kept and acls.get(name) != 2} == set()
        assert set(acls.values()) <= {2}, "both ACLs of a request or none"
    with log_in(Wire(broker.outside), "alice") as wire:
        tokens = {row.token_id for row in call(wire, 41, 3, {"owners": None}).tokens}
        assert answered.tokens.keys() - tokens == set()
    with ExitStack() as stack:
        for made in list(answered.tokens.values())[-3:]:
            wire = stack.enter_context(Wire(broker.outside))
            assert isinstance(log_in_by_token(wire, made.token_id, made.hmac), int)
    for user in [name for name, is_kept in answered.users.items() if is_kept][-3:]:
        login = {"bootstrap.servers": broker.outside, "security.protocol": "SASL_PLAINTEXT",
                 "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": PASSWORD}  # fmt: skip
        with odradek.Admin(login) as admin:
            admin.topics()


def run_rounds(directory: Path, rounds: int, seed: int) -> Answered:
    chance = random.Random(seed)
    broker, answered, names = KilledBroker(directory), Answered(), itertools.count(1)
    try:
        broker.process.start()
        for _ in range(rounds):
            answered.is_over.clear()
            before = answered.count
            with clients(broker, answered, names):
                deadline_s = time.monotonic() + 30
                # A busy machine may answer no one for a while: the kill comes after some answers of each kind.
                while any(now < then + 2 for now, then in zip(answered.count, before, strict=True)):
                    assert time.monotonic() < deadline_s
                    time.sleep(0.01)
                time.sleep(chance.uniform(0.0, 0.5))
                answered.is_over.set()
                broker.process.kill()
            broker.process.start()
            check(broker, answered)
    finally:
        broker.process.kill()
    return answered


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    answered = run_rounds(tmp_path, 1, 1)
    assert answered.users
    assert answered.acls
    assert answered.tokens


@pytest.mark.slow
def test_what_was_answered_is_there_after_many_kills(tmp_path: Path) -> None:
    answered = run_rounds(tmp_path, ROUNDS, 2)
    assert min(len(answered.users), len(answered.acls), len(answered.tokens)) > ROUNDS


def test_secrets_of_a_broker_for_tests_are_not_on_its_command_line(tmp_path: Path) -> None:
    secret = ' canary\\n"=: #x'
    config = {"delegation.token.secret.key": secret, "num.partitions": "3"}
    with BrokerProcess(tmp_path, config=config) as broker:
        shown = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        assert b"canary" not in shown
        assert b"num.partitions=3" in shown
        assert b"canary" not in Path(f"/proc/{broker.pid}/environ").read_bytes()
