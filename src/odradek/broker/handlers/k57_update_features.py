"""UpdateFeatures 0–2: raises or lowers the level of a feature within what this broker can do.

No level can be changed yet: a feature this broker has stays at its level, others are unknown.
Versions: 1 the kind of change and validate_only, 2 one error for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    for update in message.feature_updates:
        level = broker.features.get(update.feature)
        if level == update.max_version_level:
            continue
        known = "does not support this feature" if level is None else f"supports level {level} alone"
        text = (
            "The update failed for all features since the following feature had an error: Invalid update version "
            f"{update.max_version_level} for feature {update.feature}. This broker {known}."
        )
        return {"error_code": ErrorCode.invalid_update_version, "error_message": text, "results": []}
    rows = [
        {"feature": update.feature, "error_code": ErrorCode.none, "error_message": None}
        for update in message.feature_updates
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "results": rows}
