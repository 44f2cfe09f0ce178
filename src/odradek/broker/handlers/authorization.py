"""Questions to the authorizer that several handlers ask in the same way.

Without an authorizer everything is allowed. Handlers of frequent requests ask the authorizer themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.access.acl import CLUSTER_NAME, Resource
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.handlers.api import Context, NodeServices

DENIED = {
    Resource.TOPIC: ErrorCode.topic_authorization_failed,
    Resource.GROUP: ErrorCode.group_authorization_failed,
    Resource.CLUSTER: ErrorCode.cluster_authorization_failed,
    Resource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
"""The code of a refusal for each type of resources."""
_TEXTS = {
    Resource.TOPIC: "Topic authorization failed.",
    Resource.GROUP: "Group authorization failed.",
    Resource.CLUSTER: "Cluster authorization failed.",
    Resource.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}


def is_allowed(
    broker: NodeServices,
    context: Context,
    operation: int,
    resource_type: int,
    name: str,
    *,
    logs_denial: bool = True,
) -> bool:
    """Returns whether the client may do the operation. ``logs_denial``: whether the audit log has a refusal."""
    authorizer = broker.authorizer
    return authorizer is None or authorizer.allows(context, operation, resource_type, name, logs_denial=logs_denial)


def is_allowed_for_cluster(broker: NodeServices, context: Context, operation: int, *, logs_denial: bool = True) -> bool:
    """Returns whether the client may do the operation with the cluster."""
    return is_allowed(broker, context, operation, Resource.CLUSTER, CLUSTER_NAME, logs_denial=logs_denial)


def check(broker: NodeServices, context: Context, operation: int, resource_type: int, name: str) -> None:
    """Raises KafkaError if the client may not do the operation."""
    if not is_allowed(broker, context, operation, resource_type, name):
        raise refusal(resource_type)


def check_cluster(broker: NodeServices, context: Context, operation: int) -> None:
    """Raises KafkaError (CLUSTER_AUTHORIZATION_FAILED) if the client may not do the operation with the cluster."""
    check(broker, context, operation, Resource.CLUSTER, CLUSTER_NAME)


def refusal(resource_type: int) -> KafkaError:
    """Returns the error of a refused request."""
    return KafkaError(DENIED[resource_type], _TEXTS[resource_type])
