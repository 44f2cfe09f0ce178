"""Records the decisions of Apache Kafka's StandardAuthorizer: ``python -m tests.oracle.record_acls``.

It starts an Apache Kafka 4.3 with a SASL/PLAIN listener for the users of ``acl_requests``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from acl_requests import users
from acl_world import CONFIG, TRACE, AclWorld, plain_login, recorded, written
from support.brokers import Wire

from bench.apache import ApacheBroker
from odradek.testing.ports import reserve_ports


class KafkaWithUsers(ApacheBroker):
    """``users_at``: the address of the SASL/PLAIN listener."""

    def __init__(self, directory: Path, **options: Any) -> None:
        (reserved,) = self._more = reserve_ports(1)
        names = " ".join(f'user_{user.name}="{user.name}"' for user in users())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        sasl = {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f"{module} required {names};",
        }
        super().__init__(directory, CONFIG | sasl, heap="512m", **options)
        self.users_at = f"127.0.0.1:{reserved.port}"
        own = directory / "server.properties"
        text = own.read_text()
        controller = next(line for line in text.splitlines() if line.startswith("listeners=")).rpartition(":")[2]
        mine = f"PLAINTEXT://{self.bootstrap},USERS://{self.users_at}"
        own.write_text(
            f"{text}listeners={mine},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners={mine}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT\n"
        )

    def connect(self, user: str) -> Wire:
        return plain_login(Wire(self.users_at), user) if user else Wire(self.bootstrap)


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        broker = KafkaWithUsers(Path(directory))
        broker.start()
        world = AclWorld(broker.bootstrap, broker.connect)
        try:
            world.prepare(users())
            trace = recorded(world)
        finally:
            world.close()
            broker.kill()
    TRACE.write_text(written(trace))
    print(f"{len(trace['users'])} users, {len(trace['requests'])} requests, {len(trace['replies'])} different replies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
