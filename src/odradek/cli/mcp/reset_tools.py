"""Tools that plan a reset of a group, and with ``--allow reset`` apply it."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from odradek.cli.options import parse_partitions
from odradek.cli.suggestions import group_names
from odradek.cli.terminal import CommandError
from odradek.cli.undo_file import pasted
from odradek.client.admin import Admin
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.lag.reset import RESETTABLE, GroupResetPlan, plan, scenario_for
from odradek.lag.reset_plans import PlanFolder, SavedPlan
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.agents.tools import Json, Parameter, Tool, ToolRefused
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    from odradek.cli.mcp.options import McpLine
    from odradek.client.config import ClientConfig

_TARGETS = tuple(str(target) for target in ResetTarget if target is not ResetTarget.FROM_FILE)
_PLAN = Parameter("plan_id", "string", "the id of a plan, as plan_reset returned it")


def reset_tools(line: McpLine, config: ClientConfig, folder: PlanFolder, *, may_apply: bool) -> tuple[Tool, ...]:
    """Returns the tools of resets. ``may_apply``: an agent may apply a plan."""
    resets = _Resets(line, config, folder)
    planned = (
        Tool(
            "plan_reset", "Plan a reset of offsets",
            "Plans new committed offsets for a group and shows the difference: which records would be read again or "
            "skipped. It changes nothing. A person applies the plan with the command in the reply.",
            resets.plan_reset,
            (
                Parameter("group", "string", "the name of the group"),
                Parameter("target", "string", "where to, with the names of Kafka's tool", choices=_TARGETS),
                Parameter(
                    "value", "string",
                    "for to-offset the offset, for shift-by a number of records (negative: back), for to-datetime a "
                    "time in UTC such as 2026-01-31T12:00:00, for by-duration a span such as 2h", "",
                ),
                Parameter(
                    "topics", "array", "topics, or partitions as TOPIC:0,1; empty: all partitions with an offset", ()
                ),
            ),
            writes=True,
        ),
        Tool(
            "list_reset_plans", "Planned resets",
            "The plans of this folder, the newest first, and whether they have been applied.",
            resets.list_reset_plans,
            (Parameter("limit", "integer", "the highest number of plans", 20, least=1, most=500),),
        ),
    )  # fmt: skip
    if not may_apply:
        return planned
    return (
        *planned,
        Tool(
            "apply_reset_plan", "Apply a planned reset",
            "Commits the offsets of a plan. It is refused if the group has members, or if an offset has changed since "
            "the plan. The previous offsets are written to a file first.",
            resets.apply_reset_plan, (_PLAN,), changes=True,
        ),
    )  # fmt: skip


class _Resets:
    def __init__(self, line: McpLine, config: ClientConfig, folder: PlanFolder) -> None:
        self._line, self._config, self._folder = line, config, folder

    def plan_reset(self, group: str, target: str, value: str, topics: tuple[str, ...]) -> Json:
        now_ms = time.time_ns() // 1_000_000
        try:
            scenario = scenario_for(ResetTarget(target), value, now_ms)
            whole, single = parse_partitions(list(topics), "topics: ")
        except ConfigError as error:
            raise ToolRefused(f"value: {error}") from None
        except CommandError as error:
            raise ToolRefused(str(error)) from None
        with Admin(self._config) as admin:
            made = plan(
                admin, group, scenario, topics=whole, partitions=[TopicPartition(*tp) for tp in single],
                all_topics=not topics,
            )  # fmt: skip
            if made.state == "Dead":
                names = group_names(admin)
                raise ToolRefused(
                    f"group: there is no group {group!r}{nearest(group, names)}: list_groups has the names"
                )
            if not made.rows:
                raise ToolRefused(f"group {group} has no committed offset to move: name the topics")
            cluster_id = admin.describe_cluster().cluster_id
        wanted = f"{target} {value}".strip()
        saved = self._folder.save(secrets.token_hex(4), made, wanted, cluster_id, now_ms)
        return self._shown(saved)

    def list_reset_plans(self, limit: int) -> Json:
        plans = list(self._folder.saved())
        return {"total": len(plans), "plans": [_summary(saved) for saved in plans[:limit]]}

    def apply_reset_plan(self, plan_id: str) -> Json:
        saved = self._folder.load(plan_id)
        with Admin(self._config) as admin:
            undo = self._folder.apply(admin, saved)
        return _summary(saved) | {
            "is_applied": True,
            "undo": pasted(
                "odradek", "groups", "reset", "--group", saved.plan.group, "--from-file", undo,
                b=self._line.bootstrap_servers, command_config=self._line.command_config,
            ),
        }  # fmt: skip

    def _shown(self, saved: SavedPlan) -> Json:
        rows = [
            {name: value for name, value in row._asdict().items() if name != "log_start"} for row in saved.plan.rows
        ]
        made = _summary(saved) | {"partitions": rows}
        if saved.plan.state not in RESETTABLE:
            made["obstacle"] = f"the group is {saved.plan.state}: its members have to stop before the plan is applied"
        if saved.plan.is_of_query:
            made["warning"] = "a Spark query has made the commits: without onGroupReset=follow it overwrites a reset"
        return made | {
            "apply": pasted(
                "odradek", "groups", "apply", saved.plan_id, plans=self._line.plans, b=self._line.bootstrap_servers,
                command_config=self._line.command_config,
            )
        }  # fmt: skip


def _summary(saved: SavedPlan) -> Json:
    made: GroupResetPlan = saved.plan
    return {
        "plan_id": saved.plan_id,
        "group": made.group,
        "state": made.state,
        "target": saved.target,
        "records_read_again": -sum(row.distance for row in made.rows if row.distance < 0),
        "records_skipped": sum(row.distance for row in made.rows if row.distance > 0),
        "is_applied": saved.is_applied,
    }
