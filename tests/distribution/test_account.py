"""The account of the batches that the workers of parameter servers read."""

from __future__ import annotations

import random

import pytest

from gridflow._feed.ledger import DatasetCounts, Ledger
from gridflow._keras.servers.account import NOTHING, Account
from gridflow.errors import DataError


def ledger_of(account, own_rows, updates=0, lent=()):
    ledger = Ledger()
    rows = [own + borrowed for own, borrowed in zip(own_rows, lent or [0] * 9, strict=False)]
    for worker, (own, total) in enumerate(zip(own_rows, rows, strict=True)):
        counts = DatasetCounts(rows_in=own, rows=total, borrowed=total - own)
        ledger.set_counts("train", worker, counts)
    for record in account.records("train", 0, rows, updates):
        ledger.add(record)
    return ledger


def test_each_batch_is_missing_until_it_is_done():
    account = Account([5, 0, 2], 2)
    assert account.steps == 4
    assert account.missing == [[0, 1, 2], [], [0]]
    assert account.take(0, 1, life=7)
    assert account.begin == [0, 0, 0]
    assert account.take(0, 0, life=7)
    assert account.begin == [2, 0, 0]
    assert account.take(0, 2, life=7)
    assert not account.is_done
    assert account.take(2, 0, life=8)
    assert account.is_done
    assert account.missing == [[], [], []]
    ledger = ledger_of(account, [5, 0, 2], lent=[0, 1, 0])
    assert ledger.check() == []
    assert [(r.rows_fed, r.rows_left_out) for r in ledger.records] == [(5, 0), (0, 1), (2, 0)]


def test_a_pass_is_over_when_nobody_has_anything_left_whatever_is_missing():
    account = Account([4, 4], 2)
    assert account.take(0, 1, life=1)  # 0 is lost
    assert not account.take(0, NOTHING, life=1)
    assert not account.is_pass_over
    for number in (0, 1):
        account.take(1, number, life=1)
    assert not account.is_pass_over
    account.take(1, NOTHING, life=1)
    assert account.is_pass_over
    assert not account.is_done
    account.begin_pass()
    assert not account.is_pass_over  # the first worker is asked again, the second needn't be
    assert account.take(0, 0, life=2)
    assert account.is_done


def test_rows_that_are_gone_are_an_error_and_not_waited_for():
    account = Account([4, 4], 2)
    account.take(0, 0, life=1)
    account.begin_pass()  # there was something in the pass before
    account.lose()
    account.begin_pass()  # and here it isn't known what became of a step
    account.take(0, 0, life=1)  # nothing new
    with pytest.raises(DataError, match="3 of 4 batches are missing"):
        account.begin_pass()


def test_as_long_as_nothing_is_lost_it_is_known_what_each_has_left():
    account = Account([8, 6], 2)
    assert account.sure == 3
    account.take(1, 0, life=1)
    account.take(1, 2, life=1)
    assert account.sure == 1
    account.lose()
    assert account.sure == 0
    account.begin_pass()
    assert account.sure == 1
    assert Account([8, 0], 2).sure == 0


def test_a_worker_that_is_read_from_its_beginning_is_asked_again():
    account = Account([4], 2)
    account.take(0, NOTHING, life=1)
    assert account.is_pass_over
    account.take(0, 0, life=2)
    assert not account.is_pass_over


def test_a_batch_that_comes_again_counts_as_repeated():
    account = Account([4, 3], 2)
    for worker, number in [(0, 0), (1, 0), (1, 1)]:
        assert account.take(worker, number, life=1)
    assert not account.take(1, 1, life=1)
    assert account.take(0, 1, life=1)
    ledger = ledger_of(account, [4, 3])
    assert ledger.check() == []
    assert [(r.rows_fed, r.rows_repeated) for r in ledger.records] == [(4, 0), (4, 1)]


@pytest.mark.parametrize(("more", "repeated"), [(0, 0), (1, 1)])
def test_what_a_dead_worker_had_in_its_hands_is_repeated_if_it_had_updated_the_model(
    more, repeated
):
    account = Account([4, 3], 2)
    for number in (0, 1):
        account.take(0, number, life=1)
    account.take(1, 0, life=2)
    account.lose(1)
    assert account.take(1, 1, life=3)  # one row, and not two as in the others
    found = account.records("train", 0, [4, 3], updates=4 + more)
    assert [r.rows_repeated for r in found] == [0, repeated]


def test_of_a_step_that_was_lost_with_its_batch_a_whole_batch_is_repeated():
    account = Account([3], 2)
    account.lose(0)  # and its worker has said nothing since
    assert [r.rows_repeated for r in account.records("train", 0, [3], updates=1)] == [2]
    assert [r.rows_repeated for r in account.records("train", 0, [3], updates=0)] == [0]


def test_updates_of_whom_nothing_is_known_are_somebodys():
    account = Account([3, 9], 2)
    account.take(0, 0, life=1)
    assert [r.rows_repeated for r in account.records("train", 0, [3, 9], updates=3)] == [0, 4]


def test_a_checkpoint_knows_what_is_done():
    account = Account([7, 4], 2)
    for worker, number in [(0, 0), (0, 2), (1, 0)]:
        account.take(worker, number, life=1)
    after = Account([7, 4], 2, account.state)
    assert after.missing == [[1, 3], [1]]
    assert after.state == account.state
    for worker, number in [(0, 1), (0, 3), (1, 1)]:
        assert after.take(worker, number, life=2)
    assert after.is_done
    ledger = ledger_of(after, [7, 4])
    assert ledger.check() == []
    assert [(r.rows_before, r.rows_fed) for r in ledger.records] == [(4, 3), (2, 2)]


@pytest.mark.parametrize(("own_rows", "size"), [([6, 5], 2), ([7, 4], 3), ([7, 4, 0], 2)])
def test_a_checkpoint_of_other_batches_says_nothing(own_rows, size):
    before = Account([7, 4], 2)
    before.take(0, 0, life=1)
    assert Account(own_rows, size, before.state).missing == Account(own_rows, size).missing


def test_random_deaths_leave_no_batch_out_and_count_each_that_came_twice():
    draw = random.Random(5)
    for _ in range(200):
        own_rows = [draw.randrange(30) for _ in range(3)]
        size = draw.randrange(1, 6)
        account = Account(own_rows, size)
        trained, lives, updates = [0] * 3, [0] * 3, 0
        while not account.is_done:
            account.begin_pass()
            wanted = account.missing
            left = [list(each) for each in wanted]
            while not account.is_pass_over and not account.is_done:
                worker = draw.randrange(3)
                if not left[worker]:
                    account.take(worker, NOTHING, lives[worker])
                    continue
                number = left[worker].pop(0)
                fate = draw.choices(["done", "dead before", "dead after", "lost"], [85, 5, 5, 5])[0]
                if fate != "dead before":
                    trained[worker] += min(size, own_rows[worker] - number * size)
                    updates += 1
                if fate == "done":
                    account.take(worker, number, lives[worker])
                else:
                    account.lose(worker)
                if fate.startswith("dead"):
                    lives[worker] += 1
                    left[worker] = [b for b in wanted[worker] if b >= account.begin[worker]]
        found = list(account.records("train", 0, own_rows, updates))
        assert all(record.complete for record in found)
        for record, own, times in zip(found, own_rows, trained, strict=True):
            assert times >= own
            assert record.rows_fed - record.rows_repeated == own
        assert sum(record.rows_repeated for record in found) >= sum(trained) - sum(own_rows)
