"""Records the audit log of Apache Kafka's StandardAuthorizer: ``python -m tests.oracle.record_audit``.

A few users of ``acl_requests`` send all requests. For each request the trace has lines of ``kafka.authorizer.logger``
about the user: denials at INFO, grants at DEBUG.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from acl_requests import users
from acl_world import AUDIT_TRACE, AclWorld, audited
from record_acls import KafkaWithUsers

from bench.apache import class_path, logger_jar

LOGGER = "kafka.authorizer.logger"


class AuditedKafka(KafkaWithUsers):
    """``read`` returns the lines of the audit log that are new since the last call."""

    def __init__(self, directory: Path) -> None:
        self._file, self._position = directory / "audit.log", 0
        simple = "org.slf4j.simpleLogger"
        options = [f"-D{simple}.defaultLogLevel=off", f"-D{simple}.log.{LOGGER}=debug",
                   f"-D{simple}.showThreadName=false", f"-D{simple}.logFile={self._file}"]  # fmt: skip
        super().__init__(directory, cp=f"{logger_jar()}:{class_path()}", java_options=options)

    def read(self) -> list[tuple[str, str]]:
        """Yields level and text."""
        with self._file.open() as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._position += len(whole.encode())
        found = []
        for line in whole.splitlines():
            level, _, said = line.partition(f" {LOGGER} - ")
            found.append((level, said))
        return found


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        broker = AuditedKafka(Path(directory))
        broker.start(120)
        world = AclWorld(broker.bootstrap, broker.connect)
        try:
            world.prepare(users())
            trace = audited(world, broker.read)
        finally:
            world.close()
            broker.kill()
    AUDIT_TRACE.write_text(written(trace))
    print(f"{len(trace)} users, {sum(len(lines) for rows in trace.values() for lines in rows.values())} lines")
    return 0


def written(trace: dict[str, dict[str, Any]]) -> str:
    """JSON with one request per line."""
    parts = []
    for user, rows in trace.items():
        requests = ",\n".join(f"{json.dumps(name)}: {json.dumps(lines)}" for name, lines in rows.items())
        parts.append(f"{json.dumps(user)}: {{\n{requests}\n}}")
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    sys.exit(main())
