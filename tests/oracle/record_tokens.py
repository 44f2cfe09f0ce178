"""Records what Apache Kafka 4.3 replies to ``token_requests``: ``python -m tests.oracle.record_tokens``.

Without ``delegation.token.secret.key`` it records which errors come first.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from support.brokers import Wire
from token_requests import CONFIG, TRACE, USERS, TokenRun, run, without_key

from bench.apache import ApacheBroker
from odradek.testing.ports import reserve_ports

_MODULE = "org.apache.kafka.common.security"


class TokenKafka(ApacheBroker):
    """Apache Kafka with logins by PLAIN and SCRAM, ACLs and, unless ``config`` says otherwise, delegation tokens."""

    def __init__(self, directory: Path, config: dict[str, str]) -> None:
        (self._reserved,) = reserve_ports(1)
        users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
        settings = config | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.user.plain.sasl.jaas.config": f"{_MODULE}.plain.PlainLoginModule required {users};",
            "listener.name.user.scram-sha-256.sasl.jaas.config": f"{_MODULE}.scram.ScramLoginModule required;",
            "listener.name.user.scram-sha-512.sasl.jaas.config": f"{_MODULE}.scram.ScramLoginModule required;",
        }
        super().__init__(directory, settings, heap="512m")
        own = directory / "server.properties"
        text = own.read_text()
        controller = next(line for line in text.splitlines() if line.startswith("listeners=")).rpartition(":")[2]
        mine = f"PLAINTEXT://127.0.0.1:{self.port},USER://127.0.0.1:{self._reserved.port}"
        own.write_text(
            f"{text}listeners={mine},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners={mine}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,USER:SASL_PLAINTEXT\n"
        )

    def connect(self, user: str) -> Wire:
        return Wire(self.bootstrap if user == "ANONYMOUS" else f"127.0.0.1:{self._reserved.port}")


def main() -> None:
    found = {}
    for name, config in (("with a key", CONFIG), ("without a key", {})):
        with tempfile.TemporaryDirectory() as folder:
            kafka = TokenKafka(Path(folder), config)
            kafka.start(300)
            try:
                found[name] = run(kafka.connect, 3.0) if config else without_key(TokenRun(kafka.connect))
            finally:
                kafka.stop()
    TRACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
