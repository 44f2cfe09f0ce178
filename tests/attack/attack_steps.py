"""The steps of an attack. Each is a function of an episode and a source of chances; it does nothing if it cannot."""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from attack_drivers import AttackedDriver, cold
from attack_episode import AttackEpisode, BegunCommand
from attack_oracle import AttackFound, check_lines
from attack_records import AttackedTopic, SentRecord
from attack_targets import AttackedTable, TableCopy, replace_folder, replay_of
from support.publish import commit

from odradek.core.ids import TopicPartition

OPERATIONS = ("WriteRows", "publish", "FinishEntry", "CommitGroup", "HasLeftovers", "RemoveLeftovers", "FenceGroup")
Step = Callable[[AttackEpisode, random.Random], None]


def some_table(episode: AttackEpisode, rng: random.Random) -> AttackedTable:
    return rng.choice(episode.tables)


def some_topic(episode: AttackEpisode, rng: random.Random) -> AttackedTopic:
    return rng.choice(list(episode.book.topics.values()))


def some_idle(episode: AttackEpisode, rng: random.Random) -> AttackedDriver | None:
    idle = episode.idle()
    return rng.choice(idle) if idle else None


# --- records ----------------------------------------------------------------------------------------------------------


def send(episode: AttackEpisode, rng: random.Random) -> None:
    topic = some_topic(episode, rng)
    for partition in range(topic.partitions):
        if rng.random() < 0.7:
            episode.book.send(topic, partition, rng.choice((1, 3, 12, 40)))
    episode.say("records are sent")


def send_in_transactions(episode: AttackEpisode, rng: random.Random) -> None:
    topic = some_topic(episode, rng)
    for _ in range(rng.randint(1, 3)):
        is_committed = rng.random() < 0.5
        episode.book.send_in_transaction(
            topic, rng.randrange(topic.partitions), rng.randint(1, 20), is_committed=is_committed
        )
        episode.say(f"a transaction, {'committed' if is_committed else 'aborted'}")


def add_partition(episode: AttackEpisode, rng: random.Random) -> None:
    topic = some_topic(episode, rng)
    if topic.partitions < 4:
        episode.book.add_partition(topic)
        episode.say("a partition is added")


def delete_records(episode: AttackEpisode, rng: random.Random) -> None:
    topic = some_topic(episode, rng)
    partition = rng.randrange(topic.partitions)
    start = episode.book.starts(topic)[TopicPartition(topic.name, partition)]
    end = episode.book.ends(topic)[TopicPartition(topic.name, partition)]
    if end == start:
        return
    episode.look_at_all()
    before = rng.randint(start, end)
    gone = episode.book.delete_before(topic, partition, before)
    _records_are_gone(episode, gone, "deleted")
    episode.say(f"the records of partition {partition} below {before} are deleted")


def retain(episode: AttackEpisode, rng: random.Random) -> None:
    """Retention by time or by size removes segments, perhaps before a run has read them."""
    topic = some_topic(episode, rng)
    limit = rng.choice(("retention.ms", "retention.bytes"))
    most = rng.choice((1, 1000, 5000)) if limit == "retention.ms" else rng.choice((1, 300, 2000))
    episode.look_at_all()
    gone = episode.book.retain(topic, {limit: str(most)})
    _records_are_gone(episode, gone, "deleted")
    episode.say(f"{limit}={most} has removed {len(gone)} records")


def recreate_topic(episode: AttackEpisode, rng: random.Random) -> None:
    episode.look_at_all()
    topic = some_topic(episode, rng)
    _records_are_gone(episode, episode.book.recreate(topic), "topic")
    episode.say("a topic is deleted and created again")
    if rng.random() < 0.8:
        send(episode, rng)


def _records_are_gone(episode: AttackEpisode, gone: list[SentRecord], cause: str) -> None:
    for table in episode.tables:
        table.losses.note(gone, table.bounds, episode.book, table.group.committed())
        table.bounds.excuse(gone)
        table.causes.add(cause)
        if cause == "topic":
            table.group.forget()
    if episode.target is not None:
        for record in gone:
            episode.target.bounds.least[record.id] = 0
        episode.target.causes.add(cause)


# --- drivers ----------------------------------------------------------------------------------------------------------


def begin_run(episode: AttackEpisode, rng: random.Random) -> None:
    """Begins a run, perhaps with a halt at an operation of the commit machine, and may wait for its end."""
    driver = some_idle(episode, rng)
    if driver is None:
        return
    table = some_table(episode, rng)
    halt = None
    if rng.random() < 0.45:
        halt = {
            "operation": rng.choice(OPERATIONS), "when": rng.choice(("before", "after")), "nth": rng.randint(1, 3),
            "signal": rng.choice(("STOP",) * 6 + ("KILL",)),
        }  # fmt: skip
    episode.begin(driver, BegunCommand("ingest", table, table.ids()), table.ingest(episode.bootstrap, rng), halt=halt)
    if halt is not None or rng.random() < 0.5:
        episode.end(driver, 600)


