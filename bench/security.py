"""``python -m bench.security``: what security costs the broker.

The broker runs in a process of its own, its clients in others. "On one core" is the reciprocal of the CPU seconds of
all threads of the broker's process (``/proc``). The rate by the wall clock is beside it: on a machine with two cores,
clients and broker take one each. Processes that share caches and cores raise the CPU seconds, too, so the connections
without TLS and login are measured for comparison.

``--only CASE`` (repeatable), ``--scale FRACTION`` for a trial run.
"""

from __future__ import annotations

import argparse
import base64
import random
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from bench.raw import Connection, fill
from odradek.acls.index import AclIndex
from odradek.broker.metadata.standard_authorizer import StandardAuthorizer
from odradek.core.access.acl import Acl, Operation, Pattern, Permission, Resource
from odradek.security import scram
from odradek.security.principal import USER, Principal
from odradek.security.scram import ScramClient
from odradek.security.secret import Secret
from odradek.testing.broker import Broker
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess
from odradek.testing.security import make_security
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS, FETCH, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE

_USER, _PASSWORD, _TOPIC = "alice", "alice-secret", "records"
_CLIENTS = 2
_MEGABYTE = 1_000_000
_LISTENERS = {"PLAIN": "PLAINTEXT", "TLS": "SSL", "RSA": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL",
              "QUICK": "SASL_PLAINTEXT"}  # fmt: skip
_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_STUCK = 200
_PAUSE_S = 0.002
_IMPORTS_S = 6.0
"""The time in which a started broker imports the rest of its modules."""


class Figure(NamedTuple):
    """One row of the output."""

    name: str
    value: str
    aim: str


class Server:
    """A broker with a listener of each protocol."""

    def __init__(self, directory: Path) -> None:
        made = make_security("SASL_SSL", directory / "security", "127.0.0.1")
        rsa = directory / "security" / "rsa.pem"
        rsa.write_bytes(_rsa_certificate())
        users = directory / "users"
        users.write_text("".join(f"{name}=[name={_USER},password={_PASSWORD}]\n" for name in _MECHANISMS))
        self.authority = made.client["ssl.ca.location"]
        self._ports = dict(zip(_LISTENERS, reserve_ports(len(_LISTENERS)), strict=True))
        config = {
            "listeners": ",".join(f"{name}://127.0.0.1:{one.port}" for name, one in self._ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in _LISTENERS.items()),
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": made.broker["ssl.keystore.location"],
            "listener.name.rsa.ssl.keystore.location": str(rsa),
            "listener.name.quick.sasl.enabled.mechanisms": f"PLAIN,{_MECHANISMS[0]}",
            "listener.name.quick.plain.sasl.jaas.config": f'{_PLAIN} required user_{_USER}="{_PASSWORD}";',
            "connection.failed.authentication.delay.ms": "0",
            "log.segment.bytes": str(1 << 30),
        }
        self.process = BrokerProcess(directory, config=config, add_scram=users)

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener].port}"

    def ran_s(self) -> float:
        """The CPU seconds of all threads of the broker's process."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def memory(self, name: str = "VmRSS") -> int:
        """The resident memory in bytes; ``VmHWM``: the most since ``forget_peak``."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0]) << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


def _rsa_certificate() -> bytes:
    """A self-signed certificate with the key length that most certificates have."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rsa")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, SHA256())
    )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made.public_bytes(Encoding.PEM)


# --- clients ----------------------------------------------------------------------------------------------------------


@cache
def _context(authority: str, version: str = "") -> ssl.SSLContext:
    """The TLS of a client. Without an authority it checks nothing."""
    context = ssl.create_default_context(cafile=authority or None)
    if not authority:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version:
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    return context


class TlsConnection(Connection):
    """A blocking connection with TLS."""

    def __init__(self, bootstrap: str, context: ssl.SSLContext) -> None:
        super().__init__(bootstrap)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")


_VERSIONS_REQUEST = frames.encode_request(API_VERSIONS, 0, 0, "bench", {})


def _log_in(connection: Connection, mechanism: str) -> None:
    """Raises ScramError if the broker does not accept the login."""
    begin = frames.encode_request(SASL_HANDSHAKE, 1, 1, "bench", {"mechanism": mechanism})
    frames.decode_reply(SASL_HANDSHAKE, 1, memoryview(connection.call(begin)))
    client = ScramClient(mechanism, _USER, Secret(_PASSWORD), f"nonce{time.monotonic_ns()}")
    answer = b""
    for message in (lambda _: client.first(), client.final):
        request = frames.encode_request(SASL_AUTHENTICATE, 2, 1, "bench", {"auth_bytes": message(answer)})
        _, reply = frames.decode_reply(SASL_AUTHENTICATE, 2, memoryview(connection.call(request)))
        answer = bytes(reply.auth_bytes)
    client.verify(answer)


def _many_logins(bootstrap: str, count: int, mechanism: str, authority: str | None, version: str) -> None:
    """Connects, logs in and closes, again and again. ``mechanism`` "": without a login; ``authority`` None: no TLS."""
    # A client derives its keys once: otherwise it would take more CPU time than the broker.
    scram.salted_password = cache(scram.salted_password)
    for _ in range(count):
        connection = (
            Connection(bootstrap) if authority is None else TlsConnection(bootstrap, _context(authority, version))
        )
        connection.call(_VERSIONS_REQUEST)
        if mechanism:
            _log_in(connection, mechanism)
        connection.socket.close()


def _many_fetches(bootstrap: str, count: int, authority: str | None) -> int:
    """Fetches the topic's first records again and again. Returns the bytes of the replies."""
    connection = Connection(bootstrap) if authority is None else TlsConnection(bootstrap, _context(authority))
    request = _fetch_request()
    buffer = bytearray(1 << 20)
    total = 0
    for _ in range(count):
        connection.socket.sendall(request)
        left = int.from_bytes(connection._exactly(4), "big")
        total += left
        while left:
            got = connection.socket.recv_into(buffer, min(left, len(buffer)))
            if not got:
                raise ConnectionError("the broker closed the connection")
            left -= got
    return total


