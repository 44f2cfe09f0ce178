"""AlterUserScramCredentials 0: sets and takes back users' SCRAM credentials.

They are kept, described and there after a restart, as in an Apache Kafka without SASL. A password is not sent: what
comes is salted and hashed by the client, and what is kept is derived from that (RFC 5802).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from odradek.broker.long_replies import elements, reply
from odradek.broker.scheduler import value_of
from odradek.catalog.credentials import HASHES, AlterCredential, Credential, check_size
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.api import BrokerServices, Context
    from odradek.broker.metadata_log import Change
    from odradek.broker.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)


def handle(broker: BrokerServices, context: Context, message: Any) -> Steps[list[Chunk]]:
    accepted: dict[str, AlterCredential] = {}
    refused: dict[str, KafkaError] = {}

    def alter(change: Change) -> Steps[None]:
        yield from _check_all(change, message, accepted, refused)
        for request in accepted.values():
            yield from change.add(request)

    try:
        yield from value_of(broker.controller.write(alter, context))
    except KafkaError as error:  # nothing was written
        refused |= dict.fromkeys(accepted, error.kept())
        accepted = {}
    results = elements(context, "results")
    for user in accepted:
        results.add({"user": user, "error_code": ErrorCode.none, "error_message": None})
        yield None
    for user, fault in refused.items():
        results.add({"user": user, "error_code": fault.code, "error_message": fault.message})
        yield None
    broker.leftovers.add(accepted, refused)
    return reply(context, {"results": results})


def _check_all(
    change: Change, message: Any, accepted: dict[str, AlterCredential], refused: dict[str, KafkaError]
) -> Steps[None]:
    """What becomes of each user, whose first change alone counts: a second one refuses both."""
    for row in _rows(message):
        if row.name in accepted:
            del accepted[row.name]
            text = "A user's credentials can be altered once in a request."
            refused[row.name] = KafkaError(ErrorCode.duplicate_resource, text)
        elif row.name not in refused:
            try:
                accepted[row.name] = _request(change, row)
            except KafkaError as error:
                refused[row.name] = error.kept()
        yield None


def _rows(message: Any) -> Iterator[Any]:
    yield from message.deletions
    yield from message.upsertions


def _request(change: Change, row: Any) -> AlterCredential:
    """Raises KafkaError where the change is refused."""
    iterations = getattr(row, "iterations", None)
    deletion = AlterCredential(row.name, row.mechanism, None)
    if iterations is None:
        change.check(deletion)
        return deletion
    change.check(deletion._replace(credential=Credential(b"", b"", b"", iterations)))
    check_size(row.salt, row.salted_password)
    name = HASHES[row.mechanism]
    client_key = hmac.digest(row.salted_password, b"Client Key", name)
    credential = Credential(
        bytes(row.salt),
        hashlib.new(name, client_key).digest(),
        hmac.digest(row.salted_password, b"Server Key", name),
        iterations,
    )
    return deletion._replace(credential=credential)
