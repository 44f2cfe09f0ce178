"""Spark's source and sink at a listener with TLS and SCRAM. Passwords are in no plan, report or checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.oauth_broker import oauth_broker
from support.secured_listeners import SECRET, USER, SecuredListener, secured_listener

import odradek


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredListener]:
    with secured_listener(tmp_path_factory.mktemp("authority"), "in", "out") as listener:
        with odradek.Producer(listener.settings) as producer:
            for number in range(50):
                producer.send("in", value=b"%d" % number)
        yield listener


def options(listener: SecuredListener, **more: str) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in listener.settings.items()} | more


def shown(frame: Any) -> str:
    """All that Spark shows of a query's plan."""
    execution = frame._jdf.queryExecution()
    return f"{execution.toString()}{execution.logical().toJSON()}"


def test_a_query_reads_and_writes_and_shows_no_password(spark: Any, listener: SecuredListener, tmp_path: Path) -> None:
    read = spark.read.format("odradek").options(**options(listener, subscribe="in")).load()
    assert read.count() == 50
    assert SECRET not in shown(read)
    stream = spark.readStream.format("odradek").options(
        **options(listener, subscribe="in", startingOffsets="earliest", commitOffsets="true", **{"kafka.group.id": "g"})
    )
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("odradek")
        .options(**options(listener, topic="out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    reported = "".join(str(progress) for progress in query.recentProgress) + str(query._jsq.explainInternal(True))
    assert SECRET not in reported
    with odradek.Admin(listener.settings) as admin:
        assert [row.offset for row in admin.list_group_offsets("g").values()] == [50]
    assert spark.read.format("odradek").options(**options(listener, subscribe="out")).load().count() == 50
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert set(listener.proxy.logins) == {USER}


def test_a_refused_login_ends_the_query_at_once_and_shows_no_password(spark: Any, listener: SecuredListener) -> None:
    wrong = {"kafka.sasl.jaas.config": listener.settings["sasl.jaas.config"].replace(SECRET, "other-secret")}
    with pytest.raises(Exception, match="refused the login by SCRAM-SHA-512") as refused:
        spark.read.format("odradek").options(**options(listener, subscribe="in") | wrong).load().count()
    assert "other-secret" not in str(refused.value)


@pytest.mark.slow
def test_a_stream_by_oauthbearer_shows_neither_secret_nor_token(spark: Any, tmp_path: Path) -> None:
    with oauth_broker(tmp_path / "broker") as world:
        with odradek.Producer(world.settings) as producer:
            for number in range(50):
                producer.send("in", value=b"%d" % number)
        login = {f"kafka.{name}": value for name, value in world.settings.items()}
        read = spark.read.format("odradek").options(**login, subscribe="in").load()
        assert read.count() == 50
        stream = spark.readStream.format("odradek").options(
            **login, subscribe="in", startingOffsets="earliest", commitOffsets="true", **{"kafka.group.id": "g"}
        )
        query = (
            stream.load()
            .select("key", "value")
            .writeStream.format("odradek")
            .options(**login, topic="out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        said = shown(read) + "".join(map(str, query.recentProgress)) + str(query._jsq.explainInternal(True))
        with odradek.Admin(world.settings) as admin:
            assert [row.offset for row in admin.list_group_offsets("g").values()] == [50]
        wrong = {"kafka.sasl.jaas.config": login["kafka.sasl.jaas.config"].replace("canary", "canary-other")}
        with pytest.raises(Exception, match=r"the identity provider 127.* answered with status 401") as refused:
            spark.read.format("odradek").options(**login | wrong, subscribe="in").load().count()
        said += str(refused.value)
        assert len(world.secrets) > 3
        assert [one for one in world.secrets if one in said] == []
        assert "canary-other" not in said
        for path in (path for path in tmp_path.rglob("*") if path.is_file()):
            data = path.read_bytes()
            assert [one for one in world.secrets if one.encode() in data] == [], path