def _fetch_request(most_bytes: int = 8 << 20) -> bytes:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": most_bytes}
    message = {
        "replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": most_bytes, "isolation_level": 0,
        "topics": [{"topic": _TOPIC, "partitions": [part]}],
    }  # fmt: skip
    return frames.encode_request(FETCH, 4, 0, "bench", message)


# --- cases ------------------------------------------------------------------------------------------------------------


class Bench:
    """The cases. ``scale``: the fraction of the usual amount of work."""

    def __init__(self, server: Server, scale: float, pool: ProcessPoolExecutor) -> None:
        self._server = server
        self._scale = scale
        self._pool = pool

    def _count(self, count: int) -> int:
        return max(int(count * self._scale), 10)

    def _both(self, work: Callable[..., Any], count: int, run: Callable[[int], tuple[Any, ...]]) -> tuple[float, float]:
        """Runs ``count`` steps in all clients. Returns the CPU seconds of the broker and those of the wall clock."""
        share = -(-count // _CLIENTS)
        began, ran = time.perf_counter(), self._server.ran_s()
        for done in [self._pool.submit(work, *run(share)) for _ in range(_CLIENTS)]:
            done.result()
        return self._server.ran_s() - ran, time.perf_counter() - began

    def _logins(self, name: str, listener: str, count: int, mechanism: str, authority: str | None,
                version: str = "", *, aim: str = "") -> Figure:  # fmt: skip
        count = self._count(count)
        address = self._server.address(listener)
        cpu_s, wall_s = self._both(_many_logins, count, lambda share: (address, share, mechanism, authority, version))
        return Figure(name, f"{count / cpu_s:,.0f} by CPU, {count / wall_s:,.0f} by the clock", aim)

    def tls(self) -> Iterator[Figure]:
        known = self._server.authority
        for version in ("TLSv1_3", "TLSv1_2"):
            yield self._logins(f"handshakes a second, {version}, P-256", "TLS", 3000, "", known, version, aim="≥ 300")
            yield self._logins(f"handshakes a second, {version}, RSA 2048", "RSA", 3000, "", "", version, aim="≥ 300")
        for mechanism in _MECHANISMS:
            yield self._logins(f"logins a second, SASL_SSL, {mechanism}", "BOTH", 2000, mechanism, known, aim="≥ 300")

    def scram(self) -> Iterator[Figure]:
        yield self._logins("connections a second without TLS and login", "PLAIN", 6000, "", None)
        for mechanism in _MECHANISMS:
            yield self._logins(f"logins a second, {mechanism}", "LOGIN", 5000, mechanism, None, aim="≥ 1,000")

    def fetch(self) -> Iterator[Figure]:
        for name, listener, authority, aim in (("without TLS", "PLAIN", None, ""),
                                               ("TLS", "TLS", self._server.authority, "≥ 250")):  # fmt: skip
            address = self._server.address(listener)
            size = _many_fetches(address, 1, authority) / _MEGABYTE
            count = self._count(400)
            cpu_s, wall_s = self._both(_many_fetches, count, lambda share: (address, share, authority))  # noqa: B023
            rate = f"{count * size / cpu_s:,.0f} by CPU, {count * size / wall_s:,.0f} by the clock"
            yield Figure(f"fetched MB a second, {name}", rate, aim)

    def memory(self) -> Iterator[Figure]:
        """Clients that only connect, and clients that ask for 8 MiB and read nothing."""
        server = self._server
        address = server.address("TLS")
        for name, request, count in (("idle", _VERSIONS_REQUEST, 500), ("fetching", _fetch_request(), 100)):
            before = server.memory()
            server.forget_peak()
            connections = [TlsConnection(address, _context(server.authority)) for _ in range(count)]
            for connection in connections:
                connection.socket.sendall(request)
            time.sleep(3)
            grown = (server.memory("VmHWM") - before) / count / 2**20
            for connection in connections:
                connection.socket.close()
            time.sleep(1)
            yield Figure(f"MiB for each {name} connection with TLS", f"{grown:.2f}", "≤ 2")

    def stuck(self) -> Iterator[Figure]:
        server = self._server
        usual, cpu = self._delays(1.0, lambda: None)
        yield Figure("delay of a request in ms, no handshake", usual, "")
        before = server.memory()
        server.forget_peak()
        held: list[socket.socket] = []

        def begin() -> None:
            address = server.address("TLS")
            held.extend(half_handshake(address, ends=number % 2) for number in range(_STUCK))

        found, cpu = self._delays(3.0, begin)
        grown = (server.memory("VmHWM") - before) / 2**20
        yield Figure(f"delay of a request in ms, {_STUCK} handshakes begin and stay", found, "< 50")
        yield Figure("CPU ms of the broker for them", f"{cpu * 1e3:.0f}", "")
        yield Figure(f"MiB for {_STUCK} stuck handshakes", f"{grown:.1f}", "≤ 64")
        for one in held:
            one.close()

    def _delays(self, seconds: float, meanwhile: Callable[[], None]) -> tuple[str, float]:
        """Sends Metadata requests for some seconds. Returns median and maximum of their times, and the broker's CPU s
        for everything but these requests."""
        connection = Connection(self._server.address("PLAIN"))
        request = frames.encode_request(METADATA, 4, 0, "bench", {"topics": [], "allow_auto_topic_creation": False})
        connection.call(request)
        other = threading.Thread(target=meanwhile)
        took: list[float] = []
        ran = self._server.ran_s()
        ends = time.monotonic() + seconds
        other.start()
        while time.monotonic() < ends or other.is_alive():
            began = time.perf_counter()
            connection.call(request)
            took.append(time.perf_counter() - began)
            time.sleep(_PAUSE_S)
        other.join()
        connection.socket.close()
        return f"{statistics.median(took) * 1e3:.1f}, at most {max(took) * 1e3:.1f}", self._server.ran_s() - ran

    def users(self) -> Iterator[Figure]:
        """Wrong passwords of a known user and of unknown ones, in random order over connections of their own."""
        chance = random.Random(1)
        for mechanism, count in (("PLAIN", 4000), (_MECHANISMS[0], 10_000)):
            took: dict[bool, list[float]] = {True: [], False: []}
            for number in range(self._count(count)):
                is_known = chance.random() < 0.5
                user = _USER if is_known else f"{_USER[:-1]}{chance.randrange(10)}"
                took[is_known].append(_refused_login(self._server.address("QUICK"), mechanism, user, number))
            known, unknown = (statistics.median(one) * 1e6 for one in (took[True], took[False]))
            low, _, high = statistics.quantiles(took[True] + took[False], n=4)
            shown = f"{unknown - known:+.1f} of {known:.0f}, quartiles {(high - low) * 1e6:.0f} apart; "
            chances = _chance_of(took[True], took[False])
            yield Figure(
                f"µs more for an unknown user than for a wrong password, {mechanism}",
                f"{shown}{chances:.0%} of random divisions differ more", "less than the noise",
            )  # fmt: skip

    def start(self) -> Iterator[Figure]:
        """``odradek.Broker`` with and without security, in turn, until it is ready."""
        took: dict[str | None, list[float]] = {None: [], "SASL_SSL": []}
        for _ in range(self._count(30) // 3):
            for security, seconds in took.items():
                began = time.perf_counter()
                with Broker(security=security):
                    seconds.append(time.perf_counter() - began)
        plain, secured = (statistics.median(seconds) for seconds in took.values())
        yield Figure("start of odradek.Broker with SASL_SSL", f"{secured:.2f} s, without security {plain:.2f} s: "
                     f"{secured / plain:.2f} times", "≤ 1.5 times")  # fmt: skip

    def decisions(self) -> Iterator[Figure]:
        acls = list(_acls(10_000))
        began = time.process_time()
        index = AclIndex(acls)
        yield Figure("ms to index 10,000 ACLs", f"{(time.process_time() - began) * 1e3:.0f}", "")
        names = [f"topic-{number}.part" for number in range(self._count(20_000))]
        began = time.process_time()
        for name in names:
            index.decide("User:user-7", "127.0.0.1", Operation.READ, Resource.TOPIC, name)
        took = (time.process_time() - began) / len(names)
        yield Figure("µs of a decision, 10,000 ACLs, not cached", f"{took * 1e6:.1f}", "≤ 50")
        authorizer, asker = StandardAuthorizer(), _Asker()
        for number, acl in enumerate(acls):
            authorizer._replace(number, None, acl)  # type: ignore[arg-type]
        few = names[:100]
        for kind, repeated in (("cached", few * self._count(500)), ("not cached, by the authorizer", names[100:9000])):
            began = time.process_time()
            for name in repeated:
                authorizer.allows(asker, Operation.READ, Resource.TOPIC, name)
            took = (time.process_time() - began) / len(repeated)
            yield Figure(f"µs of a decision, {kind}", f"{took * 1e6:.2f}", "≤ 2" if kind == "cached" else "≤ 50")


def _refused_login(address: str, mechanism: str, user: str, number: int) -> float:
    """Returns the seconds from the first message of a login to the broker's refusal."""
    connection = Connection(address)
    begin = frames.encode_request(SASL_HANDSHAKE, 1, 1, "bench", {"mechanism": mechanism})
    connection.call(begin)
    nonce = f"nonce{number}"
    if mechanism == "PLAIN":
        messages: list[Callable[[bytes], bytes]] = [lambda _: f"\0{user}\0wrong".encode()]
    else:
        messages = [
            lambda _: f"n,,n={user},r={nonce}".encode(),
            lambda first: b"c=biws," + first.partition(b",")[0] + b",p=" + base64.b64encode(bytes(32)),
        ]
    took, answer = 0.0, b""
    for message in messages:
        request = frames.encode_request(SASL_AUTHENTICATE, 2, 1, "bench", {"auth_bytes": message(answer)})
        began = time.perf_counter()
        reply = connection.call(request)
        took += time.perf_counter() - began
        _, decoded = frames.decode_reply(SASL_AUTHENTICATE, 2, memoryview(reply))
        answer = bytes(decoded.auth_bytes)
    if decoded.error_code == 0:
        raise RuntimeError("the broker has accepted a wrong password")
    connection.socket.close()
    return took


def _chance_of(one: list[float], other: list[float]) -> float:
    """Returns the share of random divisions of both lists whose medians differ more than those of the lists."""
    chance = random.Random(2)
    both, rounds, more = one + other, 200, 0
    found = abs(statistics.median(one) - statistics.median(other))
    for _ in range(rounds):
        chance.shuffle(both)
        more += abs(statistics.median(both[: len(one)]) - statistics.median(both[len(one) :])) > found
    return more / rounds


class _Asker:
    client_host = "/127.0.0.1"
    principal = Principal(USER, "user-7")
    api_name = "Fetch"


def _acls(count: int) -> Iterator[Acl]:
    """ACLs of a large cluster: of 100 users, for topics by name and by prefix, and for everyone."""
    for number in range(count):
        user = "User:*" if number % 50 == 0 else f"User:user-{number % 100}"
        pattern = Pattern.PREFIXED if number % 2 else Pattern.LITERAL
        name = f"topic-{number // 4}" + ("." if number % 4 == 1 else ".part")
        permission = Permission.DENY if number % 97 == 0 else Permission.ALLOW
        operation = (Operation.READ, Operation.WRITE, Operation.ALL)[number % 3]
        yield Acl(Resource.TOPIC, name, pattern, user, "*", operation, permission)


def half_handshake(address: str, *, ends: int) -> socket.socket:
    """A connection whose TLS handshake stops: within its first message, or (``ends`` 1) before its last one."""
    host, _, port = address.rpartition(":")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = _context("").wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    opened = socket.create_connection((host, int(port)), timeout=60)
    opened.sendall(hello if ends else hello[: len(hello) // 2])
    return opened


CASES = ("stuck", "memory", "tls", "scram", "fetch", "decisions", "users", "start")
"""The two that measure memory come first: later a broker has freed memory that new connections use."""


@contextmanager
def running() -> Iterator[Server]:
    """A broker with a topic of records, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="odradek-security-") as folder:
        server = Server(Path(folder))
        with server.process:
            topic = {"topics": [{"name": _TOPIC}], "allow_auto_topic_creation": True}
            Connection(server.address("PLAIN")).call(frames.encode_request(METADATA, 4, 0, "bench", topic))
            time.sleep(_IMPORTS_S)
            fill(server.address("PLAIN"), _TOPIC, 20, 1, 1000, 100)
            yield server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.security", description=__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="only this case (repeatable)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the work, for a trial run")
    options = parser.parse_args()
    with running() as server, ProcessPoolExecutor(_CLIENTS, mp_context=get_context("spawn")) as pool:
        bench = Bench(server, options.scale, pool)
        for case in options.only or CASES:
            for figure in getattr(bench, case)():
                print(f"{figure.name}: {figure.value}" + (f" ({figure.aim})" if figure.aim else ""), flush=True)


if __name__ == "__main__":
    main()