def begin_run_with_trigger(episode: AttackEpisode, rng: random.Random) -> None:
    """A run that ends only by SIGTERM."""
    driver = some_idle(episode, rng)
    if driver is None:
        return
    table = some_table(episode, rng)
    command = [*table.ingest(episode.bootstrap, rng), "--trigger", rng.choice(("100ms", "1s"))]
    episode.begin(driver, BegunCommand("ingest", table, frozenset()), command)
    time.sleep(rng.uniform(0.5, 6))
    send(episode, rng)
    time.sleep(rng.uniform(0, 3))
    if rng.random() < 0.7:
        episode.say(f"SIGTERM for {driver.name}")
        driver.terminate(alone=rng.random() < 0.7)
        episode.end(driver, 600)
    else:
        episode.kill(driver)
        episode.say(f"{driver.name} is killed")


def begin_replay(episode: AttackEpisode, rng: random.Random) -> None:
    driver, table = some_idle(episode, rng), some_table(episode, rng)
    known = list(table.bounds.replays)
    if driver is None:
        return
    if known and rng.random() < 0.4:
        ranges = rng.choice(known)
        records = episode.book.in_ranges(ranges)
        if not records:
            return
    else:
        drawn = replay_of(rng.choice(table.topics), rng)
        if drawn is None:
            return
        ranges, records = drawn
    if ranges not in table.bounds.replays:
        table.bounds.replays[ranges] = False
        for record in records:
            table.bounds.allow(record)
    begun = BegunCommand("replay", table, frozenset(one.id for one in records), ranges)
    episode.begin(driver, begun, table.replay(episode.bootstrap, ranges, rng))
    if rng.random() < 0.6:
        episode.end(driver, 600)


def begin_transform(episode: AttackEpisode, rng: random.Random) -> None:
    driver = some_idle(episode, rng)
    if driver is None or episode.target is None:
        return
    begun = BegunCommand("transform", episode.target, episode.target.ids())
    episode.begin(driver, begun, episode.target.transform(episode.bootstrap, rng))


def disturb(episode: AttackEpisode, rng: random.Random) -> None:
    """Stops, kills or terminates a driver at a random moment, or waits for it."""
    running = [one for one in episode.drivers if one.is_running and not one.is_stopped]
    if not running:
        return
    driver = rng.choice(running)
    time.sleep(rng.choice((0.0, 0.1, 0.5, 1.0, 2.0, 4.0)) * rng.random())
    how = rng.choices(("stop", "kill", "terminate", "wait"), (12, 2, 1, 2))[0]
    if how == "stop":
        driver.stop(alone=rng.random() < 0.4)
        episode.was_stopped = True
    elif how == "kill":
        episode.kill(driver)
    elif how == "terminate":
        driver.terminate(alone=rng.random() < 0.7)
    episode.say(f"{driver.name}: {how}")
    if how in ("terminate", "wait"):
        episode.end(driver, 600)


def go_on(episode: AttackEpisode, rng: random.Random) -> None:
    stopped = [one for one in episode.drivers if one.is_stopped]
    if stopped:
        driver = rng.choice(stopped)
        driver.go_on()
        episode.say(f"{driver.name} goes on")
        if rng.random() < 0.7:
            episode.end(driver, 600)


def run_cold(episode: AttackEpisode, rng: random.Random) -> None:
    if len(episode.idle()) == len(episode.drivers) and not episode.setting.is_plain:
        episode.run_cold(some_table(episode, rng), rng)


def settle(episode: AttackEpisode, rng: random.Random) -> None:
    if not episode.settle(rng):
        raise GivenUp


class GivenUp(Exception):
    """Only a restore helps, and the attacker has overwritten what could be restored."""


# --- groups -----------------------------------------------------------------------------------------------------------


def move_group(episode: AttackEpisode, rng: random.Random) -> None:
    """Another client commits to the group, as Kafka's tool does: without metadata."""
    table, topic = some_table(episode, rng), some_topic(episode, rng)
    ends = episode.book.ends(topic)
    table.group.forget()
    rows = {(tp.topic, tp.partition): rng.randint(0, end) for tp, end in ends.items() if rng.random() < 0.7}
    for one in episode.tables:  # a partition that the table has not begun to read begins at the group's offset
        begun = {episode.book.by_id[number].place[:2] for number in one.bounds.seen}
        one.bounds.excuse(
            record
            for record in topic.readable()
            if not (one.has_begun and record.place[:2] in begun) and record.place[2] < rows.get(record.place[:2], 0)
        )
    if rows:
        commit(episode.bootstrap, table.group.group, rows)
    episode.say(f"another client commits {list(rows.values())}")


