"""The states of a SASL login at the broker, as in Kafka's SaslServerAuthenticator, without a socket."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from odradek.broker.logins.mechanisms import ScramUsers
from odradek.broker.logins.states import EXPECTED, NEXT, LoginAnswer, LoginState, SaslStates
from odradek.catalog.credentials import FormCounts, put
from odradek.core.access.credential import Credential
from odradek.core.access.salts import SaltForm
from odradek.security import scram
from odradek.security.sasl_server import (
    LoggedIn,
    LoginFailed,
    LoginRefused,
    Mechanism,
    PlainServer,
    PlainUsers,
    ScramLogin,
    made_up_keys,
)
from odradek.security.scram import ClientFirst, ScramClient, ScramError, keys_of, salted_password
from odradek.security.secret import Secret
from odradek.wire import frames, schemas

USERS = PlainUsers({"alice": "secret", "bob": "b"}, b"k" * 32)
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SALT = b"0123456789abcdef"
SPECIAL = "special user= test,scram"
"""The name of Kafka's testScramUsernameWithSpecialCharacters."""
_OF_SECRET = {
    number: keys_of(name, salted_password(name, Secret("secret"), SALT, 4096), SALT, 4096)
    for number, name in ((1, SHA_256), (2, SHA_512))
}
KEYS = {"alice": _OF_SECRET, SPECIAL: _OF_SECRET}


def users_of(rows: Iterable[tuple[str, Mapping[int, Credential | None]]]) -> ScramUsers:
    """Returns the keys of users that the catalogue got in this order."""
    users: dict[str, dict[int, Credential]] = {}
    forms: dict[int, FormCounts] = {}
    for user, credentials in rows:
        for mechanism, credential in credentials.items():
            put(users, forms, user, mechanism, credential)
    return ScramUsers(lambda: users, lambda: forms, b"key")


def scram_users() -> ScramUsers:
    return users_of(KEYS.items())


def make(mechanism: str) -> Mechanism:
    if mechanism == "PLAIN":
        return PlainServer(USERS.accepts)
    users = scram_users()
    return ScramLogin(mechanism, lambda client: users.keys(mechanism, client), "servernonce")


def states(*offered: str, before: tuple[str, str] | None = None, lifetime_ms: int = 0) -> SaslStates:
    return SaslStates(offered or ("PLAIN", SHA_256, SHA_512), make, lambda *_: lifetime_ms, before)


def request(api_key: int, version: int, message: dict[str, Any], correlation_id: int = 7) -> bytes:
    return frames.encode_request(api_key, version, correlation_id, "test", message)[4:]


def handshake(mechanism: str, version: int = 1) -> bytes:
    return request(17, version, {"mechanism": mechanism})


def authenticate(data: bytes, version: int = 2) -> bytes:
    return request(36, version, {"auth_bytes": data})


def api_versions(version: int = 3, name: str = "test") -> bytes:
    named = {"client_software_name": name, "client_software_version": "1"} if version >= 3 else {}
    return request(18, version, named)


def read(answer: LoginAnswer, api_key: int, version: int) -> Any:
    assert int.from_bytes(answer.reply[:4], "big") == len(answer.reply) - 4
    correlation_id, message = frames.decode_reply(api_key, version, memoryview(answer.reply)[4:])
    assert correlation_id == 7
    return message


def logged_in(login: SaslStates, data: bytes = b"\0alice\0secret") -> None:
    assert not login.receive(handshake("PLAIN")).failure
    assert not login.receive(authenticate(data)).failure
    assert login.state is LoginState.COMPLETE


