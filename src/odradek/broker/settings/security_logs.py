"""The loggers of refusals. A broker loads this at its start, and the other loggers when a client asks for them."""

from __future__ import annotations

import logging

AUDIT_LOG, LOGIN_LOG = "kafka.authorizer.logger", "odradek.broker.logins"
"""The loggers of what the authorizer decides, by Kafka's name, and of refused logins."""


def open_security_logs() -> None:
    """Lets the loggers of refusals write their lines at INFO, as in Apache Kafka, if the level of the process is the
    default. Another level of the process holds for them, too."""
    for name in (AUDIT_LOG, LOGIN_LOG):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logging.root.level == logging.WARNING:
            logger.setLevel(logging.INFO)
