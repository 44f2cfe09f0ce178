"""Records what the controller of Apache Kafka decides about elections, placement and sessions.

``python -m tests.oracle.record_controller`` runs ``controller_java/ControllerDecisions.java`` with Kafka's jars and
writes ``traces/controller_decisions.jsonl``. The comparison with Odradek needs no Java.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parent), str(_HERE.parent.parent)]

from support.jvm import java_classes, kafka_command  # noqa: E402

from bench.apache import class_path  # noqa: E402

TRACE = _HERE / "traces" / "controller_decisions.jsonl"


def main() -> int:
    jars = class_path()
    command = kafka_command(jars, java_classes(jars, "controller_java"))
    program = "org.apache.kafka.controller.ControllerDecisions"
    done = subprocess.run([*command, program], check=True, capture_output=True, text=True, timeout=120)
    TRACE.write_text(done.stdout)
    print(f"{TRACE.relative_to(_HERE.parent.parent)}: {done.stdout.count(chr(10))} decisions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