# --- the order of requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login_by_plain(version: int) -> None:
    login = states(lifetime_ms=5000)
    assert login.receive(api_versions()).passes
    reply = read(login.receive(handshake("PLAIN")), 17, 1)
    assert (reply.error_code, tuple(reply.mechanisms)) == (0, ("PLAIN", SHA_256, SHA_512))
    assert login.login is None
    reply = read(login.receive(authenticate(b"\0alice\0secret", version)), 36, version)
    assert (reply.error_code, reply.error_message, bytes(reply.auth_bytes)) == (0, None, b"")
    if version:
        assert schemas.milliseconds(reply.session_lifetime) == 5000
    assert login.login == LoggedIn("alice")
    assert login.session_ms == 5000


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("user", ["alice", SPECIAL])
def test_a_login_by_scram(mechanism: str, user: str) -> None:
    login = states()
    client = ScramClient(mechanism, user, Secret("secret"), "clientnonce")
    login.receive(handshake(mechanism))
    first = read(login.receive(authenticate(client.first())), 36, 2)
    assert login.login is None
    final = read(login.receive(authenticate(client.final(bytes(first.auth_bytes)))), 36, 2)
    client.verify(bytes(final.auth_bytes))
    assert login.login == LoggedIn(user)


def bare(answer: LoginAnswer) -> bytes:
    assert int.from_bytes(answer.reply[:4], "big") == len(answer.reply) - 4
    return answer.reply[4:]


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_client_of_version_0_sends_bare_messages_of_scram(mechanism: str) -> None:
    login = states()
    client = ScramClient(mechanism, "alice", Secret("secret"), "clientnonce")
    assert read(login.receive(handshake(mechanism, 0)), 17, 0).error_code == 0
    client.verify(bare(login.receive(client.final(bare(login.receive(client.first()))))))
    assert login.login == LoggedIn("alice")
    refused = states()
    wrong = ScramClient(mechanism, "alice", Secret("wrong"), "clientnonce")
    refused.receive(handshake(mechanism, 0))
    answer = refused.receive(wrong.final(bare(refused.receive(wrong.first()))))
    assert (answer.reply, refused.login) == (b"", None)
    assert "the proof is wrong" in answer.failure


def test_a_client_of_version_0_sends_bare_messages() -> None:
    login = states()
    assert read(login.receive(handshake("PLAIN", 0)), 17, 0).error_code == 0
    assert login.receive(b"\0alice\0secret") == LoginAnswer(b"\0\0\0\0")
    assert login.login == LoggedIn("alice")
    refused = states()
    refused.receive(handshake("PLAIN", 0))
    answer = refused.receive(b"\0alice\0wrong")
    assert (answer.reply, answer.failure) == (b"", "Authentication failed: Invalid username or password")


def test_an_unknown_mechanism_is_named_with_the_enabled_ones() -> None:
    login = states("PLAIN")
    answer = login.receive(handshake("GSSAPI"))
    reply = read(answer, 17, 1)
    assert (reply.error_code, tuple(reply.mechanisms)) == (33, ("PLAIN",))
    assert answer.failure == "unsupported SASL mechanism 'GSSAPI'"
    assert login.state is LoginState.FAILED


def test_api_versions_comes_at_most_once_unless_its_version_or_its_names_are_refused() -> None:
    login = states()
    assert login.receive(request(18, 4, {"client_software_name": "a", "client_software_version": "1"})[:3]
                         + b"\x63" + request(18, 4, {"client_software_name": "a", "client_software_version": "1"})[4:]
                         ).passes  # fmt: skip
    assert login.receive(api_versions(name="-")).passes
    assert login.receive(api_versions(0)).passes
    assert "unexpected request before the login: api_versions" in login.receive(api_versions()).failure


@pytest.mark.parametrize("api_key", [0, 1, 3, 8, 19, 36, 60])
def test_no_other_request_is_read_before_the_login(api_key: int) -> None:
    for before in ([], [api_versions()]):
        login = states()
        for frame in before:
            login.receive(frame)
        answer = login.receive(api_key.to_bytes(2, "big") + b"\0\0" + b"\0\0\0\7" + b"\xff\xff" + b"x" * 40)
        assert answer.reply == b""
        assert answer.failure
        assert not answer.passes


