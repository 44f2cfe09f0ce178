"""Requests about delegation tokens, for Apache Kafka 4.3 and for our broker, and what is compared of the replies.

``run`` makes the same requests at either of them. Ids, secrets and times differ from run to run: an id and a secret are
shown by the number of their token, a time as the difference from the time of the token's creation.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.brokers import Wire

from odradek.core.varints import read_uvarint
from odradek.security.scram import ScramClient
from odradek.security.secret import Secret
from odradek.wire.schemas import milliseconds

TRACE = Path(__file__).parent / "traces" / "tokens.json"
USERS = {name: f"{name}-secret" for name in ("alice", "bob", "carol", "admin", "maker", "reader", "lister")}
"""``admin`` is a super user; ACLs let ``maker`` make tokens for alice, ``lister`` describe those of alice, and
``reader`` describe all tokens."""
CONFIG = {
    "delegation.token.secret.key": "the key of tokens",
    "delegation.token.max.lifetime.ms": "600000",
    "delegation.token.expiry.time.ms": "100000",
}
_DAY_MS = 86_400_000
_MOST = 10**14

Connect = Callable[[str], Wire]
"""Returns a connection: of a user by SASL/PLAIN, of ``ANONYMOUS`` without a login, of ``SCRAM`` before a login."""


def log_in(wire: Wire, user: str) -> Wire:
    assert wire.call(17, 1, {"mechanism": "PLAIN"}).error_code == 0
    assert wire.call(36, 2, {"auth_bytes": f"\0{user}\0{USERS[user]}".encode()}).error_code == 0
    return wire


def log_in_by_token(wire: Wire, token_id: str, secret: bytes, mechanism: str = "SCRAM-SHA-256") -> int | str:
    """Returns the lifetime of the session in ms, or the error of the refusal."""
    password = Secret(base64.b64encode(secret).decode())
    client = ScramClient(mechanism, token_id, password, "nonce", extensions={"tokenauth": "true"})
    assert wire.call(17, 1, {"mechanism": mechanism}).error_code == 0
    first = wire.call(36, 2, {"auth_bytes": client.first()})
    if first.error_code:
        return str(first.error_message)
    final = wire.call(36, 2, {"auth_bytes": client.final(bytes(first.auth_bytes))})
    if final.error_code:
        return str(final.error_message)
    client.verify(bytes(final.auth_bytes))
    return milliseconds(final.session_lifetime)


def acl(principal: str, operation: int, kind: int, name: str) -> dict[str, Any]:
    return {
        "resource_type": kind, "resource_name": name, "resource_pattern_type": 3, "principal": f"User:{principal}",
        "host": "*", "operation": operation, "permission_type": 3,
    }  # fmt: skip


class TokenRun:
    """The requests of one run. ``rows``: a label and what is compared of its reply."""

    def __init__(self, connect: Connect, pause_s: float = 0.0) -> None:
        self.connect = connect
        self.pause_s = pause_s
        self.wires: dict[str, Wire] = {}
        self.tokens: list[Any] = []
        self.rows: list[list[Any]] = []

    def wire(self, user: str) -> Wire:
        if user not in self.wires:
            wire = self.connect(user)
            self.wires[user] = wire if user == "ANONYMOUS" else log_in(wire, user)
        return self.wires[user]

    def create(
        self,
        user: str,
        owner: str | None = None,
        *,
        renewers: tuple[str, ...] = (),
        most_ms: int = -1,
        version: int = 3,
    ) -> None:
        rows = [dict(zip(("principal_type", "principal_name"), one.split(":"), strict=True)) for one in renewers]
        message: dict[str, Any] = {"renewers": rows, "max_lifetime": most_ms}
        if version >= 3:
            kind, _, name = (owner or "").partition(":")
            message |= {"owner_principal_type": kind if owner else None, "owner_principal_name": name or None}
        reply = call(self.wire(user), 38, version, message)
        names = [reply.principal_type, reply.principal_name]
        if version >= 3:
            names += [reply.token_requester_principal_type, reply.token_requester_principal_name]
        issued = reply.issue_timestamp
        times = [reply.expiry_timestamp, reply.max_timestamp]
        shown = [one - issued for one in times] if reply.error_code == 0 else [issued, *times]
        found = [int(reply.error_code), names, shown, len(reply.token_id), len(reply.hmac)]
        if reply.error_code == 0:
            self.tokens.append(reply)
        self.add(f"create {user} for {owner} renewers {renewers} {most_ms} v{version}", found)

    def change(self, user: str, api: int, number: int | bytes, period_ms: int, version: int = 2) -> None:
        name = {39: "renew_period", 40: "expiry_time_period"}[api]
        secret = bytes(self.tokens[number].hmac) if isinstance(number, int) else number
        now_ms = int(time.time() * 1000)
        reply = call(self.wire(user), api, version, {"hmac": secret, name: period_ms})
        end = reply.expiry_timestamp
        what = {39: "renew", 40: "expire"}[api]
        # The time of the request is not in the reply: whole tens of seconds are compared, from here on.
        if reply.error_code == 0 and isinstance(number, int):
            end = "the last end" if end == self.tokens[number].max_timestamp else (end - now_ms) // 10_000 * 10
            self.settle()
        label = number if isinstance(number, int) else f"{len(number)} bytes"
        self.add(f"{what} {user} {label} {period_ms} v{version}", [int(reply.error_code), end])

    def describe(self, user: str, *owners: str, everything: bool = False, version: int = 3) -> None:
        rows = [dict(zip(("principal_type", "principal_name"), one.split(":"), strict=True)) for one in owners]
        reply = call(self.wire(user), 41, version, {"owners": None if everything else rows})
        found = sorted(self._described(row, version) for row in reply.tokens)
        label = "everything" if everything else owners
        self.add(f"describe {user} {label} v{version}", [int(reply.error_code), found])

    def _described(self, row: Any, version: int) -> list[Any]:
        number = [one.token_id for one in self.tokens].index(row.token_id)
        made = self.tokens[number]
        assert bytes(row.hmac) == bytes(made.hmac)
        assert row.issue_timestamp == made.issue_timestamp
        names = [f"{row.principal_type}:{row.principal_name}"]
        if version >= 3:
            names.append(f"{row.token_requester_principal_type}:{row.token_requester_principal_name}")
        renewers = [f"{one.principal_type}:{one.principal_name}" for one in row.renewers]
        return [number, names, renewers, row.max_timestamp - row.issue_timestamp]

    def log_in_by(self, number: int, mechanism: str = "SCRAM-SHA-256", wrong: str = "") -> Wire:
        wire = self.connect("SCRAM")
        made = self.tokens[number]
        token_id = "no such token" if wrong == "id" else made.token_id
        secret = bytes(made.hmac)[::-1] if wrong == "secret" else bytes(made.hmac)
        found = log_in_by_token(wire, token_id, secret, mechanism)
        shown = found if isinstance(found, str) else ["session", found > 0]
        self.add(f"login by {number} {mechanism} {wrong}", shown)
        return wire

    def add(self, label: str, found: Any) -> None:
        self.rows.append([label, found])

    def settle(self) -> None:
        """Waits for a change: Apache Kafka replies to it before its requests about tokens see it."""
        time.sleep(self.pause_s)


class ReplyReader:
    """Reads the fields of a reply. The schemas of kio read no times before 1970, which refusals have."""

    def __init__(self, data: bytes, *, is_flexible: bool) -> None:
        self._data, self._at, self._is_flexible = data, 0, is_flexible

    def fixed(self, size: int) -> int:
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "big", signed=True)

    def size(self, plain: int) -> int:
        """The length of a text or a list, which has ``plain`` bytes in versions that are not flexible."""
        if not self._is_flexible:
            return self.fixed(plain)
        value, self._at = read_uvarint(self._data, self._at)
        return value - 1

    def data(self, plain: int = 4) -> bytes:
        size = self.size(plain)
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.data(2).decode()

    def tags(self) -> None:
        if self._is_flexible:
            assert self.fixed(1) == 0

    def named(self, fields: str, version: int) -> SimpleNamespace:
        """Reads fields: ``s`` a text, ``t`` one of versions from 3 on, ``q`` a time, ``h`` a code, ``b`` bytes."""
        readers = {
            "s": self.text,
            "t": self.text,
            "q": lambda: self.fixed(8),
            "h": lambda: self.fixed(2),
            "b": self.data,
        }
        names = (one.split(":") for one in fields.split())
        return SimpleNamespace(**{name: readers[kind]() for name, kind in names if kind != "t" or version >= 3})


_NAMES = (
    "principal_type:s principal_name:s token_requester_principal_type:t token_requester_principal_name:t "
    "issue_timestamp:q expiry_timestamp:q max_timestamp:q token_id:s hmac:b"
)


def call(wire: Wire, api: int, version: int, message: dict[str, Any]) -> Any:
    """Sends a request about tokens and returns its reply."""
    wire.send(api, version, message)
    reader = ReplyReader(bytes(wire.receive_frame()), is_flexible=version >= 2)
    reader.fixed(4)  # the correlation id
    reader.tags()
    if api == 38:
        return reader.named(f"error_code:h {_NAMES}", version)
    if api != 41:
        return reader.named("error_code:h expiry_timestamp:q", version)
    reply = reader.named("error_code:h", version)
    reply.tokens = [_token(reader, version) for _ in range(reader.size(4))]
    return reply


def _token(reader: ReplyReader, version: int) -> SimpleNamespace:
    row = reader.named(_NAMES, version)
    row.renewers = []
    for _ in range(reader.size(4)):
        row.renewers.append(reader.named("principal_type:s principal_name:s", version))
        reader.tags()
    reader.tags()
    return row


def run(connect: Connect, pause_s: float = 0.0) -> list[list[Any]]:
    """Makes all requests. Returns what is compared."""
    it = TokenRun(connect, pause_s)
    acls = [acl("maker", 13, 7, "User:alice"), acl("lister", 14, 7, "User:alice"), acl("reader", 8, 6, "*")]
    assert [row.error_code for row in it.wire("admin").call(30, 3, {"creations": acls}).results] == [0, 0, 0]
    it.settle()
    _refusals(it)
    it.create("alice")  # 0
    it.create("alice", renewers=("User:bob",), most_ms=400_000)  # 1
    it.create("alice", most_ms=50_000, version=1)  # 2
    it.create("bob", most_ms=_MOST, version=2)  # 3
    it.create("maker", "User:alice")  # 4
    it.create("admin", "User:bob", renewers=("User:carol", "User:alice"))  # 5
    it.create("alice", "User:alice", most_ms=0)  # 6
    it.create("alice", "Group:alice")
    it.settle()
    for user in ("alice", "bob", "carol", "admin", "maker", "reader", "lister", "ANONYMOUS"):
        it.describe(user, everything=True)
        it.describe(user, "User:alice")
        it.describe(user, "User:bob", "User:zoe")
        it.describe(user)
    for version in (1, 2):
        it.describe("alice", everything=True, version=version)
    _ends(it)
    wire = it.log_in_by(0)
    it.log_in_by(0, "SCRAM-SHA-512").socket.close()
    it.wires["token"] = wire
    for wrong in ("id", "secret"):
        it.log_in_by(0, wrong=wrong).socket.close()
    it.create("token")
    it.describe("token", everything=True)
    for api in (39, 40):
        it.change("token", api, 0, 10_000)
    it.change("alice", 40, 0, -1)
    it.log_in_by(0).socket.close()
    for one in it.wires.values():
        one.socket.close()
    return it.rows


def _refusals(it: TokenRun) -> None:
    it.create("ANONYMOUS")
    it.create("ANONYMOUS", renewers=("Group:x",))
    for user in ("carol", "lister", "reader", "maker"):
        it.create(user, "User:bob")
    it.create("carol", "User:bob", renewers=("Group:x",))
    it.create("alice", renewers=("Group:x", "User:bob"))
    it.create("alice", renewers=(":x",))
    for api in (39, 40):
        for secret in (b"", b"x" * 64):
            it.change("alice", api, secret, 1000)
            it.change("ANONYMOUS", api, secret, 1000, version=1)


def _ends(it: TokenRun) -> None:
    for api in (39, 40):
        for user in ("carol", "maker", "reader", "bob", "alice", "admin"):
            it.change(user, api, 1, 60_000)
    for period_ms in (0, -1, 1_000_000, 150_000, 20_000):
        it.change("alice", 39, 1, period_ms)
    for period_ms in (1_000_000, _DAY_MS * 365, 70_000):
        it.change("alice", 40, 1, period_ms, version=1)
    it.change("alice", 40, 6, 0)
    it.change("alice", 40, 1, -5)
    for api in (39, 40):
        it.change("alice", api, 1, 1000)
    it.describe("alice", "User:alice")


def without_key(it: TokenRun) -> list[list[Any]]:
    """The requests to a broker without a key of tokens."""
    for user in ("ANONYMOUS", "alice"):
        it.create(user)
        it.create(user, "User:bob")
        it.create(user, renewers=("Group:x",))
        for api in (39, 40):
            it.change(user, api, b"x", 1000)
        it.describe(user, everything=True)
        it.describe(user)
    return it.rows
