"""Secrets are compared with ``hmac.compare_digest`` alone: these tests read the whole source.

``==`` ends at the first byte that differs, so its time tells how much of a guess is right.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import odradek

SOURCE = Path(odradek.__file__).parent
SECRET = re.compile(
    "password|passphrase|secret|hmac|proof|signature|token|csrf|nonce|credential|salted|stored_key|server_key|"
    "client_key|auth_bytes|authorization|bearer|cookie|digest|jaas|reveal"
)
"""Parts of the names of secrets."""
PACKAGES = (
    "acls", "aio", "broker", "catalog", "cli", "client", "core", "monitor", "net", "security", "testing", "text",
    "wire",
)  # fmt: skip
"""Those through which secrets go. The others have records, tables and their checksums."""
_OPERATORS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_METHODS = ("startswith", "endswith", "find", "index", "rfind", "count", "__eq__", "__ne__", "__contains__")

ALLOWED = {
    # Lengths, which the protocol shows.
    "len(proof) != len(signature)",
    "len(signature) != 2 * size",
    # The client's own nonce, which both sides have sent.
    "nonce == self._nonce",
    "nonce.startswith(self._nonce)",
    # Words of a syntax.
    "(';', False) in tokens[:-1]",
    "tokens[-1] != (';', False)",
    "tokens[1][0].lower() not in _FLAGS",
    # Names of mechanisms, settings, fields and users; the first bytes of a kind of file.
    "jaas.name != module",
    "name not in secrets",
    "authorization not in ('', accepted.subject)",
    "client.authorization not in ('', client.user)",
    "extensions.get('tokenauth', '').lower() == 'true'",
    "mechanism == OAUTHBEARER",
    "options.get('tokenauth', '').lower() == 'true'",
    "head.startswith(signature)",
    "name not in signature.parameters",
    "name not in self.secrets",
    # Ids, owners and kinds of records of delegation tokens: none is a secret. ``DelegationTokens.find`` looks a
    # digest up, then compares in constant time.
    "token_id in self.tokens",
    "tokens.find(secret)",
    "renewer != token.owner",
    "renewer not in token.renewers",
    "api_key == DELEGATION_TOKEN",
    "api_key == REMOVE_DELEGATION_TOKEN",
    "api_key == USER_SCRAM_CREDENTIAL",
    "api_key == REMOVE_USER_SCRAM_CREDENTIAL",
}


def names_in(node: ast.AST) -> Iterator[str]:
    """Yields the names of variables, attributes and keys in an expression."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant):
            yield str(one.slice.value)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "get":
            yield from (str(each.value) for each in one.args[:1] if isinstance(each, ast.Constant))


def has_secret(*nodes: ast.AST) -> bool:
    return any(SECRET.search(name.lower()) for node in nodes for name in names_in(node))


def comparisons(source: str) -> Iterator[str]:
    """Yields the comparisons other than ``compare_digest`` that have the name of a secret."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare() if any(isinstance(one, _OPERATORS) for one in node.ops):
                if has_secret(node.left, *node.comparators):
                    yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _METHODS:
                if has_secret(owner, *node.args):
                    yield ast.unparse(node)
            case ast.Match(subject=subject):
                if has_secret(subject):
                    yield f"match {ast.unparse(subject)}"


def test_secrets_are_compared_in_constant_time_alone() -> None:
    paths = [path for package in PACKAGES for path in (SOURCE / package).rglob("*.py")]
    assert len(paths) > 400
    texts = ((path, path.read_text()) for path in paths)
    found: dict[str, set[str]] = {}
    for path, text in texts:
        for one in comparisons(text) if SECRET.search(text.lower()) else ():
            found.setdefault(one, set()).add(str(path.relative_to(SOURCE)))
    assert {one: files for one, files in found.items() if one not in ALLOWED} == {}
    assert ALLOWED - found.keys() == set(), "an exception that no code needs any more"


@pytest.mark.parametrize(
    "source",
    [
        "password == given",
        "given != self._password",
        "token in known",
        "known['hmac'] == given",
        "headers.get(b'authorization') == wanted",
        "form.get('csrf_token') != wanted",
        "secret.reveal() == text",
        "given == expected.stored_key",
        "server_signature.startswith(given)",
        "wanted.__eq__(proof)",
        "tuple(fields) == (user, salted_password)",
        "match token:\n    case 'a': pass",
        "if a and digest(given) == wanted_digest: pass",
    ],
)
def test_the_check_finds_other_comparisons(source: str) -> None:
    assert list(comparisons(source))


@pytest.mark.parametrize("source", ["hmac.compare_digest(password, given)", "password is None", "name == user"])
def test_the_check_allows_what_is_safe(source: str) -> None:
    assert not list(comparisons(source))


PLACES = {
    "broker/metadata/delegation_tokens.py": 1,
    "cli/monitor/changes.py": 1,
    "monitor/http/access.py": 4,
    "registry/server.py": 1,
    "security/sasl_server.py": 1,
    "security/scram.py": 3,
    "security/secret.py": 1,
}
"""How many comparisons of secrets each module has: the proofs and nonces of SCRAM, passwords, tokens, cookies."""


def test_the_places_that_compare_secrets_are_known() -> None:
    counts = Counter(
        {str(path.relative_to(SOURCE)): path.read_text().count("hmac.compare_digest(") for path in SOURCE.rglob("*.py")}
    )
    assert +counts == PLACES
