"""The incidents of ``odradek monitor``: the options --data, --keep, --webhooks and --test-webhooks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from odradek.cli.terminal import EXIT_FAILED, EXIT_OK, CommandError, note

if TYPE_CHECKING:
    from odradek.cli.monitor.options import MonitorLine
    from odradek.monitor.disk.database import MonitorDatabase
    from odradek.monitor.incidents.service import Incidents
    from odradek.monitor.incidents.webhook_file import Webhooks


def check_webhooks(line: MonitorLine) -> Webhooks:
    """Returns the webhooks of the file; none without a file. Raises CommandError."""
    from odradek.monitor.incidents.webhook_file import Webhooks, WebhooksRefused, read_webhooks

    if line.webhooks is None:
        return Webhooks()
    if line.data is None:
        raise CommandError("--webhooks needs --data DIR: a restart would announce each open incident again")
    try:
        return read_webhooks(line.webhooks)
    except WebhooksRefused as error:
        raise CommandError(f"--webhooks {error}") from None


def open_incidents(line: MonitorLine, database: MonitorDatabase, webhooks: Webhooks, keep_ms: int) -> Incidents:
    """Returns the incidents of a directory. Raises CommandError."""
    from odradek.monitor.disk.database import StoreFailed
    from odradek.monitor.incidents.service import Incidents

    try:
        return Incidents(database, webhooks, line.cluster_name, keep_ms=keep_ms)
    except StoreFailed as error:
        raise CommandError(f"--data {error}") from None


def send_test(line: MonitorLine) -> int:
    """Sends a test message to each webhook, prints a line for each, and returns the exit code. Raises CommandError."""
    from odradek.monitor.incidents.sender import send
    from odradek.monitor.incidents.webhook_file import WebhooksRefused, read_webhooks, sample_message

    if line.webhooks is None:
        raise CommandError("--test-webhooks needs --webhooks FILE")
    try:
        webhooks = read_webhooks(line.webhooks)
    except WebhooksRefused as error:
        raise CommandError(f"--webhooks {error}") from None
    code = EXIT_OK
    for hook in webhooks.hooks:
        answer = send(hook, sample_message(webhooks.monitor_url, line.cluster_name), int(time.time()))
        is_delivered = 200 <= answer.code < 300
        note(f"{hook.name}: {f'HTTP {answer.code}, delivered' if is_delivered else f'not delivered: {answer.reason}'}")
        code = code if is_delivered else EXIT_FAILED
    return code