def delete_group(episode: AttackEpisode, rng: random.Random) -> None:
    table = some_table(episode, rng)
    if table.group.offsets():
        table.group.forget()
        episode.admin.delete_groups([table.group.group])
        episode.say("the group is deleted")


def reset_group(episode: AttackEpisode, rng: random.Random) -> None:
    """``odradek groups reset --mark``, on a complete table: the pipeline follows it."""
    if len(episode.tables) > 1 or len(episode.idle()) < len(episode.drivers):
        return
    settle(episode, rng)
    table, topic = episode.tables[0], some_topic(episode, rng)
    partition = rng.randrange(topic.partitions)
    tp = TopicPartition(topic.name, partition)
    start, end = episode.book.starts(topic)[tp], episode.book.ends(topic)[tp]
    if end == start:
        return
    offset = rng.randint(start, end)
    before = cold(
        ["groups", "reset", table.group.group, "--topic", f"{topic.name}:{partition}", "--to-offset", str(offset),
         "--mark", "--execute", "-b", episode.bootstrap], episode.place,
    )  # fmt: skip
    check_lines(before, "groups reset")
    if not before.is_done:
        raise AttackFound(f"groups reset: {before.error}")
    table.group.forget()
    again = [one for one in topic.readable() if one.place[1] == partition and offset <= one.place[2] < end]
    table.bounds.repeat(again)
    episode.say(f"a marked reset of {partition} to {offset} of {end}")
    settle(episode, rng)  # another commit would overwrite the reset


# --- old copies -------------------------------------------------------------------------------------------------------


def copy_part(episode: AttackEpisode, rng: random.Random) -> None:
    """Copies a part of a table for later, while no driver writes."""
    if not episode.is_quiet:
        return
    table = some_table(episode, rng)
    folders = table.folders()
    if not folders:
        return
    part = rng.choice(sorted(folders))
    content = episode.place / f"copy-{time.monotonic_ns()}-{table.name}"
    for name, path in _content(table, part).items():
        if path.exists():
            shutil.copytree(path, content / name, symlinks=True)
    episode.look(table)
    table.copies.append(TableCopy(part, content, table.bounds.copy()))
    episode.say(f"{part} of {table.name} is copied")


def _content(table: AttackedTable, part: str) -> dict[str, Path]:
    """The folders of a part. The staging folder belongs to the whole table."""
    if part == "table":
        return {"table": table.output, "staging": table.output.parent / f".{table.name}.staging"}
    return {part: table.folders()[part]} if part in table.folders() else {}


def put_back(episode: AttackEpisode, rng: random.Random) -> None:
    """Puts an old copy in the place of a part, while no driver writes."""
    table = some_table(episode, rng)
    if not table.copies or not episode.is_quiet:
        return
    copy = rng.choice(table.copies)
    now = episode.place / f"before-{time.monotonic_ns()}"
    folders = _content(table, copy.part)
    for name, path in folders.items():
        if path.exists():
            shutil.copytree(path, now / name, symlinks=True)
    bounds = table.bounds.copy()
    replace_content(folders, copy.content)
    _is_attacked(episode, table, copy.part, copy.bounds)
    if copy.part == "table":  # it has removed files that a copy of the log names
        table.copies = [one for one in table.copies if one.part != "delta-log"]
    table.note_undo(lambda: _undo(table, folders, now, bounds, copy.part))
    episode.say(f"the old {copy.part} of {table.name} is put back")


def replace_content(folders: dict[str, Path], content: Path) -> None:
    for name, path in folders.items():
        if (content / name).exists():
            replace_folder(path, content / name)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _undo(table: AttackedTable, folders: dict[str, Path], content: Path, bounds: object, part: str) -> None:
    replace_content(folders, content)
    if part in ("table", "delta-log"):
        most = table.bounds.most
        table.bounds = bounds
        table.bounds.most = most
    table.group.forget()


def _is_attacked(episode: AttackEpisode, table: AttackedTable, part: str, bounds: object) -> None:
    """Notes what a part of the past means for the table: its rows, and its replays, are those of then."""
    table.causes.add("state" if part == "state" and table.checkpoint is not None else part)
    table.causes.add("notes" if part == "state" else part)
    table.group.forget()
    if part in ("table", "delta-log"):
        table.losses.forget()
        for name, begun in episode.begun.items():  # what a stopped run has published is gone
            if begun.target is table:
                episode.begun[name] = dataclasses.replace(begun, ids=frozenset(), replay="")
        present = table.bounds
        table.bounds = bounds.copy()
        table.bounds.least |= {one: 0 for one, least in present.least.items() if least == 0}
        table.bounds.most |= present.most
        table.bounds.excuse(episode.book.gone())  # what the old copy lacks, no topic can bring back
        for ranges in present.replays:
            table.bounds.replays.setdefault(ranges, False)


