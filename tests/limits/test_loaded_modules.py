"""The modules that imports, commands and the broker load: few for an import, and no column libraries for the broker."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.programs import run_python

pytestmark = pytest.mark.usefixtures("plain_broker")
HEAVY = {"hypothesis", "numba", "numpy", "pyarrow", "pyspark", "pandas", "llvmlite"}
NOT_YET_NEEDED = {
    "html", "numpy.typing", "pyspark", "unicodedata", "odradek.cli.pipeline.history_output",
    "odradek.client.producer", "odradek.client.settings.security_settings", "odradek.core.access.credential",
    "odradek.history", "odradek.monitor", "odradek.security.scram", "odradek.text.html_table",
    "odradek.text.look_alikes", "odradek.text.similar_names",
}  # fmt: skip
"""Modules for errors, notebooks, files of settings, logins and Spark."""


def loaded_by(*modules: str) -> set[str]:
    """The names of all modules in memory after a new interpreter has imported ``modules``."""
    return loaded_after(f"import {', '.join(modules)}")


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["odradek", "odradek.client", "odradek.lag", "odradek.cli.main"])
def test_imports_load_no_heavy_modules(module: str) -> None:
    loaded = loaded_by(module)
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
    assert [name for name in loaded if name.startswith("odradek.broker")] == []


def test_all_names_of_the_client_load_no_heavy_modules() -> None:
    """Each name is loaded on its first use; this test uses all of them."""
    loaded = loaded_after("from odradek.client import *")
    assert {"odradek.client.reader", "odradek.client.producer.engine"} <= loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
    assert loaded_by("odradek.client") & {"odradek.client.admin", "asyncio", "kio"} == set()


def test_a_spark_planner_loads_only_modules_for_planning() -> None:
    """Spark starts one planner for each query. Modules that PySpark loads are unavoidable; producers and codecs are
    not."""
    loaded = loaded_by("odradek.spark.source", "odradek.spark.offsets.lookups")
    unused = {"odradek.client.producer", "odradek.client.reader", "odradek.client.group.assignors"}
    assert loaded & (unused | {"cramjam", "numba", "pandas", "odradek.spark.writes.sink"}) == set()
    assert "odradek.client.admin.admin" in loaded
    # The names of the columns are constants.
    assert {name for name in loaded if name.startswith("odradek.batches.")} == {"odradek.batches.columns"}


def test_the_broker_loads_no_column_libraries() -> None:
    loaded = loaded_by("odradek.broker.server", "odradek.broker.process")
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


OF_A_QUORUM = {
    "odradek.broker.metadata.voter", "odradek.broker.metadata_log.quorum_state", "odradek.broker.settings.roles"
}  # fmt: skip
OF_A_CLUSTER = (
    "odradek.cluster", "odradek.replication", "odradek.broker.replication", "odradek.broker.transactions",
    "odradek.transactions.node_queues", "odradek.broker.node.controller_role",
    "odradek.broker.node.cluster_role", "odradek.broker.node.cluster_member", "odradek.broker.node.combined_role",
    "odradek.broker.node.controller_side", "odradek.broker.controller.periodic_elections",
    "odradek.broker.fault_injection.node_network",
    "odradek.broker.metadata_log.bootstrap", "odradek.broker.controller.registered_brokers",
    "odradek.broker.controller.observer_reads", "odradek.broker.controller.idle_records",
    "odradek.broker.membership.observer_log", "odradek.broker.membership.incarnation", "odradek.broker.remote",
    "odradek.broker.node.forwarded_requests", "odradek.broker.handlers.client_view",
    "odradek.broker.metadata.image_brokers",
    "odradek.broker.handlers.observer_fetches", "odradek.security.forwarded_principal",
)  # fmt: skip


@pytest.mark.parametrize("is_voter", [False, True])
def test_a_lone_broker_loads_no_module_of_a_quorum(tmp_path: Path, is_voter: bool) -> None:
    from support.voters import make_voter

    if is_voter:
        make_voter(tmp_path)
    loaded = loaded_after(
        "import asyncio; from pathlib import Path; from odradek.broker.server import BrokerServer; "
        "from odradek.broker.settings.config import BrokerConfig\n"
        "async def serve() -> None:\n"
        f"    broker = BrokerServer(BrokerConfig(), Path({str(tmp_path)!r}), ('127.0.0.1', 0))\n"
        "    await broker.start()\n"
        "    await broker.stop()\n"
        "asyncio.run(serve())\n"
        "None"
    )
    assert loaded & OF_A_QUORUM == (OF_A_QUORUM - {"odradek.broker.settings.roles"} if is_voter else set())
    assert [name for name in loaded if name.startswith(OF_A_CLUSTER)] == []


NOT_AT_START = {
    "_hashlib", "kio.index", "kio.serial", "odradek.broker.partitions.partition", "odradek.broker.settings.description",
    "odradek.broker.settings.ignored", "odradek.broker.settings.prefixes", "odradek.broker.settings.resources",
    "odradek.broker.settings.roles", "odradek.catalog.control_records", "odradek.core.access.salts",
    "odradek.storage.fetched_batches", "odradek.storage.segment_swap", "odradek.wire.hidden_fields", "shutil",
}  # fmt: skip
"""What a lone broker needs later, or never. OpenSSL (``_hashlib``) alone takes 2 MB and 5 ms, kio's reader 10 ms."""
MOST_AT_START = 175
"""Our modules at the end of a start. Each takes about 0.2 ms of it, and 5 KB."""