def test_no_other_request_is_read_between_handshake_and_login() -> None:
    for frame in (api_versions(), handshake("PLAIN"), request(3, 0, {"topics": []})):
        login = states()
        login.receive(handshake("PLAIN"))
        assert "Unexpected Kafka request of type" in login.receive(frame).failure
        assert login.state is LoginState.FAILED


def test_a_request_between_handshake_and_login_gets_illegal_sasl_state() -> None:
    """As in Kafka, where the API's reply has an error code for the whole request."""
    asked = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    for frame, version in (
        (api_versions(), 3), (handshake("PLAIN"), 1), (request(10, 0, {"key": "g"}), 0), (request(3, 13, asked), 13),
        (request(22, 4, {"transactional_id": None, "transaction_timeout": 1}), 4),
    ):  # fmt: skip
        login = states()
        login.receive(handshake("PLAIN"))
        answer = login.receive(frame)
        api_key = int.from_bytes(frame[:2], "big")
        assert read(answer, api_key, version).error_code == 34
        assert answer.failure
    for frame in (request(3, 0, {"topics": []}), b"\x7f\xff\0\0" + bytes(20), b"\0\x03\0\x63" + bytes(20), b"\0"):
        login = states()
        login.receive(handshake("PLAIN"))
        answer = login.receive(frame)
        assert (answer.reply, bool(answer.failure)) == (b"", True)


def test_any_request_between_handshake_and_login_is_refused() -> None:
    """Of each API and version, served or not."""
    answered = set()
    for api_key in range(100):
        for version in range(20):
            login = states()
            login.receive(handshake("PLAIN"))
            answer = login.receive(api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\7\xff\xff\0")
            assert answer.failure
            if answer.reply and api_key != 36:
                answered.add(api_key)
                assert int.from_bytes(answer.reply[:4], "big") == len(answer.reply) - 4
                assert b"\0\x22" in answer.reply
    assert {10, 18, 22, 38, 39, 40, 41, 68} <= answered


def test_versions_that_do_not_exist_are_refused() -> None:
    assert states().receive(handshake("PLAIN")[:2] + b"\0\x05" + handshake("PLAIN")[4:]).failure
    login = states()
    login.receive(handshake("PLAIN"))
    assert "v9 is not supported" in login.receive(b"\0\x24\0\x09" + authenticate(b"")[4:]).failure


# --- refusals ---------------------------------------------------------------------------------------------------------

WRONG = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0alice\0wrong", WRONG),
        (b"\0mallory\0secret", WRONG),
        (b"\0alice\0secret ", WRONG),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"bob\0alice\0secret", "Authentication failed: Client requested an authorization id that is different from "
                                "username"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\xff\xfe\0secret", WRONG),
    ],
)  # fmt: skip
def test_refused_messages_of_plain_have_kafkas_texts(message: bytes, text: str) -> None:
    login = states()
    login.receive(handshake("PLAIN"))
    answer = login.receive(authenticate(message))
    reply = read(answer, 36, 2)
    assert (reply.error_code, reply.error_message) == (58, text)
    assert login.login is None
    assert login.state is LoginState.FAILED


def exchange(user: str, password: str, **more: Any) -> tuple[bytes, LoginAnswer]:
    """The server's first message and the answer to the proof."""
    login = states(**more)
    client = ScramClient(SHA_256, user, Secret(password), "clientnonce")
    login.receive(handshake(SHA_256))
    first = bytes(read(login.receive(authenticate(client.first())), 36, 2).auth_bytes)
    return first, login.receive(authenticate(client.final(first)))


