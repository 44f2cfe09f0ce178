"""``odradek transactions force-terminate``: fences the producers of a transactional id and aborts its transaction."""

from __future__ import annotations

from odradek.cli.confirmation import confirm
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect
from odradek.cli.terminal import note, print_json
from odradek.cli.transactions.scope import TransactionalId, Yes, given

EPILOG = "Example:\n\n\b\n  odradek transactions force-terminate --transactional-id bank -b 127.0.0.1:9092"


def force_terminate(
    *,
    bootstrap: Bootstrap,
    transactional_id: TransactionalId,
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Fence the producers of a transactional id and abort its open transaction.

    A running producer with this id fails at its next request.
    """
    name = given(transactional_id, "--transactional-id")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        before = admin.describe_transactions([name])[name]  # fails for an unknown id, which a fence would create
        places = f" with {', '.join(map(str, before.partitions))}" if before.partitions else ""
        if not confirm(f"Fence the producers of {name}, whose transaction is {before.state}{places}?", yes):
            return
        after = admin.fence_producers([name])[name]
    if as_json:
        print_json({"transactional_id": name, "state_before": before.state} | after._asdict(), indent=2)
    else:
        note(f"Fenced the producers of {name}: its epoch is now {after.producer_epoch}.")