def test_a_start_loads_what_it_uses(tmp_path: Path) -> None:
    """The modules at the moment when the broker is ready: it loads others soon afterwards."""
    program = (
        "import json, os, signal, sys\n"
        "from pathlib import Path\n"
        "from odradek.broker import process\n"
        "from odradek.broker.settings.config import BrokerConfig\n"
        "def ready(addresses):\n"
        "    print(json.dumps(sorted(sys.modules)), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        f"process.run(BrokerConfig(), Path({str(tmp_path)!r}), ('127.0.0.1', 0), ready)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout)) - {"json"}
    assert "odradek.storage.log" in loaded
    assert loaded & NOT_AT_START == set()
    assert len([name for name in loaded if name.partition(".")[0] == "odradek"]) <= MOST_AT_START


def test_the_running_broker_loads_no_column_libraries(tmp_path: Path) -> None:
    """Records with every codec and an offset commit load no column library either."""
    from support.brokers import CONFIG
    from support.publish import commit, create_topic, publish

    from odradek.testing.process import BrokerProcess

    with BrokerProcess(tmp_path, config=CONFIG) as broker:
        maps = Path(f"/proc/{broker.pid}/maps")
        if maps.exists():
            assert "cramjam" not in maps.read_text(), "codecs are loaded with the first compressed batch"
            assert "_lzma" not in maps.read_text()
        create_topic(broker.bootstrap, "t")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            publish(broker.bootstrap, "t", [b"x" * 100] * 10, compression_type=codec)
        commit(broker.bootstrap, "g", {("t", 0): 1})
        if not maps.exists():
            pytest.skip("without /proc the loaded libraries cannot be listed")
        libraries = {line.split("/")[-1] for line in maps.read_text().splitlines() if ".so" in line}
        places = {part for line in maps.read_text().splitlines() for part in line.split("/")}
        assert any("crc32c" in name for name in libraries | places)
        assert places & HEAVY == set()


def test_storage_loads_no_column_libraries() -> None:
    """The broker uses less memory without these libraries: numba alone would add 94 MB."""
    code = "import sys, odradek.storage.log; print([m for m in ('numpy', 'numba', 'pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"


def test_importing_the_client_loads_no_column_libraries() -> None:
    program = """
import sys
import odradek.client
print([name for name in ("numba", "numpy", "pyarrow", "pyspark", "rich") if name in sys.modules])
"""
    assert run_python(program) == "[]"


def test_the_first_records_do_not_wait_for_pandas() -> None:
    """pyarrow's own conversion of Python values loads pandas, which takes half a second. Our code builds the Arrow
    columns from buffers."""
    program = """
import sys
from odradek.batches.arrow import RecordSet
from odradek.batches.columns import COLUMNS
from odradek.batches.encode import encode_batch
from types import SimpleNamespace

record = SimpleNamespace(key=b"k", value=b"v", timestamp_ms=1, headers=(("name", b"v"),))
data = encode_batch([record] * 20_000, now_ms=1)
data = data.replace(b"name", b"n\\xffme")  # a key that is not UTF-8
(found,) = RecordSet(data).record_batches("t", 3, columns=COLUMNS, check_crcs=False)
assert found.column("headers")[19_999].as_py()[0]["key"] == "n\ufffdme"
assert found.column("topic")[19_999].as_py() == "t" and found.column("partition")[0].as_py() == 3
print("pandas" in sys.modules)
"""
    assert run_python(program).strip() == "False"


