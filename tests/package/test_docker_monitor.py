"""The monitor's image, without a container: its command line serves on a read-only file system."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.brokers import eventually
from test_docker import DATA, ENVIRONMENT, FILE, LIMIT_S, ROOT, on_this_machine

from odradek import Admin, OffsetAndMetadata, TopicPartition
from odradek.client import NewTopic
from odradek.history.kept.history_files import RECORDS, HistoryFolder

STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", FILE, re.MULTILINE | re.DOTALL))
PORT = "8000"
TOKEN = "t" * 32
ALONE = ("unshare", "--mount", "--propagation", "private", "sh", "-c", """
mount --bind "$0" "$0" && mount -o remount,bind,ro / || exit 120
touch /tmp/written "$PWD/written" 2>/dev/null && exit 121
exec "$@"
""")  # fmt: skip
"""Makes all but one folder read-only for a command. It ends with 120 where that is not possible."""


def instruction(name: str, stage: str = "monitor") -> str:
    """The instruction with this name in a stage of the Dockerfile."""
    (found,) = re.findall(rf"^{name} (.*)$", STAGES[stage], re.MULTILINE)
    return str(found)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_image_is_not_run_by_root_and_writes_to_its_volume_only() -> None:
    user = instruction("USER")
    assert f"useradd --system --uid 1000 --home-dir {DATA} --create-home {user}" in STAGES["monitor"]
    assert json.loads(instruction("VOLUME")) == [DATA]
    assert instruction("EXPOSE") == PORT
    entry = json.loads(instruction("ENTRYPOINT"))
    assert Path(entry[entry.index("--data") + 1]).parent == Path(DATA)
    assert entry[entry.index("--listen") + 1] == f"0.0.0.0:{PORT}"
    assert "PYTHONDONTWRITEBYTECODE=1" in instruction("ENV")
    assert "'/source[ui]'" in instruction("RUN", "monitor-build")
    assert "AS monitor" not in FILE[FILE.rindex("\nFROM") :], "the last stage is the broker, the default of a build"


def test_the_build_compiles_all_kernels_of_a_start() -> None:
    """The statement of the build loads each module with kernels that a running monitor loads."""
    (statement,) = re.findall(r"RUN python -c '([^']*)'", STAGES["monitor"])
    assert STAGES["monitor"].index("USER ") < STAGES["monitor"].index(statement) < STAGES["monitor"].index("VOLUME ")
    report = "; import sys; print(*sorted(n for n, m in sys.modules.items() if hasattr(m, 'kernel') and 'kernel' in n))"
    start = "import odradek.cli.monitor.monitor as m; from odradek.client.config import ClientConfig; "
    start += "from odradek.history.verdict_rules import VerdictRules; import odradek.monitor.http.service; "
    start += "m.make_reader('auto', 1000, ClientConfig.of({'bootstrap_servers': 'x:1'}), VerdictRules(), 'x')"
    modules = [
        subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True).stdout.split()
        for code in (statement, start)
    ]
    assert len(modules[0]) > 2
    assert set(modules[1]) <= set(modules[0])


def can_mount(folder: Path) -> bool:
    """Whether this machine allows mounts of a process of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*ALONE, str(folder), "true"], cwd=ROOT, check=False).returncode == 0


def test_the_monitor_serves_on_a_read_only_file_system(bootstrap: str, tmp_path: Path, topic: str, group: str) -> None:
    pytest.importorskip("starlette", reason="the extra ui is not installed")
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic)])
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(0)})
    volume, port = tmp_path / "volume", free_port()
    volume.mkdir()
    keep_kernels(volume)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    entry = on_this_machine(json.loads(instruction("ENTRYPOINT")), volume, port, PORT)
    options = ["-b", bootstrap, "--token-file", str(token), "--interval", "0.2s"]
    if not can_mount(volume):
        pytest.skip("this machine allows no mounts of its own")
    wrapped = [*ALONE, str(volume), *entry, *options]
    environment = ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(volume)}
    with subprocess.Popen(wrapped, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"ready http://127.0.0.1:{port}\n"
        eventually(lambda: group in groups_of(port), within_s=LIMIT_S, what="the group")
        (check,) = [json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])]
        found = subprocess.run([sys.executable, *on_this_machine(check, volume, port, PORT)[1:]], check=False)
        assert found.returncode == 0
        process.send_signal(getattr(signal, instruction("STOPSIGNAL")))
        process.wait(LIMIT_S)
    assert HistoryFolder(volume / "monitor" / "history").files(RECORDS), "the history is in the volume"
    found = subprocess.run([sys.executable, *on_this_machine(check, volume, port, PORT)[1:]], check=False)
    assert found.returncode != 0, "the health check fails without a monitor"


def keep_kernels(home: Path) -> None:
    """Puts the compiled kernels into a user's cache, as the build does. The folders of the sources are read-only."""
    from numba.core.caching import _CacheLocator

    for folder in (ROOT / "src" / "odradek").rglob("__pycache__"):
        kernels = [*folder.glob("*.nbi"), *folder.glob("*.nbc")]
        target = home / ".cache" / "numba" / _CacheLocator.get_suitable_cache_subpath(str(folder.parent / "x.py"))
        for one in kernels:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(one, target)


def groups_of(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/groups?limit=1000", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return str(reply.read().decode())
    except urllib.error.URLError:
        return ""