def test_an_unknown_user_and_a_wrong_password_of_scram_get_the_same_answers() -> None:
    (known, wrong), (unknown, missing) = exchange("alice", "wrong"), exchange("mallory", "wrong")
    text = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    for answer in (wrong, missing):
        assert read(answer, 36, 2).error_message == text
    assert wrong.reply == missing.reply
    assert wrong.failure == missing.failure
    shapes = [[(part[0], len(part)) for part in first.decode().split(",")] for first in (known, unknown)]
    assert shapes[0] == shapes[1], "the salts have one size, and the numbers of iterations are equal"
    assert exchange("mallory", "other")[0] == unknown, "a user's salt does not change, and a made-up one does not"
    assert exchange("mallory2", "wrong")[0] != unknown


def test_made_up_keys_differ_by_mechanism_and_name() -> None:
    made = {
        made_up_keys(name, user, b"k", SaltForm(16), 4096).salt for name in ("sha256", "sha512") for user in ("a", "b")
    }
    assert len(made) == 4


def of_form(salt_bytes: int, iterations: int) -> dict[int, Credential]:
    return {1: Credential(b"\xff" * salt_bytes, b"stored", b"server", iterations)}


def keys(users: ScramUsers, name: str) -> Credential:
    return users.keys(SHA_256, ClientFirst(name, "nonce", False, "", "", "")).keys


def form(users: ScramUsers, name: str) -> tuple[int, int]:
    found = keys(users, name)
    return len(found.salt), found.iterations


SHARES = {(16, 4096): 880, (26, 4096): 100, (16, 8192): 19, (64, 16_384): 1}
MANY = [(f"user{number}", of_form(*one)) for one, count in SHARES.items() for number in range(count)]
MANY = [(f"{name}-{number}", made) for number, (name, made) in enumerate(MANY)]


def test_unknown_names_have_each_form_as_often_as_users() -> None:
    """A single user among 1,000 has a form of its own, and none of the first 64 has it."""
    users = users_of(MANY)
    names = 20_000
    found = Counter(form(users, f"unknown{number}") for number in range(names))
    assert found.keys() == SHARES.keys()
    for one, count in SHARES.items():
        expected = names * count / 1000
        assert abs(found[one] - expected) < 5 * expected**0.5, one
    assert form(users, MANY[-1][0]) == (64, 16_384), "a known user keeps its own"


def test_made_up_keys_stay_the_same_when_the_broker_reads_the_users_in_another_order() -> None:
    names = [f"unknown{number}" for number in range(500)]
    other = random.Random(5).sample(MANY, len(MANY))
    altered = [(name, of_form(20, 5000)) for name, _ in MANY[:50]]
    first, second = users_of(MANY), users_of([*altered, *other])
    assert [keys(first, name) for name in names] == [keys(second, name) for name in names]


def test_a_new_user_changes_few_made_up_keys() -> None:
    names = [f"unknown{number}" for number in range(5000)]
    before, after = users_of(MANY), users_of([*MANY, ("last", of_form(16, 8192))])
    changed = [name for name in names if keys(before, name) != keys(after, name)]
    assert 0 < len(changed) < 50
    for name in changed:
        old, new = keys(before, name).salt, keys(after, name).salt
        assert old[:8] != new[:8], "as after a change of the password"


def test_users_that_are_removed_have_no_form_any_more() -> None:
    users = users_of([*MANY, *((name, {1: None}) for name, _ in MANY[-20:])])
    found = {form(users, f"unknown{number}") for number in range(5000)}
    assert found == {(16, 4096), (26, 4096)}
    empty = users_of([("a", of_form(30, 9000)), ("a", {1: None})])
    assert form(empty, "unknown") == (32, 4096)


