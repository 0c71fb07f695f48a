"""Whose rows are where: every order in which ranks may tell leads to the same counts."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._features.rows.driver import Forget, LaunchRows, RowsPhase, SendAll, SendTo, Unfit
from gridflow._wire.commands import Borrow, Counts, Lend
from gridflow._wire.reports import Spooled


def spooled(left_out=None, specs=None, **rows):
    counts = {
        name: {"rows": n, "rows_in": n} if isinstance(n, int) else n for name, n in rows.items()
    }
    return Spooled(counts, specs or {}, left_out or {})


def told(rows, borrowed=None, **more):
    borrowed = borrowed or {name: [0] * len(ranks) for name, ranks in rows.items()}
    more = {"specs": {}, "left_out": {}, "nulls": {}, **more}
    return SendAll(Counts(rows, borrowed, **more))


def test_all_are_told_once_the_last_rank_has_its_rows():
    rows = LaunchRows([0, 1])
    assert rows.spooled(1, spooled(train=7)) == []
    assert rows.phase is RowsPhase.WAITING
    assert rows.spooled(0, spooled(train=5)) == [told({"train": [5, 7]})]
    assert rows.phase is RowsPhase.SETTLED


def test_ranks_without_rows_are_lent_some_by_the_one_that_has_most():
    rows = LaunchRows([1, 2, 3])  # task 0 is a chief that isn't fed
    rows.spooled(1, spooled(train=0, val=3))
    rows.spooled(2, spooled(train=4, val=3))
    assert rows.spooled(3, spooled(train=9, val=3)) == [SendTo(3, Lend("train"))]
    assert rows.phase is RowsPhase.LENDING
    assert rows.arrived("train") == [SendTo(1, Borrow("train"))]
    borrowed = {"rows": 2, "rows_in": 0, "borrowed": 2}
    assert rows.spooled(1, spooled(train=borrowed)) == [
        told({"train": [2, 4, 9], "val": [3, 3, 3]}, {"train": [2, 0, 0], "val": [0, 0, 0]}),
        Forget("train"),
    ]
    assert rows.phase is RowsPhase.SETTLED


def test_two_that_lack_rows_are_one_loan():
    rows = LaunchRows([0, 1, 2])
    rows.spooled(0, spooled(train=0))
    rows.spooled(1, spooled(train=0))
    assert rows.spooled(2, spooled(train=6)) == [SendTo(2, Lend("train"))]
    assert rows.arrived("train") == [SendTo(0, Borrow("train")), SendTo(1, Borrow("train"))]
    borrowed = {"rows": 1, "borrowed": 1}
    assert rows.spooled(0, spooled(train=borrowed)) == []
    assert rows.spooled(1, spooled(train=borrowed))[0] == told(
        {"train": [1, 1, 6]}, {"train": [1, 1, 0]}
    )


def test_a_dataset_without_rows_is_said_once():
    rows = LaunchRows([0, 1])
    rows.spooled(0, spooled(train=0, val=1))
    (found,) = rows.spooled(1, spooled(train=0, val=1))
    assert isinstance(found, Unfit)
    assert "dataset 'train' has no rows" in found.reason
    assert rows.phase is RowsPhase.UNFIT
    assert rows.spooled(1, spooled(train=0, val=1)) == []


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (["float32", [3]], ["float32", [5]], r"shape \(3,\) and of shape \(5,\).*Padded"),
        (["float32", [2, 3]], ["float32", [3]], r"float32 of shape \(2, 3\)"),
        (["float32", []], ["float32", [1]], "float32 in some rows and float32 of shape"),
        (["float32", []], ["int64", []], "float32 in some rows and int64 in others"),
        (["float32", [-2, 9]], ["float32", [-2, 8]], r"\(-2, 9\)"),
    ],
)
def test_ranks_whose_rows_have_other_types_or_shapes_are_no_dataset(here, there, said):
    rows = LaunchRows([0, 1])
    rows.spooled(0, spooled(train=1, specs={"train": {"v": here}}))
    (found,) = rows.spooled(1, spooled(train=1, specs={"train": {"v": there}}))
    assert re.search(f"column 'v' of dataset 'train'.*{said}", found.reason)


def test_arrays_whose_length_no_row_of_a_rank_has_told_have_that_of_the_others():
    rows = LaunchRows([0, 1, 2])
    rows.spooled(0, spooled(train=1, specs={"train": {"v": ["float32", [None]]}}))
    rows.spooled(1, spooled(train=1, specs={"train": {"v": ["float32", [3]]}}))
    (told,) = rows.spooled(2, spooled(train=1, specs={"train": {"v": ["float32", [None]]}}))
    assert told.command.specs == {"train": {"v": ["float32", [3]]}}


def test_what_one_rank_leaves_out_or_knows_holds_for_all():
    rows = LaunchRows([0, 1], {"train": {"m": "a map"}})
    rows.spooled(0, spooled(train=1, left_out={"train": {"x": "nulls"}}, specs={"train": {}}))
    (all_of_it,) = rows.spooled(
        1, spooled(train={"rows": 1, "nulls": {"y": 2}}, specs={"train": {"z": ["float32", []]}})
    )
    assert all_of_it.command.left_out == {"train": {"m": "a map", "x": "nulls"}}
    assert all_of_it.command.specs == {"train": {"z": ["float32", []]}}
    assert all_of_it.command.nulls == {"train": {"y": 2}}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_in_whatever_order_the_end_is_the_same(counts):
    ends = set()
    for order in itertools.permutations(range(len(counts))):
        rows = LaunchRows(range(len(counts)))
        actions = [each for rank in order for each in rows.spooled(rank, spooled(a=counts[rank]))]
        while rows.phase is RowsPhase.LENDING:
            (lend,) = actions
            assert counts[lend.rank] == max(counts)
            actions = []
            for borrow in rows.arrived("a"):
                report = spooled(a={"rows": 1, "borrowed": 1})
                actions += rows.spooled(borrow.rank, report)
        if not any(counts):
            assert [type(action) for action in actions] == [Unfit]
            continue
        ends.add(tuple(actions[0].command.rows["a"]))
    assert ends == ({tuple(n or 1 for n in counts)} if any(counts) else set())


def again():
    """Two ranks have their rows, of which the second has its own once more."""
    settled = LaunchRows([0, 1])
    settled.spooled(0, identified("a", train=4))
    (told_all,) = settled.spooled(1, identified("b", train=4))
    assert settled.why_not_again(1) == ""
    settled.come_again(1)
    return settled, told_all.command


def identified(digest, **rows):
    return replace(spooled(**rows), digests=dict.fromkeys(rows, digest))


def test_a_new_agent_with_the_same_rows_hears_what_the_others_know():
    settled, counts = again()
    assert settled.spooled(1, identified("b", train=4)) == [SendTo(1, counts)]


@pytest.mark.parametrize(
    ("digest", "rows"),
    [("c", 4), ("d", 5), ("b", {"rows": 4, "rows_in": 5, "dropped": 1})],
    ids=["an order", "a number", "rows that were dropped"],
)
def test_a_new_agent_with_other_rows_is_refused_and_all_hear_of_them(digest, rows):
    settled, _ = again()
    refused, counts = settled.spooled(1, identified(digest, train=rows))
    assert (refused.rank, "'train', computed once more, are others" in refused.reason) == (1, True)
    assert counts == told({"train": [4, rows["rows"] if isinstance(rows, dict) else rows]})


def test_who_has_borrowed_its_rows_or_has_yet_to_get_them_cant_have_them_again():
    rows = LaunchRows([0, 1])
    rows.spooled(0, spooled(train=4))
    assert "Not all ranks had their rows yet" in rows.why_not_again(0)
    rows.spooled(1, spooled(train={"rows": 2, "borrowed": 2}))
    assert rows.why_not_again(0) == ""
    assert "borrowed" in rows.why_not_again(1)


def test_every_phase_has_a_name_of_its_own():
    assert all(phase.name == name for name, phase in RowsPhase.__members__.items())
