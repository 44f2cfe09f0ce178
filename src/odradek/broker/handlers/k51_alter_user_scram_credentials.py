"""AlterUserScramCredentials 0: sets and deletes SCRAM credentials of users.

Clients send no password: they send the salted and hashed password, and the broker stores keys derived from it
(RFC 5802).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster, refusal
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.catalog.credentials import MECHANISMS, AlterCredential, check_size
from odradek.core.access.acl import Operation, Resource
from odradek.core.access.credential import Credential
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest,
        ScramCredentialUpsertion,
    )

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: AlterUserScramCredentialsRequest) -> Steps[list[Chunk]]:
    accepted: dict[str, AlterCredential] = {}
    refused: dict[str, list[bytes]] = {}
    results = elements(context, "results")

    def pack_refused(user: str, error: KafkaError) -> list[bytes]:
        return results.packed({"user": user, "error_code": error.code, "error_message": error.message})

    def alter(change: Change) -> Steps[None]:
        if not is_allowed_for_cluster(broker, context, Operation.ALTER):
            yield from _refuse_all(message, refused, pack_refused)
            return
        yield from _check_all(change, message, accepted, refused, pack_refused)
        for request in accepted.values():
            yield from change.add(request)

    whole = None
    try:
        try:
            yield from value_of(broker.controller.write(alter, context))
        except KafkaError as error:  # nothing was written
            whole = error.kept()
        for user in accepted:
            if whole is not None:
                refused[user] = pack_refused(user, whole)
            else:
                results.add({"user": user, "error_code": ErrorCode.none, "error_message": None})
            yield None
        for packed in refused.values():
            results.repeat(packed)
            yield None
    finally:  # the client may disconnect meanwhile
        broker.leftovers.add(accepted, refused)
    return reply(context, {"results": results})


def _refuse_all(
    message: AlterUserScramCredentialsRequest,
    refused: dict[str, list[bytes]],
    pack_refused: Callable[[str, KafkaError], list[bytes]],
) -> Steps[None]:
    """Refuses all users, because the client may not alter the cluster."""
    for deletion, _ in _rows(message):
        refused[deletion.user] = pack_refused(deletion.user, refusal(Resource.CLUSTER))
        yield None


def _check_all(
    change: Change,
    message: AlterUserScramCredentialsRequest,
    accepted: dict[str, AlterCredential],
    refused: dict[str, list[bytes]],
    pack_refused: Callable[[str, KafkaError], list[bytes]],
) -> Steps[None]:
    """Sorts the users into ``accepted`` and ``refused``, which has the packed rows of the reply.

    Two changes of one user are both refused."""
    for deletion, upsertion in _rows(message):
        user = deletion.user
        if user in accepted:
            del accepted[user]
            text = "A request can alter the credentials of a user only once."
            refused[user] = pack_refused(user, KafkaError(ErrorCode.duplicate_resource, text))
        elif user not in refused:
            try:
                accepted[user] = _request(change, deletion, upsertion)
            except KafkaError as error:
                refused[user] = pack_refused(user, error)
        yield None


def _rows(
    message: AlterUserScramCredentialsRequest,
) -> Iterator[tuple[AlterCredential, ScramCredentialUpsertion | None]]:
    """Yields for each row the deletion, and the new credential or None."""
    for deleted in message.deletions:
        yield AlterCredential(deleted.name, deleted.mechanism, None), None
    for row in message.upsertions:
        yield AlterCredential(row.name, row.mechanism, None), row


def _request(change: Change, deletion: AlterCredential, row: ScramCredentialUpsertion | None) -> AlterCredential:
    """Returns the catalogue's request for one row. Raises KafkaError if the change is refused."""
    if row is None:
        change.check(deletion)
        return deletion
    change.check(deletion._replace(credential=Credential(b"", b"", b"", row.iterations)))
    check_size(row.salt, row.salted_password)
    from odradek.security.scram import keys_of  # few brokers have users

    credential = keys_of(MECHANISMS[row.mechanism], row.salted_password, bytes(row.salt), row.iterations)
    return deletion._replace(credential=credential)