def test_a_login_reads_one_user_however_many_there_are() -> None:
    class OneAtATime(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all users were read")

        values = items = keys = __iter__

    forms: dict[int, FormCounts] = {}
    every = OneAtATime()
    users = ScramUsers(lambda: every, lambda: forms, b"key")
    for number in range(3):
        put(every, forms, f"user{number}", 1, of_form(26, 8192)[1])
        assert form(users, "unknown") == (26, 8192)
        assert form(users, "user0") == (26, 8192)


def test_salts_of_two_sizes_have_no_common_beginning() -> None:
    salts = [
        made_up_keys("sha256", "a", b"k", SaltForm(size), count).salt for size in (16, 26) for count in (4096, 8192)
    ]
    assert len({salt[:8] for salt in salts}) == 4


def java_salt(number: int) -> bytes:
    """The salt that Apache Kafka's commands make of a random number of 130 bits."""
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + text
    return text.encode()


def look(salt: bytes) -> tuple[bool, int, bytes, bytes]:
    return salt.isalnum() and salt == salt.lower(), len(salt), salt[:1], salt[1:2] if len(salt) == 26 else b""


def test_made_up_salts_look_like_those_of_kafkas_commands() -> None:
    """If all salts of users are numbers in base 36, so are those of unknown names, with the same sizes and digits."""
    rng = random.Random(3)
    salts = [java_salt(rng.getrandbits(130)) for _ in range(20_000)]
    users = users_of([(f"u{number}", {1: Credential(salt, b"a", b"b", 8192)}) for number, salt in enumerate(salts)])
    real = Counter(look(salt) for salt in salts)
    made_up = Counter(look(keys(users, f"unknown{number}").salt) for number in range(20_000))
    for one in real | made_up:
        assert abs(real[one] - made_up[one]) < 6 * (real[one] + made_up[one]) ** 0.5 + 6, one
    assert {one[0] for one in made_up} == {True}
    assert {one[2] for one in made_up if one[1] == 26} == {b"1"}


DIGITS, LOWER, UPPER = b"0123456789", bytes(range(97, 123)), bytes(range(65, 91))


@pytest.mark.parametrize("letters", [
    DIGITS, DIGITS + b"abcdef", DIGITS + b"ABCDEF", DIGITS + LOWER, DIGITS + LOWER + UPPER,
    DIGITS + LOWER + UPPER + b"+/",
    DIGITS + LOWER + UPPER + b"-_", bytes(range(32, 127)),
])  # fmt: skip
def test_made_up_salts_have_the_alphabet_of_the_users_salts(letters: bytes) -> None:
    rng = random.Random(7)
    salts = [bytes(rng.choices(letters, k=32)) for _ in range(200)]
    users = users_of([(f"u{number}", {1: Credential(salt, b"a", b"b", 4096)}) for number, salt in enumerate(salts)])
    found = [keys(users, f"unknown{number}").salt for number in range(200)]
    assert {len(salt) for salt in found} == {32}
    assert set(b"".join(found)) == set(letters), "each character, and no other"


def test_an_authorization_id_of_scram_has_to_be_the_users_name() -> None:
    for header, is_accepted in (("n,a=alice,", True), ("n,a=bob,", False)):
        server = make(SHA_256)
        first = f"{header}n=alice,r=clientnonce".encode()
        if not is_accepted:
            with pytest.raises(LoginRefused, match="authorization id that is different from username"):
                server.step(first)
            continue
        assert server.step(first).startswith(b"r=clientnonceservernonce")


FRAMES = {
    "api versions": api_versions(), "handshake": handshake("PLAIN"), "bare handshake": handshake("PLAIN", 0),
    "unknown mechanism": handshake("GSSAPI"), "right password": authenticate(b"\0alice\0secret"),
    "wrong password": authenticate(b"\0alice\0wrong"), "bare password": b"\0alice\0secret", "garbage": b"\0",
    "metadata": request(3, 1, {"topics": []}),
}  # fmt: skip


def test_a_login_takes_the_transitions_of_its_table() -> None:
    """From each state that any order of these frames reaches, each frame comes once more."""
    seen: dict[LoginState, set[LoginState]] = {}
    ways: list[tuple[str, ...]] = [()]
    known = set()
    while ways:
        way = ways.pop()
        for name, frame in FRAMES.items():
            login = states()
            for step in way:
                login.receive(FRAMES[step])
            before, was_bare = login.state, "bare handshake" in way
            answer = login.receive(frame)
            if login.state is not before or answer.failure:
                seen.setdefault(before, set()).add(login.state)
            is_expected = before is LoginState.AUTHENTICATE and was_bare
            if not is_expected and int.from_bytes(frame[:2], "big") not in EXPECTED[before]:
                assert answer.failure, f"{before.name}: {name}"
            if (login.state, was_bare or name == "bare handshake") not in known:
                known.add((login.state, was_bare or name == "bare handshake"))
                ways.append((*way, name))
    assert seen == {state: set(after) for state, after in NEXT.items()}


@pytest.mark.parametrize("ended", ["right password", "wrong password"])
def test_a_login_that_has_ended_begins_no_other_one(ended: str) -> None:
    for frame in FRAMES.values():
        login = states()
        login.receive(handshake("PLAIN"))
        login.receive(FRAMES[ended])
        assert login.receive(frame).failure
        assert login.state is LoginState.FAILED


def test_a_token_is_no_password_where_there_are_no_tokens() -> None:
    with pytest.raises(LoginFailed, match="no delegation tokens"):
        make(SHA_256).step(b"n,,n=alice,r=x,tokenauth=true")


def test_a_message_after_the_login_is_refused() -> None:
    plain = make("PLAIN")
    plain.step(b"\0alice\0secret")
    with pytest.raises(LoginFailed):
        plain.step(b"\0alice\0secret")


# --- a further login on the same connection ---------------------------------------------------------------------------


def test_a_further_login_has_to_be_that_of_the_same_user() -> None:
    same = states(before=("PLAIN", "alice"))
    logged_in(same)
    other = states(before=("PLAIN", "alice"))
    other.receive(handshake("PLAIN"))
    reply = read(other.receive(authenticate(b"\0bob\0b")), 36, 2)
    assert (reply.error_code, reply.error_message) == (
        58, "Cannot change principals during re-authentication from User.alice: User.bob"
    )  # fmt: skip
    assert other.login is None


def test_a_further_login_has_to_use_the_same_mechanism() -> None:
    login = states(before=("PLAIN", "alice"))
    assert read(login.receive(handshake(SHA_256)), 17, 1).error_code == 0
    text = read(login.receive(authenticate(b"n,,n=alice,r=x")), 36, 2).error_message
    assert text == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism 'PLAIN'"
    )


