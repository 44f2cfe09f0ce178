"""The file of webhooks: what it may say, and one line for each mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra ui is not installed")

from odradek.monitor.incidents.incident import Severity
from odradek.monitor.incidents.webhook_file import SAMPLE, WebhooksRefused, read_webhooks, sample_message

WHOLE = r"""
monitor_url = "https://monitor.example.com/"

[[webhook]]
name = "pager"
url = "https://alerts.example.com/hook?key=1"
threshold = "ERR"
groups = "^billing-"
ignore_groups = "-test$"
kinds = ["status", "rewind"]
repeat = "30min"
send_closed = false
secret_file = "secret"
headers = {Authorization = "Bearer x"}
timeout = "2s"
attempts = 3

[[webhook]]
name = "chat"
url = "http://127.0.0.1:9/slack"
format = "slack"
repeat = "never"

[[webhook]]
name = "own"
url = "http://[::1]:80/x"
template = "body.j2"
content_type = "text/plain"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("whsec_plJ3nmyCDGBKInavdOK15jsl\n")
    text = "{{ group }} is {{ severity }}: {{ text | tojson }}{% if closed_at %} ended{% endif %}"
    (tmp_path / "body.j2").write_text(text)
    return tmp_path


def read(folder: Path, text: str) -> object:
    path = folder / "hooks.toml"
    path.write_text(text)
    return read_webhooks(path)


def test_a_whole_file(folder: Path) -> None:
    (folder / "hooks.toml").write_text("\ufeff" + WHOLE)
    found = read_webhooks(folder / "hooks.toml")
    pager, chat, own = found.hooks
    rule = pager.rule
    assert (rule.name, rule.threshold, rule.repeat_ms, rule.says_closed) == ("pager", Severity.ERR, 1_800_000, False)
    assert (rule.kinds, pager.timeout_s, pager.attempts) == (frozenset({"status", "rewind"}), 2.0, 3)
    assert pager.signer is not None
    assert "key=1" not in repr(pager), "the address may be a secret"
    assert "Bearer" not in repr(pager)
    assert rule.wants(SAMPLE) is False, "the sample's group is billing, without a dash"
    assert chat.rule.ignored is not None, "groups of pipelines"
    assert not chat.rule.wants(replace(SAMPLE, group="odradek-replay-1"))
    assert (chat.rule.repeat_ms, chat.rule.threshold) == (0, Severity.WARN)
    message = sample_message(found.monitor_url, "main")
    assert json.loads(pager.render(message))["link"] == "https://monitor.example.com/group?name=billing"
    assert own.render(message).decode() == f"billing is ERR: {json.dumps(SAMPLE.text)}"


HOOK = '[[webhook]]\nname = "a"\nurl = "http://x"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a table [[webhook]] with name and url"),
        ("webhook = 1", "expected a table [[webhook]]"),
        ("[webhook]\nname = 'a'", "expected a table [[webhook]]"),
        ("[[webhook", "no TOML: "),
        ("webhooks = []", "'webhooks' is no key (did you mean webhook?)"),
        ("monitor_url = 'x'\n" + HOOK, "monitor_url: expected an address"),
        ("[[webhook]]\nurl = 'http://x'", "webhook 1: name: expected a name, it is missing"),
        ("[[webhook]]\nname = 'a'", "webhook a: url: expected an address such as https://"),
        ("[[webhook]]\nname = 'a'\nurl = 'ftp://x'", "webhook a: url: expected an address"),
        ("[[webhook]]\nname = 'a'\nurl = 'http://x:99999'", "webhook a: url: expected an address"),
        (HOOK + "treshold = 'ERR'", "'treshold' is no key (did you mean threshold?)"),
        (HOOK + "threshold = 'BAD'", "threshold: expected WARN or ERR, not 'BAD'"),
        (HOOK + "format = 'teams'", "format: expected json or slack or alertmanager"),
        (HOOK + "groups = '('", "groups '(': no regular expression: missing )"),
        (HOOK + "kinds = ['rewinds']", "kinds: 'rewinds' is unknown (did you mean rewind?): expected"),
        (HOOK + "kinds = []", "kinds: expected a list of status"),
        (HOOK + "repeat = 'often'", 'repeat: expected a span such as 30s, 5min or 4h, or "never", not'),
        (HOOK + "repeat = '1ms'", "repeat: expected a span"),
        (HOOK + "send_closed = 'no'", "send_closed: expected true or false, not 'no'"),
        (HOOK + "attempts = 0", "attempts: expected a number from 1 to 1000, not 0"),
        (HOOK + "attempts = true", "attempts: expected a number"),
        (HOOK + "timeout = 'never'", "timeout: expected a span"),
        (HOOK + "secret_file = 'none'", "none: No such file or directory"),
        (HOOK + "secret_file = 'short'", "secret_file: fewer than 16 characters: make one with openssl"),
        (HOOK + "ca_file = 'short'", "ca_file: expected certificates in the PEM form"),
        (HOOK + "headers = {'a b' = 'c'}", "headers: 'a b' is no name of a header"),
        (HOOK + "headers = {Host = 'c'}", "headers: 'Host' is no name of a header that can be set"),
        (HOOK + 'headers = {X = "a\\r\\nY: b"}', "headers.X: expected a text of ASCII characters"),
        (HOOK + "format = 'template'", 'template: the path of a file, with format = "template" only'),
        (HOOK + "format = 'json'\ntemplate = 'body.j2'", "template: the path of a file"),
        (HOOK + "template = 'syntax.j2'", "template, line 2: "),
        (HOOK + "template = 'unknown.j2'", "'owner' is undefined: a template has the names event, cluster, id"),
        (HOOK + "template = 'sandbox.j2'", "template: "),
        (HOOK + HOOK, "two webhooks have the name 'a'"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, text: str, says: str) -> None:
    (folder / "short").write_text("secret")
    (folder / "syntax.j2").write_text("a\n{% if %}")
    (folder / "unknown.j2").write_text("{% if closed_at %}{{ owner }}{% endif %}")
    (folder / "sandbox.j2").write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(WebhooksRefused) as refused:
        read(folder, text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(folder / "hooks.toml") in str(refused.value)


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(WebhooksRefused, match="No such file"):
        read_webhooks(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WebhooksRefused, match="bytes: "):
        read_webhooks(tmp_path / "bytes")
