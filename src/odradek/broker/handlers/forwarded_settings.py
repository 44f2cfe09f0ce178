"""Changes of settings at a broker of a cluster: what it answers itself, and what it forwards to the controller.

As in Kafka, a broker checks changes of the settings of brokers itself, because it alone knows its settings: they may
name this broker or all brokers. The levels of loggers never reach the controller. It forwards the rest of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.handlers.setting_changes import MAX_SETTINGS, check_names
from odradek.broker.loop.long_lists import count_in_steps, list_in_steps
from odradek.broker.settings.resources import LOGGER
from odradek.catalog.state import BROKER
from odradek.core.errors import ConfigError, ErrorCode, KafkaError
from odradek.wire import schemas
from odradek.wire.api_keys import INCREMENTAL_ALTER_CONFIGS
from odradek.wire.frames import encode_request
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

    class AlteredResource(Protocol):
        """A resource of a request of either API."""

        resource_type: int
        resource_name: str
        configs: Sequence[Any]

    class AlteredRow(Protocol):
        """A row of the controller's reply."""

        error_code: ErrorCode
        error_message: str | None

    Change = Callable[[Any, list[Any]], object]
    """Changes the settings of a resource."""

_PREFIX_BYTES = 4
Forward = Callable[[bytes], "Steps[bytes]"]
"""Forwards a whole request, without its length. Returns the message of the reply."""


def handle(
    broker: BrokerServices, context: Context, message: Any, frame: bytes, forward: Forward
) -> Steps[bytes | list[Chunk]]:
    """Serves AlterConfigs or IncrementalAlterConfigs. ``frame``: the whole request. Raises KafkaError."""
    changes: Callable[[BrokerServices, Context, Any], Change]
    if context.api_key == INCREMENTAL_ALTER_CONFIGS:
        from odradek.broker.handlers import k44_incremental_alter_configs

        changes = k44_incremental_alter_configs.changes
    else:
        from odradek.broker.handlers import k33_alter_configs

        changes = k33_alter_configs.changes
    answered = yield from _answered_here(broker, message.resources, changes(broker, context, message))
    if not answered:
        return (yield from forward(frame))
    remaining = [resource for at, resource in enumerate(message.resources) if at not in answered]
    rows: Sequence[AlteredRow] = ()
    if remaining:
        body = {"resources": list(map(_row_of_request, remaining)), "validate_only": message.validate_only}
        rest = encode_request(context.api_key, context.version, 0, context.client_id, body)[_PREFIX_BYTES:]
        packed = yield from forward(rest)
        rows = schemas.decode(context.api_key, context.version, Kind.RESPONSE, packed, 0)[0].responses
    return (yield from _joined(context, message.resources, answered, rows))


def _answered_here(
    broker: BrokerServices, resources: Sequence[AlteredResource], change: Change
) -> Steps[dict[int, KafkaError | None]]:
    """Returns position → answer for the resources that need no controller: why it is refused, None if it is done."""
    times = yield from count_in_steps((resource.resource_type, resource.resource_name) for resource in resources)
    answered: dict[int, KafkaError | None] = {}
    for at, resource in enumerate(resources):
        yield None
        kind = resource.resource_type
        if kind not in (BROKER, LOGGER):
            continue
        try:
            if times[kind, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            settings = yield from list_in_steps(islice(resource.configs, MAX_SETTINGS + 1))
            check_names([row.name for row in settings])
            change(resource, settings)
            if kind == LOGGER:
                answered[at] = None
        except KafkaError as error:
            answered[at] = error.kept()
        except ConfigError as error:
            answered[at] = KafkaError(ErrorCode.invalid_config, str(error))
    return answered


def _row_of_request(resource: AlteredResource) -> dict[str, object]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [_setting(config) for config in resource.configs],
    }


def _setting(config: Any) -> dict[str, object]:
    row = {"name": config.name, "value": config.value}
    operation = getattr(config, "config_operation", None)
    return row if operation is None else row | {"config_operation": operation}


def _joined(
    context: Context,
    resources: Sequence[AlteredResource],
    answered: Mapping[int, KafkaError | None],
    rows: Sequence[AlteredRow],
) -> Steps[list[Chunk]]:
    """Returns the reply with the rows of this broker and of the controller, in the order of the request."""
    found = iter(rows)
    made = elements(context, "responses")
    for at, resource in enumerate(resources):
        code, text = ErrorCode.none, None
        if at in answered:
            refused = answered[at]
            if refused is not None:
                code, text = refused.code, refused.message or None
        elif (row := next(found, None)) is not None:
            code, text = row.error_code, row.error_message
        else:
            code = ErrorCode.unknown_server_error
        made.add(
            {
                "error_code": code,
                "error_message": text,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
        yield None
    return reply(context, {"responses": made})
