"""Damaged handshakes: TLS records, SASL frames, messages of SCRAM and PLAIN, tokens. No login, no exception, a line."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import random
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from security.test_sasl_states import SHA_256, api_versions, authenticate, handshake, states
from support.certificates import Authority
from support.issuer import AUDIENCE, ISSUER, Issuer, packed, packed_json
from support.memory_series import MemorySeries

from odradek.broker.tls.transport import TlsTransport
from odradek.security.key_sets import read_key_set
from odradek.security.principal import ANONYMOUS, Principal
from odradek.security.scram import ScramClient
from odradek.security.secret import Secret
from odradek.security.stores import ServerTls, Store, server_context
from odradek.security.web_tokens import ALGORITHMS, TokenRefused, TokenRules, check

LOGINS, TOKENS, HANDSHAKES = 600_000, 300_000, 100_000
"""The damaged logins, tokens and handshakes of the long suite."""


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, removed, doubled or inserted, or the end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1) if out else 0
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            out[at:at] = out[at : at + rng.randrange(1, 40)]
        elif at < len(out):
            out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


# --- SASL -------------------------------------------------------------------------------------------------------------


def frames_of_a_login(rng: random.Random) -> list[bytes]:
    """The frames of a login with a wrong password: no damage of them logs in."""
    version = rng.choice((0, 1))
    kind = rng.randrange(3)
    begin = [api_versions(rng.choice((0, 3)))] if rng.random() < 0.5 else []
    if kind == 0:
        message = b"\0alice\0wrong" + rng.randbytes(rng.randrange(3))
        return [*begin, handshake("PLAIN", version), authenticate(message, 2) if version else message]
    messages = [authenticate(one, 2) if version else one for one in scram_messages(has_token=kind == 2)]
    return [*begin, handshake(SHA_256, version), *messages]


@cache
def scram_messages(*, has_token: bool) -> tuple[bytes, bytes]:
    """Both messages of a client with a wrong password, for the nonce and the salt of the server's user."""
    extensions = {"tokenauth": "x"} if has_token else None
    client = ScramClient(SHA_256, "alice", Secret("wrong"), "clientnonce", extensions=extensions)
    first = client.first()
    return first, client.final(b"r=clientnonceservernonce,s=MDEyMzQ1Njc4OWFiY2RlZg==,i=4096")


def attack_logins(seed: int, count: int, memory: MemorySeries | None = None) -> None:
    rng = random.Random(seed)
    for number in range(count):
        if memory is not None:
            memory.note(number)
        login = states(before=rng.choice((None, ("PLAIN", "alice"), (SHA_256, "alice"))))
        frames = frames_of_a_login(rng)
        victim = rng.randrange(len(frames))
        frames[victim] = damaged(rng, frames[victim])
        if rng.random() < 0.2:
            rng.shuffle(frames)
        for frame in frames:
            answer = login.receive(frame)
            assert login.login is None
            assert "\n" not in answer.failure or "'" in answer.failure
            if answer.failure:
                break


def test_damaged_logins_log_no_user_in() -> None:
    attack_logins(1, 1000)


@pytest.mark.slow
def test_many_damaged_logins_log_no_user_in() -> None:
    memory = MemorySeries(50_000, name="logins")
    attack_logins(2, LOGINS, memory)
    memory.check()


# --- tokens -----------------------------------------------------------------------------------------------------------

RULES = TokenRules(ISSUER, (AUDIENCE,))


