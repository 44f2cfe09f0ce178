"""An episode: a drawn setting, a drawn row of steps against it, and the check that what is left comes to its end."""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack_drivers import AttackedDriver, CommandEnd, cold
from attack_oracle import (
    AttackFound,
    GroupWatch,
    check_complete,
    check_counts,
    check_lines,
    refusal_of,
    shape_of,
)
from attack_records import AttackedTopic, RecordBook
from attack_targets import AttackedTable, AttackedTarget, AttackSetting
from support.brokers import unique
from support.publish import create_topic

from odradek.client.admin import Admin

_MOST_REMEDIES = 6


@dataclasses.dataclass
class BegunCommand:
    """A command that a driver has begun. ``ids``: the records that it has to bring to its output. ``replay``: the
    ranges of a replay."""

    kind: str
    target: AttackedTable | AttackedTarget
    ids: frozenset[int]
    replay: str = ""


class AttackEpisode:
    """The state of an episode, and what every step uses. ``attack_steps`` has the steps."""

    def __init__(
        self, bootstrap: str, admin: Admin, place: Path, drivers: Sequence[AttackedDriver], seed: str, *, is_plain: bool
    ) -> None:
        self.bootstrap, self.admin, self.place, self.drivers = bootstrap, admin, place, list(drivers)
        rng = random.Random(f"{seed} setting")
        self.setting = AttackSetting.drawn(rng, is_plain=is_plain)
        self.book = RecordBook(
            bootstrap, admin, self.setting.value_format, reads_aborted=not self.setting.is_committed_only
        )
        self.history: list[str] = []
        self.lines: Counter[str] = Counter()
        self.begun: dict[str, BegunCommand] = {}
        self.was_stopped = False
        topics = [self.book.create(rng.randint(1, 3)) for _ in range(rng.choice((1, 1, 2)))]
        place.mkdir(parents=True)
        self.tables = [self._table("first", topics)]
        if rng.random() < 0.15:  # two tables overwrite each other's commits
            second = self._table("second", topics)
            second.group = self.tables[0].group
            self.tables.append(second)
            self.tables[0].group.is_shared = True
        self.target = self._target(topics) if rng.random() < 0.3 and not is_plain else None
        self.say(f"{self.setting}, {len(topics)} topics, {len(self.tables)} tables, transform {bool(self.target)}")

    def _table(self, name: str, topics: list[AttackedTopic]) -> AttackedTable:
        checkpoint = self.place / f"{name}-checkpoint" if self.setting.is_checkpoint_outside else None
        group = GroupWatch(self.admin, unique("attacking"))
        return AttackedTable(self.place / name, checkpoint, self.setting, topics, group)

    def _target(self, topics: list[AttackedTopic]) -> AttackedTarget:
        target = AttackedTopic(unique("target"), 2)
        create_topic(self.bootstrap, target.name, 2)
        group = GroupWatch(self.admin, unique("transforming"))
        level = "read_committed" if self.setting.is_committed_only else "read_uncommitted"
        return AttackedTarget(target.name, self.place / "transform-checkpoint", topics, group, level)

    def say(self, what: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {what}"
        self.history.append(line)
        print(line, flush=True)

    def idle(self) -> list[AttackedDriver]:
        return [driver for driver in self.drivers if not driver.is_running]

    @property
    def is_quiet(self) -> bool:
        """Whether no driver does anything: each is idle or stopped with all its processes."""
        return all(not driver.is_running or driver.is_stopped for driver in self.drivers)

    # --- commands ---------------------------------------------------------------------------------------------------

    def begin(self, driver: AttackedDriver, begun: BegunCommand, command: list[str], **more: Any) -> None:
        self.begun[driver.name] = begun
        self.say(f"{driver.name} begins {begun.kind} {begun.replay} {' '.join(command[-6:])} {more}")
        driver.begin(command, **{"locks": self.setting.locks, **more})

    def end(self, driver: AttackedDriver, timeout_s: float) -> CommandEnd | None:
        """Waits for a driver's command. Its end is judged."""
        end = driver.end(timeout_s)
        if end is None:
            self.was_stopped = self.was_stopped or driver.is_stopped
            self.say(f"{driver.name} {'has halted' if driver.is_stopped else 'is running'}")
            return None
        self.judge(driver.name, self.begun.pop(driver.name), end)
        return end

    def kill(self, driver: AttackedDriver) -> None:
        driver.kill()
        self.begun.pop(driver.name, None)

    def judge(self, name: str, begun: BegunCommand, end: CommandEnd) -> None:
        """Judges the end of a command. Raises AttackFound."""
        said = end.error or end.out.strip()[-160:]
        self.say(f"{name} {begun.kind}: {end.code} {said}")
        check_lines(end, begun.kind)
        if isinstance(begun.target, AttackedTable):
            begun.target.losses.read(end)
        if end.error and not end.was_ended:
            known = refusal_of(end.error)
            self.lines[f"{'' if known else '?? '}{shape_of(end.error)}"] += 1
        if not end.is_done or not isinstance(begun.target, AttackedTable):
            return
        begun.target.has_begun = begun.target.has_begun or begun.kind == "ingest"
        bounds = begun.target.bounds
        if begun.kind == "replay" and not bounds.replays.get(begun.replay, True):
            bounds.replays[begun.replay] = True
            for record in self.book.in_ranges(begun.replay):
                if record.id in begun.ids:
                    bounds.demand(record)
                else:  # the topic was created again before the replay looked at it
                    bounds.allow(record)
        found = self.look(begun.target)
        missing = [one for one in begun.ids if found[one] < min(1, bounds.least.get(one, 1))]
        if missing and begun.kind != "adopt":
            check_complete(found, bounds, self.book, [topic.name for topic in begun.target.topics])

    def look(self, table: AttackedTable) -> Counter[int]:
        """Looks at a table and its group, whatever is running. Raises AttackFound."""
        if table.group.is_shared:  # each table may begin at the offsets of the other one
            table.bounds.excuse(self.book.by_id.values())
        offsets = table.group.check(may_go_back=self.was_stopped and not self.setting.fence)
        found = table.counts(self.book)
        check_counts(found, table.bounds, self.book)
        table.group.check_below(offsets, self.book, table.bounds)
        return found

    def look_at_all(self) -> None:
        for table in self.tables:
            self.look(table)

    # --- the end ----------------------------------------------------------------------------------------------------

    def let_all_end(self) -> None:
        """Continues all drivers, and waits for their commands."""
        for driver in self.drivers:
            driver.go_on()
        for driver in self.drivers:
            while driver.is_running:
                self.end(driver, 900)
                driver.go_on()

    def settle(self, rng: random.Random) -> bool:
        """Lets all drivers end, and brings each output to its end by the remedies that the lines name. Returns False if
        only a restore helps that is no more possible. Raises AttackFound."""
        self.let_all_end()
        self.look_at_all()
        if not all(self._settle_table(table, rng) for table in self.tables):
            return False
        if self.target is not None and not self._settle_target(self.target, rng):
            return False
        self.was_stopped = False
        return True

    def _settle_table(self, table: AttackedTable, rng: random.Random) -> bool:
        driver = self.drivers[rng.randrange(len(self.drivers))]
        tried: list[str] = []
        while True:
            begun = BegunCommand("ingest", table, table.ids())
            self.begin(driver, begun, table.ingest(self.bootstrap, rng), locks=True)
            end = self.end(driver, 900)
            assert end is not None
            if end.is_done:
                break
            if end.was_ended:  # a signal for the command before arrived late
                continue
            if len(tried) >= _MOST_REMEDIES:
                raise AttackFound(f"the remedies do not help: {tried}: {end.error}")
            remedy = self._remedy(table, end, tried, rng)
            tried.append(remedy)
            if remedy == "none":
                return False
        self._check_settled(table, end)
        return True

    def _remedy(self, table: AttackedTable, end: CommandEnd, tried: list[str], rng: random.Random) -> str:
        """Follows the remedy of a line. Returns its name; ``none`` if it is no more possible."""
        known = refusal_of(end.error)
        if known is None:
            raise AttackFound(f"a line without a known remedy: {end.error}")
        if not known.causes & (table.causes | {"run"}):
            raise AttackFound(f"refused without a cause ({table.causes}): {end.error}")
        can_undo = table.undo is not None and table.undo_mark == table.entries
        remedy = known.remedy
        if remedy == "adopt" and can_undo and "estore" in end.error and rng.random() < 0.3:
            remedy = "undo"
        if remedy == "undo" and not can_undo:
            self.say(f"only a restore helps: {table.causes}")
            return "none"
        if tried.count(remedy) >= 2:
            raise AttackFound(f"the remedy {remedy!r} does not help: {end.error}")
        self.say(f"remedy: {remedy}")
        getattr(self, f"_follow_{remedy}")(table, end)
        return remedy

    def _follow_adopt(self, table: AttackedTable, end: CommandEnd) -> None:
        driver = self.drivers[0]
        for more in ([], ["--execute"]):
            table.group.forget()
            self.begin(
                driver, BegunCommand("adopt", table, frozenset()), table.adopt(self.bootstrap) + more, locks=True
            )
            done = self.end(driver, 900)
            assert done is not None
            if "there is nothing to adopt" in done.error and "with a new --checkpoint" in done.error:
                self._follow_new_checkpoint(table, end)
                return
            if not done.is_done:
                raise AttackFound(f"adopt, the remedy of {end.error!r}, ends with {done.error!r}")

    def _follow_new_checkpoint(self, table: AttackedTable, end: CommandEnd) -> None:
        """An empty table begins again at the group's offsets, so the group is deleted first."""
        table.checkpoint = self.place / f"{table.name}-checkpoint-{time.monotonic_ns()}"
        table.losses.forget()
        if table.group.offsets():
            self.admin.delete_groups([table.group.group])

    def _follow_undo(self, table: AttackedTable, end: CommandEnd) -> None:
        assert table.undo is not None
        table.undo()
        table.undo = None

    def _follow_loss(self, table: AttackedTable, end: CommandEnd) -> None:
        table.more = ["--option", "failOnDataLoss=false"]

    def _follow_again(self, table: AttackedTable, end: CommandEnd) -> None: ...

    def _follow_wait(self, table: AttackedTable, end: CommandEnd) -> None:
        time.sleep(1)

    def _follow_remove(self, table: AttackedTable, end: CommandEnd) -> None:
        for path in (table.state / "runs").glob("*.json"):
            if str(path) in end.error:
                path.unlink()

    def _check_settled(self, table: AttackedTable, end: CommandEnd) -> None:
        found = self.look(table)
        check_complete(found, table.bounds, self.book, [topic.name for topic in table.topics])
        table.losses.check(found, self.book)
        # A run that adds nothing does not look for entries that the notes lack: the next one that adds may find them.
        table.causes &= set() if end.result.get("batches") else {"notes"}
        table.more = []
        if table.group.is_shared:
            return
        if not end.result.get("committed"):
            raise AttackFound(f"the table is complete and the group is not committed: {end.out}")
        ends = {tp: at for topic in table.topics for tp, at in self.book.ends(topic).items()}
        offsets = table.group.offsets()
        wrong = {str(tp): (offsets.get(tp), at) for tp, at in ends.items() if offsets.get(tp, 0) != at}
        if wrong:
            raise AttackFound(f"the table is complete, and the group's offsets are not the ends: {wrong}")
        table.group.is_ours = True

    def _settle_target(self, target: AttackedTarget, rng: random.Random) -> bool:
        driver = self.drivers[rng.randrange(len(self.drivers))]
        begun = BegunCommand("transform", target, target.ids())
        for _ in range(_MOST_REMEDIES):
            self.begin(driver, begun, target.transform(self.bootstrap, rng), locks=True)
            end = self.end(driver, 900)
            assert end is not None
            if end.is_done:
                break
            if target.causes:
                self.say(f"the target is given up: {target.causes}")
                self.target = None
                return True
        else:
            raise AttackFound(f"the transform does not end: {end.error}")
        found = target.counts(self.bootstrap, self.book)
        check_counts(found, target.bounds, self.book)
        check_complete(found, target.bounds, self.book, [topic.name for topic in target.topics])
        return True

    def run_cold(self, table: AttackedTable, rng: random.Random) -> None:
        """Runs a command as a user does."""
        begun = BegunCommand("ingest", table, table.ids())
        self.say("a command of its own process")
        self.judge("cold", begun, cold(table.ingest(self.bootstrap, rng), self.place))

    def clear(self) -> None:
        """Removes all files of the episode."""
        shutil.rmtree(self.place, ignore_errors=True)