@pytest.mark.parametrize("line", [["--version"], ["--help"], ["serve", "--help"], ["demo", "--help"]])
def test_the_command_line_loads_no_heavy_modules(line: list[str]) -> None:
    code = (
        "import sys; from odradek.cli.main import run; run(sys.argv[1:]);"
        "heavy = {'rich', 'numpy', 'pyarrow', 'numba', 'pyspark', 'pandas', 'confluent_kafka'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_annotations_of_options_are_evaluated_once() -> None:
    """The commands of pipelines declare more than 100 options. Each evaluation compiles all annotations of a class: one
    for each option took a fifth of the time of a run without new records."""
    code = (
        "import typing, collections; real, seen = typing.get_type_hints, collections.Counter()\n"
        "def counted(kind, *rest, **more):\n"
        "    seen[kind] += 1\n"
        "    return real(kind, *rest, **more)\n"
        "typing.get_type_hints = counted\n"
        "import odradek.cli.pipeline.app\n"
        "from odradek.cli.pipeline.options import IngestLine\n"
        "print(seen[IngestLine], max(seen.values()))"
    )
    assert run_python(code) == "1 1"


def loaded_by_command(*line: str) -> tuple[set[str], str]:
    """The modules in memory at the end of a command that succeeds, and what it wrote to stdout and stderr."""
    code = (
        "import json, sys; from odradek.cli.main import run; code = run(sys.argv[1:])\n"
        "print(); print(json.dumps([code, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    code, names = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return set(names), done.stdout + done.stderr


def test_commands_load_no_modules_for_errors_and_security(bootstrap: str) -> None:
    """tests/pipelines/test_ingest_without_new_records.py does this for a run of a pipeline."""
    loaded, _ = loaded_by_command("groups", "list", "-b", bootstrap)
    assert "odradek.client.admin.admin" in loaded
    assert loaded & (NOT_YET_NEEDED | HEAVY) == set()


MOST_OF_A_COMMAND = {
    "--version": 205, "--help": 205, "groups --help": 240, "groups list": 370, "groups describe": 390,
    "topics list": 365, "offsets dump": 390,
}  # fmt: skip
"""All modules at the end of a command. A module takes about 0.5 ms of its time; before Typer's conversions and rich's
display were left out, ``groups describe`` had 538."""


@pytest.mark.parametrize("line", MOST_OF_A_COMMAND)
def test_usual_commands_load_neither_pydantic_nor_rich(bootstrap: str, topic: str, line: str) -> None:
    """Typer loads pydantic to convert a value, and rich to draw an error; the progress display needs rich on a terminal
    only."""
    from support.publish import commit, create_topic

    words = line.split()
    if words[1:] == ["describe"]:
        create_topic(bootstrap, topic)
        commit(bootstrap, f"group-of-{topic}", {(topic, 0): 0})
        words += [f"group-of-{topic}", "--timeout", "20000", "--sort", "lag"]
    if "--" not in line:
        words += ["-b", bootstrap]
    loaded, _ = loaded_by_command(*words)
    slow = {"pydantic", "pydantic_core", "rich", "odradek.client.reader", "odradek.lag.time_lag", "odradek.lag.reset"}
    assert loaded & (slow - {"odradek.client.reader"} if line == "offsets dump" else slow) == set()
    assert len(loaded) <= MOST_OF_A_COMMAND[line]


def test_a_broker_without_security_loads_no_module_of_it() -> None:
    program = """
import asyncio, sys, tempfile
from pathlib import Path
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig

async def run():
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerServer(BrokerConfig({}), Path(folder), ("127.0.0.1", 0))
        await broker.start()
        await asyncio.sleep(3)  # the modules that a broker loads while it is idle
        await broker.stop()

asyncio.run(run())
print(sorted(sys.modules))
"""
    loaded = set(ast.literal_eval(run_python(program)))
    assert "odradek.broker.handlers.k00_produce" in loaded
    of_security = {
        "cryptography", "http.client", "odradek.broker.logins", "odradek.broker.metadata.standard_authorizer",
        "odradek.broker.metadata.delegation_tokens", "odradek.broker.settings.listener_settings", "odradek.broker.tls",
        "odradek.security.jaas", "odradek.security.key_sets", "odradek.security.oauth_server",
        "odradek.security.sasl_server", "odradek.security.scram", "odradek.security.stores",
    }  # fmt: skip
    assert loaded & of_security == set()
