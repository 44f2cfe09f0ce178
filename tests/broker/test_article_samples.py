"""The articles' Python samples and one program of our own, with confluent-kafka, in processes that end by kill -9.

Comments and docstrings name every change of a sample.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from support.brokers import eventually
from support.killed_programs import KilledProgram, commits_of, kill_at_8_seconds
from support.publish import admin, committed, create_topic, numbers, publish

import odradek

# As in the article, except for the address.
LOOP = """
from confluent_kafka import Consumer

conf = {
    'bootstrap.servers': BOOTSTRAP,
    'group.id': 'my-consumer-group',
    'auto.offset.reset': 'earliest',
    'enable.auto.commit': False
}

consumer = Consumer(conf)
consumer.subscribe(['my-topic'])

while True:
    msg = consumer.poll(1.0)
    if msg is None:
        continue
    print(f"Received message: {msg.value()}")
    consumer.commit()
"""
# The consumer does not subscribe. The second line of the loop is an addition, which shows that the polls continue.
WITHOUT_SUBSCRIBE = """
from confluent_kafka import Consumer

conf = {
    'bootstrap.servers': BOOTSTRAP,
    'group.id': 'my-consumer-group',
    'auto.offset.reset': 'earliest',
    'enable.auto.commit': False,
    'max.poll.interval.ms': 600000
}

consumer = Consumer(conf)

while True:
    msg = consumer.poll(1.0)
    print("polled", msg)
    if msg is None:
        continue
    print(f"Received message: {msg.value()}")
    consumer.commit()
"""
GROUP, TOPIC = "my-consumer-group", "my-topic"
Start = Callable[..., KilledProgram]


@pytest.fixture
def servers() -> Iterator[str]:
    with odradek.Broker() as broker:
        create_topic(broker.bootstrap_servers, TOPIC)
        yield broker.bootstrap_servers


@pytest.fixture
def start(servers: str) -> Iterator[Start]:
    started: list[KilledProgram] = []

    def run(program: str, *arguments: str) -> KilledProgram:
        text = program.replace("BOOTSTRAP", repr(servers))
        started.append(KilledProgram([sys.executable, "-u", "-c", text, *arguments]))
        return started[-1]

    yield run
    for victim in started:
        victim.kill()


@pytest.mark.claim(47, part="a", by="by clients")
def test_the_loop_of_the_article_commits_offset_10(servers: str, start: Start) -> None:
    """The loop commits asynchronously after each message. librdkafka may send the request later and then commits the
    position of that time. So a group can have fewer commits than messages. A killed process makes no last commit."""
    publish(servers, TOPIC, numbers(10))
    loop = start(LOOP)
    eventually(lambda: committed(servers, GROUP) == {(TOPIC, 0): 10}, within_s=30)
    loop.kill()
    assert loop.lines == [f"Received message: b'{n}'" for n in range(10)]
    offsets = [row.offset for row in commits_of(servers, GROUP)]
    assert len(offsets) <= 10
    assert offsets == sorted(offsets)


@pytest.mark.claim(47, part="c", by="by clients")
def test_the_loop_of_the_article_prints_an_error_as_data(servers: str, start: Start) -> None:
    """The topic does not exist. The sample does not check ``msg.error()``, so it prints the error as a message."""
    loop = start(LOOP.replace("my-topic", "absent"))
    (line,) = eventually(lambda: list(loop.lines), within_s=30)
    loop.kill()
    assert line.startswith("Received message: b'Subscribed topic not available: absent")


@pytest.mark.claim(48, by="by clients")
def test_the_sample_that_does_not_subscribe_gets_nothing(servers: str, start: Start) -> None:
    publish(servers, TOPIC, numbers(10))
    loop = start(WITHOUT_SUBSCRIBE)
    eventually(lambda: len(loop.lines) >= 2, within_s=30)
    assert set(loop.lines) == {"polled None"}
    assert admin(servers).describe_consumer_groups([GROUP])[GROUP].result(10).members == []
    assert committed(servers, GROUP) == {}


# One record at a time. librdkafka's own thread commits the offsets of returned records.
AUTOMATIC = """
import json, sys, time
from confluent_kafka import Consumer

stop_at = int(sys.argv[1])
print("started", int(time.time() * 1000))
consumer = Consumer({'bootstrap.servers': BOOTSTRAP, 'group.id': sys.argv[3], 'auto.offset.reset': 'earliest',
                     'enable.auto.commit': True, 'auto.commit.interval.ms': int(sys.argv[2]),
                     'group.instance.id': 'one'})
consumer.subscribe(['my-topic'])
while True:
    msg = consumer.poll(0.1)
    if msg is None:
        continue
    if msg.offset() == stop_at:
        sys.stdin.read()  # in the middle of its work
    time.sleep(0.01)
    print("processed", msg.topic(), msg.partition(), msg.offset(), int(time.time() * 1000))
"""


@pytest.mark.slow
@pytest.mark.claim(25, 27, by="by clients")
def test_a_process_killed_at_8_seconds_repeats_the_records_after_its_last_commit(servers: str, start: Start) -> None:
    """Two processes run one program, with commit intervals of 5 s and of 1 s. Each processes a record every 10 ms."""
    publish(servers, TOPIC, numbers(2_000))
    runs = {interval: start(AUTOMATIC, "-1", str(interval), f"g{interval}") for interval in (5_000, 1_000)}

    last = kill_at_8_seconds(servers, {interval: (f"g{interval}", victim) for interval, victim in runs.items()})
    for interval, offset in last.items():
        heir = start(AUTOMATIC, "-1", str(interval), f"g{interval}")
        assert eventually(lambda heir=heir: heir.processed, within_s=60)[0] == (TOPIC, 0, offset)
        heir.kill()
    assert len(runs[1_000].processed) - last[1_000] < len(runs[5_000].processed) - last[5_000]


@pytest.mark.claim(24, part="b", by="by clients")
def test_auto_commit_loses_the_record_that_is_being_processed(servers: str, start: Start) -> None:
    """librdkafka stores the next offset when poll returns a record. So it may commit this offset while the program
    still processes the record."""
    publish(servers, TOPIC, numbers(100))
    victim = start(AUTOMATIC, "20", "100", GROUP)
    eventually(lambda: committed(servers, GROUP) == {(TOPIC, 0): 21}, within_s=30)
    victim.kill()
    assert victim.processed == [(TOPIC, 0, offset) for offset in range(20)]
    heir = start(AUTOMATIC, "-1", "100", GROUP)
    assert eventually(lambda: heir.processed, within_s=30)[0] == (TOPIC, 0, 21), "record 20 was never processed"
