"""The plan of an epoch: equal steps, each row once, the same for the same seed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._feed.plan.epochs import BatchPlan, rank_seed, steps_for
from gridflow.errors import DataError, InvalidArgument


def rows_of(plan, start_batch=0):
    """The global row numbers of each batch, as a reader would gather them."""
    first = np.concatenate([[0], np.cumsum(plan.segment_rows)])
    batches = []
    for window in plan.windows(start_batch):
        assert window.first_batch == start_batch + len(batches)
        out = np.full(window.rows, -1)
        for piece in window.pieces:
            rows = first[piece.chunk] + np.arange(piece.start, piece.stop)
            assert piece.stop <= plan.segment_rows[piece.chunk]
            to = np.arange(piece.at, piece.at + len(rows))
            if window.positions is not None:
                to = window.positions[to]
                rows, to = rows[to >= 0], to[to >= 0]
            out[to] = rows
        assert (out >= 0).all()
        batches += np.split(out, np.cumsum(window.batch_rows)[:-1])
    return batches


plans = st.builds(
    dict,
    segment_rows=st.lists(st.integers(0, 25), min_size=1, max_size=5).filter(sum),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 5),
    window_rows=st.integers(1, 60),
)


@given(plans, st.integers(0, 9))
def test_repeat_fills_every_batch_and_uses_each_row_equally_often(options, more):
    n, size = sum(options["segment_rows"]), options["batch_size"]
    steps = -(-n // size) + more
    plan = BatchPlan(steps=steps, tail="repeat", **options)
    batches = rows_of(plan)
    assert [len(batch) for batch in batches] == [size] * steps
    times = Counter(np.concatenate(batches).tolist())
    assert set(times) == set(range(n))
    assert max(times.values()) - min(times.values()) <= 1
    assert plan.rows_fed - plan.rows_repeated + plan.rows_left_out == n


@given(plans, st.integers(0, 40), st.integers(0, 40), st.integers(1, 3))
def test_spread_repeats_no_row_but_where_there_are_fewer_than_batches(options, more, wanted, times):
    n, size = sum(options["segment_rows"]), options.pop("batch_size")
    size = -(-size // times) * times
    steps = -(-max(n, wanted) // size) + more
    plan = BatchPlan(
        steps=steps, tail="spread", batch_size=size, rows_wanted=wanted, multiple=times, **options
    )
    batches = rows_of(plan)
    sizes = [len(batch) for batch in batches]
    assert len(sizes) == steps
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < sizes[-1] <= sizes[0] <= sizes[-1] + times
    assert all(each % times == 0 for each in sizes)
    assert sizes[0] <= size
    assert sum(sizes) == times * max(-(-max(n, wanted) // times), steps)
    assert plan.is_even == (set(sizes) == {size})
    found = Counter(np.concatenate(batches).tolist())
    assert set(found) == set(range(n))
    assert plan.rows_repeated == sum(sizes) - n
    assert max(found.values()) - min(found.values()) <= 1


@given(plans)
def test_drop_and_partial_use_each_row_at_most_once(options):
    n, size = sum(options["segment_rows"]), options["batch_size"]
    dropping = BatchPlan(steps=n // size, tail="drop", **options)
    batches = rows_of(dropping)
    assert [len(batch) for batch in batches] == [size] * (n // size)
    fed = np.concatenate([*batches, np.array([], int)]).tolist()
    assert len(set(fed)) == len(fed) == dropping.rows_fed
    assert dropping.rows_left_out == n % size
    partial = BatchPlan(steps=-(-n // size), tail="partial", **options)
    assert sorted(np.concatenate(rows_of(partial)).tolist()) == list(range(n))
    assert partial.rows_repeated == partial.rows_left_out == 0


@given(plans, st.data())
def test_starting_at_batch_k_gives_the_end_of_the_full_epoch(options, data):
    n, size = sum(options["segment_rows"]), options["batch_size"]
    plan = BatchPlan(steps=-(-n // size) + 2, **options)
    k = data.draw(st.integers(0, plan.steps))
    for skipped, full in zip(rows_of(plan, k), rows_of(plan)[k:], strict=True):
        np.testing.assert_array_equal(skipped, full)


def test_the_same_seed_and_epoch_give_the_same_order_and_others_another():
    def order(**changed):
        options = {"seed": rank_seed(1, 0), "epoch": 2, "window_rows": 200, **changed}
        return np.concatenate(rows_of(BatchPlan([500, 500], 10, 100, shuffle=True, **options)))

    np.testing.assert_array_equal(order(), order())
    for other in (order(epoch=3), order(seed=rank_seed(2, 0)), order(seed=rank_seed(1, 1))):
        assert (other != order()).any()
        assert sorted(other) == list(range(1000))


def test_a_shuffled_window_mixes_rows_from_all_over_the_spool():
    plan = BatchPlan([100_000], 100, 1000, shuffle=True, window_rows=4096)
    batch = rows_of(plan)[0]
    assert np.ptp(batch) > 50_000
    assert len(np.unique(np.diff(batch))) > 50


def test_without_shuffle_rows_come_in_order():
    assert np.concatenate(rows_of(BatchPlan([3, 4], 2, 4))).tolist() == [*range(7)]


def test_skipping_leaves_out_windows_without_planning_their_rows():
    plan = BatchPlan([100_000], 100, 1000, shuffle=True, window_rows=1000)
    windows = list(plan.windows(995))
    assert [window.first_batch for window in windows] == [995]


def test_steps_are_equal_for_all_ranks():
    assert steps_for([10, 3, 7], 4, "repeat") == 3
    assert steps_for({1: 3, 0: 10}, 4, "repeat") == 3
    assert steps_for([10, 3, 7], 4) == steps_for([10, 3, 7], 4, "spread") == 3
    assert steps_for([10, 5, 7], 2, "drop") == 2
    assert steps_for([10], 4, "partial") == 3


@pytest.mark.parametrize(
    ("counts", "size", "tail", "error", "message"),
    [
        ([5, 0], 2, "repeat", DataError, "rank 0: 5, rank 1: 0"),
        ([0], 2, "partial", DataError, "rank 0: 0"),
        ([5, 1], 2, "drop", DataError, "rank 0: 5, rank 1: 1.*smaller batch_size"),
        ([5, 1], 2, "partial", InvalidArgument, "trains alone"),
        ([], 2, "repeat", InvalidArgument, "no rank"),
        ([5], 0, "repeat", InvalidArgument, "batch_size"),
        ([5, 0], 2, "spread", DataError, "rank 0: 5, rank 1: 0"),
        ([5], 2, "repeats", InvalidArgument, "Did you mean 'repeat'"),
    ],
)
def test_an_epoch_that_can_t_be_is_refused_with_the_counts(counts, size, tail, error, message):
    with pytest.raises(error, match=message):
        steps_for(counts, size, tail)


def test_a_plan_that_would_need_more_rows_than_there_are_is_refused():
    with pytest.raises(InvalidArgument, match="need 12 rows, but there are 10"):
        BatchPlan([10], 4, 3, tail="drop")
    with pytest.raises(InvalidArgument, match="start_batch must be from 0 to the epoch's 3"):
        BatchPlan([10], 4, 3).windows(4)
