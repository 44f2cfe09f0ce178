"""The list behind the groups of ``odradek top``: where the cursor stays, and which rows are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from odradek.monitor.terminal.row_list import RowList, RowView


def rows_of(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"group": name} for name in names]


def answer(rows: RowList, names: Sequence[str]) -> RowView:
    """The view that a source with these groups gives."""
    offset, count = rows.wanted()
    of = rows.followed
    position = names.index(of) if of in names else None
    return RowView(len(names), offset, rows_of(names[offset : offset + count]), of, position)


def list_of(names: Sequence[str], height: int = 10) -> RowList:
    rows = RowList(lambda row: row["group"])
    rows.height = height
    assert rows.replace(answer(rows, names))
    return rows


NAMES = [f"g{number:05d}" for number in range(10_000)]


def test_the_row_under_the_cursor_stays_on_its_line_of_the_screen() -> None:
    rows = list_of(NAMES)
    rows.move_to(50)
    line = rows.cursor - rows.top
    assert rows.replace(answer(rows, ["new1", "new2", *NAMES]))
    assert rows.current == {"group": "g00050"}
    assert (rows.cursor, rows.cursor - rows.top) == (52, line)


def test_on_the_first_row_the_cursor_stays_there() -> None:
    rows = list_of(NAMES)
    assert rows.replace(answer(rows, ["worst", *NAMES]))
    assert rows.current == {"group": "worst"}
    rows.move_to(5)
    rows.move_to(0)
    assert rows.replace(answer(rows, ["worse", *NAMES]))
    assert rows.current == {"group": "worse"}


def test_a_view_that_was_asked_for_before_a_move_does_not_move_the_cursor_elsewhere() -> None:
    rows = list_of(NAMES)
    rows.move_to(3)
    before = answer(rows, NAMES)
    rows.move_to(7)
    assert rows.replace(before)  # it has the row among its rows
    assert rows.current == {"group": "g00007"}
    far = RowView(10_000, 5_000, rows_of(NAMES[5_000:5_400]), "g00003", 3)
    assert not rows.replace(far)
    assert rows.current == {"group": "g00007"}


def test_rows_out_of_reach_are_asked_for() -> None:
    rows = list_of(NAMES)
    rows.move_to(9_999)
    assert rows.lacks_rows
    assert rows.current is None
    assert rows.replace(answer(rows, NAMES))
    assert not rows.lacks_rows
    assert rows.current == {"group": "g09999"}
    assert rows.followed == "g09999"


def test_a_group_that_is_gone_leaves_the_cursor_on_its_place() -> None:
    rows = list_of(NAMES)
    rows.move_to(5)
    assert rows.replace(answer(rows, [name for name in NAMES if name != "g00005"]))
    assert rows.current == {"group": "g00006"}
    assert rows.replace(answer(rows, NAMES[:3]))
    assert rows.current == {"group": "g00002"}
    assert rows.replace(answer(rows, []))
    assert (rows.cursor, rows.top, rows.current) == (0, 0, None)


def test_random_moves_and_orders() -> None:
    """The cursor is visible after each move, the list never ends above the screen, and the row stays the same."""
    chance = Random(7)
    names = NAMES[:500]
    rows = list_of(names, height=20)
    for _ in range(2_000):
        if chance.random() < 0.6:
            rows.move_to(chance.choice((rows.cursor - 1, rows.cursor + 1, rows.cursor + 19, 0, 499)))
            assert rows.top <= rows.cursor < rows.top + rows.height
        else:
            chance.shuffle(names)
            followed = rows.followed
            assert rows.replace(answer(rows, names))
            if followed is not None:
                assert rows.replace(answer(rows, names))  # now with the rows around its new place
                assert rows.current == {"group": followed}
        assert 0 <= rows.top <= len(names) - rows.height
        assert len(answer(rows, names).rows) <= 20 + 400
