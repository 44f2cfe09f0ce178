"""``odradek mcp`` by the client library of the protocol: as a process, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually, unique
from support.forks import mcp_python
from support.monitor_view import ViewFollower, served
from support.publish import create_topic, numbers, publish

from odradek import Admin, Consumer, TopicPartition
from odradek.cli.main import run
from odradek.core.ids import OffsetAndMetadata

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
pytest.importorskip("starlette", reason="the extra ui is not installed")
httpx = pytest.importorskip("httpx2", reason="mcp's client of HTTP is not installed")

Ask = Callable[..., dict[str, Any]]
Capture = pytest.CaptureFixture[str]
TOKEN = "t" * 32
VIEW_TOOLS = {
    "cluster_status", "list_groups", "describe_group", "list_findings", "list_expiring_offsets", "describe_topic"
}  # fmt: skip


def command(*words: str) -> Any:
    return mcp.StdioServerParameters(command=mcp_python(), args=["-m", "odradek", "mcp", *words])


class Refused(Exception):
    """The text of a refused call."""


@contextmanager
def asking(server: Any) -> Iterator[Ask]:
    """Yields a function that calls a tool and returns its reply, on one session. It raises Refused."""
    loop = asyncio.new_event_loop()
    asked: asyncio.Queue[Any] = asyncio.Queue()

    async def session() -> None:
        async with mcp.Client(server) as client:
            opened.set_result(client)
            while (call := await asked.get()) is not None:
                (name, arguments), answer = call
                try:
                    answer.set_result(await client.call_tool(name, arguments))
                except Exception as error:
                    answer.set_exception(error)

    opened = loop.create_future()
    task = loop.create_task(session())

    def ask(name: str, **arguments: object) -> dict[str, Any]:
        answer = loop.create_future()
        asked.put_nowait(((name, arguments), answer))
        result = loop.run_until_complete(asyncio.wait_for(answer, 60))
        (content,) = result.content
        if result.is_error:
            raise Refused(content.text)
        assert json.loads(content.text) == result.structured_content
        return dict(result.structured_content)

    async def ready() -> None:
        await asyncio.wait({opened, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task

    try:
        loop.run_until_complete(ready())
        yield ask
    finally:
        asked.put_nowait(None)
        loop.run_until_complete(task)
        loop.close()


def tools_of(server: Any) -> Mapping[str, Any]:
    async def listed() -> Mapping[str, Any]:
        async with mcp.Client(server) as client:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

    return asyncio.run(listed())


@pytest.fixture(scope="module")
def monitor() -> Iterator[str]:
    with served(ViewFollower(), TOKEN) as address:
        yield address


@pytest.fixture(scope="module")
def of_monitor(monitor: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    file = tmp_path_factory.mktemp("mcp") / "token"
    file.write_text(TOKEN)
    with asking(command("--url", monitor, "--token-file", str(file))) as ask:
        yield ask


# --- the view of a monitor ----------------------------------------------------------------------------------------


def test_the_tools_of_a_monitor_only_read(monitor: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    tools = tools_of(command("--url", monitor, "--token-file", str(token)))
    assert tools.keys() == VIEW_TOOLS
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
        assert tool.input_schema["additionalProperties"] is False
        assert tool.description


def test_groups_verdicts_and_proofs_are_those_of_the_monitor(of_monitor: Ask) -> None:
    status = of_monitor("cluster_status")
    assert status["groups"] > 3
    assert status["polled"].endswith("+00:00")
    page = of_monitor("list_groups", sort="-lag", limit=3)
    assert page["total"] == status["groups"]
    lags = [row["lag"] for row in page["groups"]]
    assert len(lags) == 3
    assert lags == sorted(lags, reverse=True)
    group = of_monitor("describe_group", group="reset")
    assert group["summary"]["status"] == "ERR"
    assert {"rule", "reason", "lag", "expires_ms"} <= group["partitions"][0].keys()
    found = of_monitor("list_findings", group="reset")
    assert found["total"] == group["findings"] > 0
    rewinds = [one for one in found["findings"] if one["kind"] == "rewind"]
    rewind = next(one for one in rewinds if one["certainty"] == "certain")
    assert rewind["cause"]
    assert rewind["proof"][0]["record_offset"] >= 0
    assert of_monitor("list_findings", group="reset", kind="rewind")["findings"] == rewinds
    topic = of_monitor("describe_topic", topic=rewind["topic"])
    assert "reset" in json.dumps(topic["groups"])


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("list_group", {}, ["list_group", "did you mean list_groups?"]),
        ("list_groups", {"limit": "3"}, ["limit", "a whole number from 1 to 500", "'3'"]),
        ("list_groups", {"limit": 0}, ["limit", "from 1 to 500", "not 0"]),
        ("list_groups", {"limit": True}, ["limit", "not True"]),
        ("list_groups", {"sort": "-lags"}, ["sort", "did you mean -lag?"]),
        ("list_groups", {"status": "STOP"}, ["status", "OK, WARN, ERR"]),
        ("list_groups", {"serch": "a"}, ["'serch'", "did you mean search?"]),
        ("list_groups", {"search": "x" * 1_001}, ["search", "at most 1,000 characters"]),
        ("describe_group", {}, ["describe_group", "needs the argument group"]),
        ("describe_group", {"group": "resett"}, ["'resett'", "did you mean reset?", "list_groups"]),
        ("describe_group", {"group": "<script>\n"}, ["there is no group"]),
        ("describe_topic", {"topic": "nothing"}, ["'nothing'", "describe_group"]),
        ("list_findings", {"group": "reset", "kind": "rewnd"}, ["did you mean rewind?"]),
    ],
)
def test_a_wrong_argument_gets_one_line(
    of_monitor: Ask, name: str, arguments: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(Refused) as refused:
        of_monitor(name, **arguments)
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 400
    for word in words:
        assert word in text


def test_an_agent_may_come_before_its_monitor() -> None:
    with asking(command("--url", "http://127.0.0.1:1")) as ask, pytest.raises(Refused, match=r"http://127\.0\.0\.1:1"):
        ask("cluster_status")


# --- a cluster, and resets ----------------------------------------------------------------------------------------


@pytest.fixture
def group(bootstrap: str) -> str:
    topic, group = unique("planned"), unique("agents")
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(50))
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(20)})
    return group


def committed(bootstrap: str, group: str) -> list[int]:
    with Admin(bootstrap) as admin:
        return [one.offset for one in admin.group_commits(group).values() if one is not None]


def test_an_agent_plans_a_reset_and_a_person_applies_it(
    bootstrap: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    plans = ["--plans", str(tmp_path / "plans")]
    with Admin(bootstrap) as admin:
        before = {one.group_id for one in admin.list_groups()}
    with asking(command("-b", bootstrap, *plans)) as ask:
        eventually(lambda: ask("cluster_status")["ready"], within_s=60)
        assert ask("describe_group", group=group)["summary"]["lag"] == 30
        with pytest.raises(Refused, match="there is no tool"):
            ask("apply_reset_plan", plan_id="00000000")
        plan = ask("plan_reset", group=group, target="shift-by", value="-5")
        other = ask("plan_reset", group=group, target="to-earliest")
        assert [one["plan_id"] for one in ask("list_reset_plans")["plans"]] == [other["plan_id"], plan["plan_id"]]
    (row,) = plan["partitions"]
    assert (row["before"], row["after"], row["distance"]) == (20, 15, -5)
    assert (plan["records_read_again"], plan["records_skipped"], plan["is_applied"]) == (5, 0, False)
    assert committed(bootstrap, group) == [20]
    with Admin(bootstrap) as admin:
        assert {one.group_id for one in admin.list_groups()} <= before  # groups of other tests may end meanwhile
    words = plan["apply"].split()
    assert words[:3] == ["odradek", "groups", "apply"]

    assert run([*words[1:], "--execute"]) == 0
    assert committed(bootstrap, group) == [15]
    undo = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Undo: "))
    assert run([*words[1:], "--execute"]) == 1
    assert "has been applied" in capsys.readouterr().err
    assert run(["groups", "apply", other["plan_id"], *plans, "-b", bootstrap, "--execute"]) == 1
    assert "was at 20 and is at 15 now: make a new plan" in capsys.readouterr().err
    assert run(undo.removeprefix("Undo: odradek ").split()) == 0
    assert committed(bootstrap, group) == [20]
    capsys.readouterr()
    assert run(["groups", "plans", *plans, "--json"]) == 0
    assert {one["plan"]: one["is_applied"] for one in json.loads(capsys.readouterr().out)} == {
        plan["plan_id"]: True, other["plan_id"]: False
    }  # fmt: skip


def test_an_agent_applies_a_plan_only_if_it_may_and_no_member_reads(bootstrap: str, group: str, tmp_path: Path) -> None:
    with asking(command("-b", bootstrap, "--plans", str(tmp_path / "plans"), "--allow", "reset")) as ask:
        plan = ask("plan_reset", group=group, target="to-latest")
        topic = plan["partitions"][0]["topic"]
        with Consumer(bootstrap, group_id=group, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            eventually(lambda: consumer.poll(100) is not None and consumer.assignment())
            with pytest.raises(Refused, match="stop its members"):
                ask("apply_reset_plan", plan_id=plan["plan_id"])
            assert ask("plan_reset", group=group, target="to-earliest")["obstacle"]
        applied = ask("apply_reset_plan", plan_id=plan["plan_id"])
        assert committed(bootstrap, group) == [50]
        with pytest.raises(Refused, match="has been applied"):
            ask("apply_reset_plan", plan_id=plan["plan_id"])
    assert run([*applied["undo"].split()[1:], "--execute"]) == 0
    assert committed(bootstrap, group) == [20]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "to-offset", "value": "ten"}, "value: to-offset needs a whole number"),
        ({"target": "to-datetime"}, "for example 2026"),
        ({"target": "to-datetime", "value": "yesterday"}, "expected YYYY-MM-DD"),
        ({"target": "to-latest", "value": "3"}, "to-latest takes none"),
        ({"target": "latest"}, "did you mean to-latest?"),
        ({"target": "to-latest", "topics": "orders"}, "an array"),
        ({"target": "to-latest", "topics": ["orders:x"]}, "expected TOPIC or TOPIC:0,1,2"),
        ({"target": "to-latest", "group": "no-such-group-of-agents"}, "list_groups"),
        ({"target": "to-latest", "topics": ["no-such-topic-of-agents"]}, "no-such-topic-of-agents"),
    ],
)
def test_a_wrong_plan_gets_one_line_and_no_file(
    planner: tuple[Ask, Path], group: str, arguments: dict[str, object], words: str
) -> None:
    ask, folder = planner
    with pytest.raises(Refused) as refused:
        ask("plan_reset", **({"group": group} | arguments))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(folder.glob("*"))


@pytest.fixture(scope="module")
def planner(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ask, Path]]:
    folder = tmp_path_factory.mktemp("planner") / "plans"
    with asking(command("-b", bootstrap, "--plans", str(folder))) as ask:
        yield ask, folder


def test_a_checkpoint_is_compared_with_a_group_and_no_file_elsewhere_is_read(
    of_checkpoints: Ask, tmp_path: Path
) -> None:
    same = of_checkpoints("compare_checkpoint", checkpoint="query", group="reset")
    assert same["newest_batch"] == 1
    assert not same["is_batch_done"]
    row = next(one for one in same["partitions"] if one["checkpoint_offset"] is not None)
    assert (row["topic"], row["partition"], row["checkpoint_offset"]) == ("orders", 0, 7)
    assert same["differing_partitions"] == sum(
        one["checkpoint_offset"] != one["committed_offset"] for one in same["partitions"]
    )
    for path in ("../query", "/etc", "."):
        with pytest.raises(Refused, match="checkpoint: "):
            of_checkpoints("compare_checkpoint", checkpoint=path, group="reset")
    with pytest.raises(Refused, match="did you mean query"):
        of_checkpoints("compare_checkpoint", checkpoint="qery", group="reset")


@pytest.fixture
def of_checkpoints(monitor: str, tmp_path: Path) -> Iterator[Ask]:
    offsets = tmp_path / "all" / "query" / "offsets"
    offsets.mkdir(parents=True)
    for batch, offset in enumerate((3, 7)):
        end = json.dumps({"orders": {"0": offset}})
        (offsets / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{end}')
    token = tmp_path / "token"
    token.write_text(TOKEN)
    words = ("--url", monitor, "--token-file", str(token), "--checkpoints", str(tmp_path / "all"))
    with asking(command(*words)) as ask:
        yield ask


# --- over HTTP, and the command line ------------------------------------------------------------------------------


def test_over_http_only_clients_with_the_token_and_the_right_host_are_served(monitor: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    words = ["--url", monitor, "--token-file", str(token), "--client-token-file", str(token)]
    process = subprocess.Popen(
        [sys.executable, "-m", "odradek", "mcp", *words, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[0] == "ready"
        url = ready[1]
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        accept = {"accept": "application/json, text/event-stream"}
        right = accept | {"authorization": f"Bearer {TOKEN}"}
        assert httpx.post(url, json=hello, headers=accept).status_code == 401
        assert httpx.post(url, json=hello, headers=right | {"host": "evil.example"}).status_code == 403
        assert httpx.post(url, json=hello, headers=right | {"origin": "http://evil.example"}).status_code == 403
        assert tools_of(transport(url)).keys() == VIEW_TOOLS
    finally:
        process.terminate()
        process.wait(10)
    assert process.returncode in (0, -15)


def transport(url: str) -> Any:
    from mcp.client.streamable_http import streamable_http_client

    return streamable_http_client(url, http_client=httpx.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "missing option '-b'"),
        (["-b", "127.0.0.1:1"], "stdin is a terminal"),
        (["-b", "127.0.0.1:1", "--allow", "delete"], "--allow 'delete': expected reset"),
        (["--url", "http://127.0.0.1:1", "--allow", "reset"], "--allow reset needs -b"),
        (["--url", "127.0.0.1:1"], "--url '127.0.0.1:1'"),
        (["-b", "127.0.0.1:1", "--token-file", "t"], "--token-file is for --url"),
        (["-b", "127.0.0.1:1", "--allowed-host", "t"], "--allowed-host is for --listen"),
        (["-b", "127.0.0.1:1", "--checkpoints", "/nowhere"], "--checkpoints /nowhere: it is no folder"),
        (["-b", "127.0.0.1:1", "--source", "x"], "--source 'x'"),
        (["-b", "127.0.0.1:1", "--listen", "0.0.0.0:0"], "give --client-token-file"),
        (["-b", "127.0.0.1:1", "--listen", "x"], "--listen 'x'"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: list[str], text: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert run(["mcp", *words]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert text in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("plan", ["0000000", "zzzzzzzz", "../../etc", "00000000"])
def test_an_unknown_plan_is_one_line(plan: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["groups", "apply", plan, "--plans", str(tmp_path), "-b", "127.0.0.1:1", "--execute"]) == 2
    assert "`odradek groups plans` lists the plans" in capsys.readouterr().err


def test_a_damaged_plan_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "00000000.json").write_text('{"version": 1')
    assert run(["groups", "apply", "00000000", "--plans", str(tmp_path), "-b", "127.0.0.1:1"]) == 2
    assert "is damaged: make a new plan" in capsys.readouterr().err
    assert run(["groups", "plans", "--plans", str(tmp_path)]) == 0
    assert "There are no plans" in capsys.readouterr().out