def remove_entry(episode: AttackEpisode, rng: random.Random) -> None:
    """Removes a file of the table's notes or of the checkpoint, while no driver writes."""
    table = some_table(episode, rng)
    if not episode.is_quiet:
        return
    places = {
        "notes": [*(table.state / "batches").glob("*.json"), *(table.state / "batches").glob("log-forgotten")],
        "run": [*(table.state / "runs").glob("*")],
        "checkpoint": [one for one in table.checkpoint_folder.rglob("*") if one.is_file()],
    }
    part = rng.choice(("notes", "notes", "run", "checkpoint"))
    files = sorted(places[part])
    if not files:
        return
    chosen = files[-1] if rng.random() < 0.4 else rng.choice(files)
    content = chosen.read_bytes()
    chosen.unlink()
    table.causes.add(part)
    table.note_undo(lambda: _write_again(chosen, content))
    episode.say(f"{chosen.relative_to(episode.place)} is removed")


def _write_again(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def foreign_commit(episode: AttackEpisode, rng: random.Random) -> None:
    """Another writer of a Delta table commits: an empty append, a compaction, a checkpoint of the log, removed rows."""
    table = some_table(episode, rng)
    if table.setting.table_format != "delta" or not (table.output / "_delta_log").exists():
        return
    from deltalake import DeltaTable

    log = DeltaTable(table.output)
    how = rng.choice(("append", "compact", "checkpoint", "rows"))
    if how == "append":
        log.create_write_transaction([], "append", log.schema(), [])
    elif how == "compact":
        log.optimize.compact()
    elif how == "checkpoint":
        log.create_checkpoint()
        log.cleanup_metadata()
    elif not table.copies:  # an old copy of the table would bring the rows back
        _remove_rows(episode, table, log, rng)
    table.causes.add("foreign")
    episode.say(f"a foreign commit: {how}")


def _remove_rows(episode: AttackEpisode, table: AttackedTable, log: object, rng: random.Random) -> None:
    episode.look(table)
    table.losses.forget()
    topic = rng.choice(table.topics)
    partition, below = rng.randrange(topic.partitions), rng.randint(0, 30)
    log.delete(f"topic = '{topic.name}' AND partition = {partition} AND offset < {below}")
    for number in list(table.bounds.seen):
        place = episode.book.by_id[number].place
        if place[:2] == (topic.name, partition) and place[2] < below:
            del table.bounds.seen[number]
            table.bounds.least[number] = 0
            table.bounds.most[number] = 0


def change_options(episode: AttackEpisode, rng: random.Random) -> None:
    """A run with another option of the table's content is refused, and changes nothing."""
    driver, table = some_idle(episode, rng), some_table(episode, rng)
    if driver is None or not table.entries or not table.bounds.seen or len(episode.idle()) < len(episode.drivers):
        return
    command = [*table.ingest(episode.bootstrap, rng)]
    if rng.random() < 0.5:
        command.append("--headers")
    else:
        at = command.index("--table-format") + 1
        command[at] = "parquet" if command[at] == "delta" else "delta"
    before = table.entries
    episode.begin(driver, BegunCommand("ingest", table, frozenset()), command)
    end = episode.end(driver, 600)
    if end is not None and (end.is_done or table.entries != before):
        raise AttackFound(f"a run with other options was not refused: {end}")


def read_one_topic(episode: AttackEpisode, rng: random.Random) -> None:
    """A run reads only some of the topics."""
    driver, table = some_idle(episode, rng), some_table(episode, rng)
    if driver is None or len(table.topics) < 2:
        return
    command = table.ingest(episode.bootstrap, rng)
    command[command.index("--topics") + 1] = rng.choice(table.topics).name
    table.causes.add("topics")
    episode.begin(driver, BegunCommand("ingest", table, frozenset()), command)
    episode.end(driver, 600)


WEIGHTS: dict[Step, int] = {
    send: 12, send_in_transactions: 3, add_partition: 1, delete_records: 1, retain: 2,
    recreate_topic: 1,
    begin_run: 22, begin_run_with_trigger: 2, begin_replay: 3, begin_transform: 3, disturb: 10, go_on: 8, run_cold: 1,
    settle: 4, move_group: 3, delete_group: 1, reset_group: 1,
    copy_part: 7, put_back: 9, remove_entry: 3, foreign_commit: 3, change_options: 1, read_one_topic: 1,
}  # fmt: skip