class Forger:
    """Makes tokens that are not valid, and damages valid ones."""

    def __init__(self, issuer: Issuer, stranger: Issuer) -> None:
        self.keys = read_key_set(issuer.key_set.read_bytes())
        self._issuer = issuer
        self._valid = [issuer.token("alice", name, lifetime_s=86_400) for name in ALGORITHMS]
        self._claims = packed_json(issuer.claims())
        public = issuer.rsa_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._bad = [
            stranger.token(header={"kid": "k1"}), issuer.token(header={"kid": "foreign"}),
            stranger.token(header={"jwk": stranger.rows()[0]}),
            issuer.token(lifetime_s=-900), issuer.token(aud="other"), issuer.token(iss="other"),
            f"{packed_json({'alg': 'none'})}.{self._claims}.", f"{packed_json({'alg': 'none'})}.{self._claims}.AA",
            self._by_secret("HS256", public), self._by_secret("RS256", public), self._by_secret("HS512", b""),
        ]  # fmt: skip

    def _by_secret(self, algorithm: str, secret: bytes) -> str:
        signed = f"{packed_json({'alg': algorithm, 'kid': 'k1'})}.{self._claims}"
        return f"{signed}.{packed(hmac.digest(secret, signed.encode(), 'sha256'))}"

    def token(self, rng: random.Random) -> str:
        """A token that must not be accepted, except for one whose signed part is that of a valid one."""
        kind = rng.randrange(5)
        if kind == 0:
            return rng.choice(self._bad)
        token = rng.choice(self._valid if kind < 4 else self._bad)
        parts = token.split(".")
        at = rng.randrange(3)
        if rng.random() < 0.5:  # the decoded section
            raw = base64.urlsafe_b64decode(parts[at] + "=" * (-len(parts[at]) % 4))
            parts[at] = packed(damaged(rng, raw))
        else:
            parts[at] = damaged(rng, parts[at].encode()).decode("latin-1")
        return ".".join(parts)

    def is_accepted(self, token: str) -> bool:
        """Returns whether a token is valid though its signed part is not that of a valid token."""
        try:
            check(token, self.keys, RULES, int(time.time() * 1000))
        except TokenRefused:
            return False
        return token.strip().rpartition(".")[0] not in {one.rpartition(".")[0] for one in self._valid}


def attack_tokens(forger: Forger, seed: int, count: int, memory: MemorySeries | None = None) -> None:
    rng = random.Random(seed)
    for number in range(count):
        if memory is not None:
            memory.note(number)
        token = forger.token(rng)
        assert not forger.is_accepted(token), token


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    folder = tmp_path_factory.mktemp("forger")
    (folder / "other").mkdir()
    return Forger(Issuer(folder), Issuer(folder / "other", "k2"))


def test_forged_tokens_are_refused(forger: Forger) -> None:
    attack_tokens(forger, 1, 1000)


@pytest.mark.slow
def test_many_forged_tokens_are_refused(forger: Forger) -> None:
    memory = MemorySeries(50_000, name="tokens")
    attack_tokens(forger, 2, TOKENS, memory)
    memory.check()


# --- TLS --------------------------------------------------------------------------------------------------------------


class Socket:
    """The transport of an accepted socket, in memory."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class OpenConnection:
    principal = ANONYMOUS

    def __init__(self) -> None:
        self.received = b""

    def connection_made(self, transport: Any) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None: ...


class Gate:
    """A broker that admits everything, and counts."""

    def __init__(self) -> None:
        self.inside = 0
        self.queue: deque[Any] = deque()
        self.scheduler: Any = self

    def add(self, runnable: Any) -> None:
        self.queue.append(runnable)

    def run(self) -> None:
        while self.queue:
            self.queue.popleft().run_share(0.0)

    def enter(self, host: str, listener: str = "") -> bool:
        self.inside += 1
        return True

    def leave(self, host: str) -> None:
        self.inside -= 1

    def hold_ms(self, host: str) -> int:
        return 0


class Side:
    listener = "TLS"

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.handshakes: set[TlsTransport] = set()

    def context(self) -> ssl.SSLContext:
        return self._context

    def identify(self, certificate: bytes) -> Principal:
        return ANONYMOUS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("fuzz"))
    made.issue("broker")
    return made


@cache
def client_side(pem: str, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pem)
    context.minimum_version = context.maximum_version = version
    return context


class Meeting:
    """A client of Python's ssl and a listener, without sockets."""

    def __init__(self, authority: Authority, context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
        self.gate, self.side, self.socket = Gate(), Side(context), Socket()
        self.connection = OpenConnection()
        self.transport = TlsTransport(self.gate, self.side, lambda accepted_s: self.connection)
        self.transport.connection_made(self.socket)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client_side(str(authority.pem), version).wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )

    def client_bytes(self) -> bytes:
        """The next bytes of the client's handshake."""
        if self.socket.sent:
            self.incoming.write(bytes(self.socket.sent))
            self.socket.sent.clear()
        try:
            self.client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()

    def give(self, data: bytes) -> None:
        self.transport.data_received(data)
        self.gate.run()


