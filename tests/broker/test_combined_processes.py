"""The process of a node with both roles, and two brokers in its cluster: kill -9, restarts, clean stops, bad input."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import eventually
from support.cluster_processes import COMBINED, CombinedCluster, format_as, settings_of_both
from test_cluster_processes import alter, create, produce, topics_at

from odradek.broker.process import role_class
from odradek.broker.settings.config import BrokerConfig
from odradek.cli.main import run
from odradek.core.errors import ErrorCode
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerFailed, BrokerProcess

NONE = ErrorCode.none


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CombinedCluster]:
    with CombinedCluster(tmp_path_factory.mktemp("combined")) as made:
        yield made


@pytest.fixture
def cluster(shared: CombinedCluster) -> CombinedCluster:
    for one in shared.brokers.values():
        if not one.running:
            one.start()
    return shared


def agree(cluster: CombinedCluster, names: set[str]) -> None:
    """Each node knows these topics, with the same ids, and with leaders."""

    def known() -> bool:
        views = [topics_at(cluster, number) for number in cluster.brokers]
        return all(view == views[0] and names <= view.keys() for view in views) and all(
            leader >= 0 for name in names for _, leader in views[0][name][1]
        )

    eventually(known, within_s=60)


def test_a_node_with_both_roles_and_two_brokers_are_one_cluster(cluster: CombinedCluster) -> None:
    for number in cluster.brokers:
        with cluster.wire(number) as wire:
            assert create(wire, f"from-{number}") is NONE
            assert alter(wire, f"from-{number}", 90_000 + number) is NONE
    names = {f"from-{number}" for number in cluster.brokers}
    agree(cluster, names)
    leaders = {leader for name in names for _, leader in topics_at(cluster, 1)[name][1]}
    assert leaders <= {1, 2, COMBINED}  # the placement begins at a random broker, and leaves out one that is fenced now
    assert len(leaders) > 1
    for name in names:
        for index, leader in topics_at(cluster, 2)[name][1]:
            assert produce(cluster, name, index, leader) is NONE


def test_no_acknowledged_topic_is_lost_by_kill_9(cluster: CombinedCluster) -> None:
    """Two brokers and the node itself create topics while it is killed, twice."""
    acknowledged: set[str] = set()
    failures: list[BaseException] = []
    is_over = threading.Event()

    def work(number: int) -> None:
        count = 0
        try:
            while not is_over.is_set():
                name = f"w{number}-{count}"
                count += 1
                try:
                    with cluster.wire(number) as wire:
                        if create(wire, name) is NONE:
                            acknowledged.add(name)
                except OSError:
                    is_over.wait(0.05)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in cluster.brokers]
    for worker in workers:
        worker.start()
    try:
        for _ in range(2):
            wanted = len(acknowledged) + 5
            eventually(lambda wanted=wanted: len(acknowledged) > wanted, within_s=60)
            cluster.controller.kill()
            cluster.controller.start()
    finally:
        is_over.set()
        for worker in workers:
            worker.join(90)
    assert failures == []
    assert not any(worker.is_alive() for worker in workers)
    agree(cluster, acknowledged)


def test_it_stops_cleanly_and_goes_on(cluster: CombinedCluster) -> None:
    with cluster.wire(1) as wire:
        assert create(wire, "kept") is NONE
    agree(cluster, {"kept"})
    assert cluster.controller.stop() == 0
    live = [(index, leader) for index, leader in topics_at(cluster, 1)["kept"][1] if leader in (1, 2)]
    assert all(produce(cluster, "kept", index, leader) is NONE for index, leader in live)
    cluster.controller.start()
    agree(cluster, {"kept"})


# --- the directory decides between a lone broker and a node of a cluster ------------------------------------------


def lone(home: Path, **config: str) -> BrokerProcess:
    own, controller = reserve_ports(2)
    controller.close()
    settings = settings_of_both(own.port, controller.port) | config
    made = BrokerProcess(home, config=settings, port=own.port)
    made.reservation = own
    return made


def test_without_a_formatted_directory_the_node_is_a_lone_broker_and_says_so(tmp_path: Path) -> None:
    with lone(tmp_path) as broker:
        assert "the node is a lone broker, because" in broker.log_tail()
    assert "process.roles" not in checkpoints.read_meta_properties(tmp_path / "data", OsFiles())


def test_other_roles_refuse_the_directory_of_a_node_with_both(tmp_path: Path) -> None:
    format_as(tmp_path / "data", COMBINED)
    made = lone(tmp_path).start()
    assert made.stop() == 0
    assert checkpoints.read_meta_properties(tmp_path / "data", OsFiles())["process.roles"] == "broker,controller"
    both = dict(made.config)
    alone = {name: both[name] for name in ("controller.quorum.voters", "controller.listener.names", "node.id")}
    for config in (
        {"node.id": str(COMBINED)},
        alone | {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:0"},
    ):
        made.config = config
        with pytest.raises(BrokerFailed, match="is the directory of a node with both roles of a cluster"):
            made.start()
    made.config = both
    assert made.start().stop() == 0


def test_settings_that_a_lone_broker_may_have_are_refused_for_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    format_as(tmp_path / "data", COMBINED)
    texts = settings_of_both(1, 0)
    words = [word for name, text in texts.items() for word in ("--config", f"{name}={text}")]
    assert run(["serve", "--data-dir", str(tmp_path / "data"), *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is no address that brokers can reach: name host and port" in said


def test_the_role_follows_the_settings() -> None:
    config = BrokerConfig(settings_of_both(1, 2))
    assert config.may_be_combined
    assert role_class(config).__name__ == "LoneRole"
    config.use_both_roles()
    assert role_class(config).__name__ == "CombinedRole"
    assert [(one.name, one.kind) for one in config.listeners_at(None)] == [
        ("PLAINTEXT", "client"), ("CONTROLLER", "controller")
    ]  # fmt: skip