def test_a_further_login_names_itself_in_its_refusal() -> None:
    text = read(exchange("alice", "wrong", before=(SHA_256, "alice"))[1], 36, 2).error_message
    assert text.startswith("Authentication failed during re-authentication due to invalid credentials")


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_no_repr_shows_a_secret() -> None:
    login = states()
    logged_in(login)
    for thing in (USERS, scram_users(), login, Credential(SALT, b"stored", b"server", 4096)):
        text = repr(thing) + str(thing)
        assert "secret" not in text
        assert "stored" not in text


def test_a_client_first_message_of_the_server_side() -> None:
    client = scram.read_client_first(b"n,a=al=2Cice,n=al=2Cice,r=abc,tokenauth=true")
    assert client == ClientFirst("al,ice", "abc", True, "n=al=2Cice,r=abc,tokenauth=true", "n,a=al=2Cice,", "al,ice")
    with pytest.raises(ScramError):
        scram.read_client_first(b"n,a=x=Z,n=a,r=b")


def test_a_request_before_the_login_loads_no_class_of_its_own() -> None:
    """A client that has not logged in can name each of 90 APIs in each version."""
    before = set(sys.modules)
    for api_key in range(100):
        if api_key not in (17, 18, 36):
            for version in range(3):
                frame = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(8)
                assert states().receive(frame).failure.startswith("unexpected request before the login: ")
    assert {name for name in set(sys.modules) - before if name.startswith("kio.schema")} == set()