class Lines(logging.Handler):
    """The log of the broker. pytest's own handlers would keep each record until the end of the test."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @contextmanager
    def attached(self) -> Iterator[None]:
        logger = logging.getLogger("odradek.broker")
        level, logger.propagate = logger.level, False
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = True


def attack_tls(authority: Authority, seed: int, count: int, memory: MemorySeries | None = None) -> int:
    """Returns how many damaged handshakes were complete all the same."""
    rng = random.Random(seed)
    context = server_context(ServerTls(None, Store("ssl.keystore", "PEM", str(authority.directory / "broker.pem"))))
    opened = 0
    lines = Lines()

    async def run() -> None:
        nonlocal opened
        for done in range(count):
            if done % 100 == 0:
                await asyncio.sleep(0)  # the loop drops its cancelled timers
            if memory is not None:
                memory.note(done)
            version = rng.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
            meeting = Meeting(authority, context, version)
            victim = rng.randrange(2)
            lines.records.clear()
            try:
                for number in range(4):
                    data = meeting.client_bytes()
                    if meeting.socket.is_closed or not data:
                        break
                    meeting.give(damaged(rng, data) if number == victim else data)
            except ssl.SSLError:
                pass  # the client refuses the answer to its damaged message
            opened += bool(meeting.connection.received) or meeting.transport.connection is not None
            meeting.transport.connection_lost(None)
            assert meeting.gate.inside == (1 if meeting.transport.connection is not None else 0)
            assert not meeting.side.handshakes
            assert len(lines.records) <= 1, [one.getMessage() for one in lines.records]
            assert all("\n" not in one.getMessage() and not one.exc_info for one in lines.records)

    with lines.attached():
        asyncio.run(run())
    return opened


def test_damaged_handshakes_are_one_line_each(authority: Authority) -> None:
    assert attack_tls(authority, 1, 1000) < 100


@pytest.mark.slow
def test_many_damaged_handshakes_are_one_line_each(authority: Authority) -> None:
    memory = MemorySeries(10_000, name="TLS")
    assert attack_tls(authority, 2, HANDSHAKES, memory) < HANDSHAKES / 10
    memory.check()


def test_a_whole_handshake_opens_the_connection(authority: Authority) -> None:
    context = server_context(ServerTls(None, Store("ssl.keystore", "PEM", str(authority.directory / "broker.pem"))))

    async def run(version: ssl.TLSVersion) -> None:
        meeting = Meeting(authority, context, version)
        while meeting.transport.connection is None:
            for byte in meeting.client_bytes():  # each byte by itself
                meeting.give(bytes([byte]))
        meeting.client_bytes()
        meeting.client.write(b"hello")
        meeting.give(meeting.outgoing.read())
        assert meeting.connection.received == b"hello"
        meeting.transport.write(b"x" * 600_000)
        meeting.incoming.write(bytes(meeting.socket.sent))
        found = b""
        while len(found) < 600_000:
            found += meeting.client.read(1 << 20)
        assert found == b"x" * 600_000
        meeting.transport.close()
        assert meeting.socket.is_closed

    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        asyncio.run(run(version))
