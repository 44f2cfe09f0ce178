"""SCRAM credentials of users (RFC 5802)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from odradek.core.access.credential import Credential
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.core.access.salts import SaltForm

SCRAM_SHA_256, SCRAM_SHA_512 = 1, 2
MECHANISMS = {SCRAM_SHA_256: "SCRAM-SHA-256", SCRAM_SHA_512: "SCRAM-SHA-512"}
"""Kafka's number of a mechanism → its name."""
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16_384
MAX_SECRET_BYTES = 1024
"""The largest size of a salt and of a salted password: sixteen times the size of the longest hash."""


class AlterCredential(NamedTuple):
    """Sets or, with ``None``, removes a user's credential for one mechanism."""

    user: str
    mechanism: int
    credential: Credential | None


Users = dict[str, dict[int, Credential]]
"""User → mechanism → credential."""


class CredentialForm(NamedTuple):
    """What a server shows of a credential before the login: the form of its salt, and the iterations."""

    salt: SaltForm
    iterations: int


class FormCounts:
    """How many users have each form of a credential for one mechanism."""

    def __init__(self) -> None:
        self._counts: Counter[CredentialForm] = Counter()
        self._forms: list[CredentialForm] = []
        self._ends: list[int] = []
        self._is_sorted = True

    def change(self, old: Credential | None, new: Credential | None) -> None:
        """Counts the change of one user's credential. None: the user has none."""
        if old is not None:
            form = _form(old)
            self._counts[form] -= 1
            if not self._counts[form]:
                del self._counts[form]
        if new is not None:
            self._counts[_form(new)] += 1
        self._is_sorted = False

    def at(self, place: int) -> CredentialForm | None:
        """Returns the form at a place among all users, from 0 to 2**64 - 1, in an order of forms that stays the same.

        Places that are chosen at random have each form as often as the users. None: no user has a credential."""
        if not self._is_sorted:
            self._forms = sorted(self._counts)
            self._ends = list(accumulate(self._counts[form] for form in self._forms))
            self._is_sorted = True
        if not self._forms:
            return None
        return self._forms[bisect_right(self._ends, place * self._ends[-1] >> 64)]


def _form(credential: Credential) -> CredentialForm:
    from odradek.core.access.salts import salt_form  # here, because a broker without users does not need it

    return CredentialForm(salt_form(credential.salt), credential.iterations)


def check_size(salt: bytes, salted_password: bytes) -> None:
    """Raises KafkaError (UNACCEPTABLE_CREDENTIAL) if the salted password is empty or if it or the salt is too long."""
    if not salted_password:
        raise KafkaError(ErrorCode.unacceptable_credential, "The salted password is empty.")
    if max(len(salt), len(salted_password)) > MAX_SECRET_BYTES:
        text = f"The salt and the salted password must not exceed {MAX_SECRET_BYTES} bytes."
        raise KafkaError(ErrorCode.unacceptable_credential, text)


def check(users: Users, request: AlterCredential) -> None:
    """Raises KafkaError if Apache Kafka would refuse the change."""
    if not request.user:
        raise KafkaError(ErrorCode.unacceptable_credential, "The user name is empty.")
    if request.mechanism not in MECHANISMS:
        raise KafkaError(ErrorCode.unsupported_sasl_mechanism, f"The SCRAM mechanism {request.mechanism} is unknown.")
    if request.credential is None:
        if request.mechanism not in users.get(request.user, {}):
            raise KafkaError(ErrorCode.resource_not_found, "The user has no credential for this mechanism.")
    elif not MIN_ITERATIONS <= request.credential.iterations <= MAX_ITERATIONS:
        text = f"Iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {request.credential.iterations}."
        raise KafkaError(ErrorCode.unacceptable_credential, text)


def put(users: Users, forms: dict[int, FormCounts], user: str, mechanism: int, credential: Credential | None) -> None:
    """Applies a change of the log to the users, and to the counts of their forms by mechanism.

    Replaces the user's dict, because images of the catalogue share the old one."""
    before = users.get(user, {})
    forms.setdefault(mechanism, FormCounts()).change(before.get(mechanism), credential)
    kept = {name: each for name, each in before.items() if name != mechanism}
    if credential is not None:
        kept[mechanism] = credential
    if kept:
        users[user] = kept
    else:
        users.pop(user, None)
