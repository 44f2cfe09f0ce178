"""Records the replies of Apache Kafka: ``python -m tests.oracle.record 127.0.0.1:9092 [suite …]``.

The broker should be a single Apache Kafka 4.3 with ``num.partitions=4``, ``group.initial.rebalance.delay.ms=0`` and
other settings at their defaults. A suite with its own settings (``CONFIG``, such as a short retention) gets an
Apache Kafka that is started from its jars. The scenarios of such a suite run in parallel, because most of them wait.
They run one after another if the suite has ``RESTARTS`` (they restart the broker) or ``SERIAL`` (they would change each
other's replies). Traces are stored in ``tests/oracle/traces`` and committed, so the comparison needs no Java.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from recording import TRACES, packed_traces, run_scenario
from support.brokers import Wire

SUITES = tuple(sorted(path.stem.removeprefix("scenarios_") for path in _HERE.glob("scenarios_*.py")))


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    bootstrap, *wanted = arguments
    modules = {suite: importlib.import_module(f"scenarios_{suite}") for suite in wanted or SUITES}
    shared = not all(hasattr(module, "CONFIG") for module in modules.values())
    if shared and (altered := _altered(bootstrap)):
        print(
            f"these settings were changed on the running broker, so they are not its defaults: {', '.join(altered)}",
            file=sys.stderr,
        )
        return 1
    for suite, module in modules.items():
        if hasattr(module, "CONFIG"):
            trace = _recorded_apart(module)
        else:
            trace = {scenario.__name__: run_scenario(bootstrap, scenario) for scenario in module.SCENARIOS}
        path = TRACES / f"{suite}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(packed_traces(trace))
        print(f"{path.relative_to(_HERE.parent.parent)}: {sum(map(len, trace.values()))} steps")
    return 0


def _recorded_apart(module: Any) -> dict[str, list[dict[str, Any]]]:
    """Returns the traces of an Apache Kafka that is started for this suite."""
    from bench.apache import ApacheBroker

    with tempfile.TemporaryDirectory() as directory:
        broker = ApacheBroker(Path(directory), module.CONFIG, heap="512m")
        broker.start()
        try:
            if hasattr(module, "RESTARTS") or hasattr(module, "SERIAL"):

                def restart() -> None:
                    broker.stop()
                    broker.start()

                recorded = (run_scenario(broker.bootstrap, scenario, None, restart) for scenario in module.SCENARIOS)
                return {s.__name__: trace for s, trace in zip(module.SCENARIOS, recorded, strict=True)}
            with ThreadPoolExecutor(len(module.SCENARIOS)) as pool:
                traces = pool.map(lambda scenario: run_scenario(broker.bootstrap, scenario), module.SCENARIOS)
                return {scenario.__name__: trace for scenario, trace in zip(module.SCENARIOS, traces, strict=True)}
        finally:
            broker.kill()  # an unregistered broker would not stop


def _altered(bootstrap: str) -> list[str]:
    """Returns the changed settings of the broker. A trace must not depend on them."""
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    with Wire(bootstrap) as wire:
        rows = wire.call(32, 4, message).results[0].configs
    # Apache Kafka sets min.insync.replicas itself.
    return [row.name for row in rows if row.config_source in (2, 3) and row.name != "min.insync.replicas"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
