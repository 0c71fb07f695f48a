"""The account of rows balances, or says where it doesn't."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._feed.ledger import DatasetCounts, EpochRecord, Ledger
from gridflow._feed.plan.epochs import BatchPlan, steps_for
from gridflow.errors import InvalidArgument


def record(**fields):
    base = {
        "dataset": "train",
        "rank": 0,
        "epoch": 0,
        "rows_fed": 10,
        "rows_repeated": 0,
        "rows_left_out": 0,
        "complete": True,
    }
    return EpochRecord(**base | fields)


def test_a_lost_row_is_found_and_named():
    ledger = Ledger()
    ledger.set_counts("train", 0, DatasetCounts(11, 11, 0))
    ledger.set_counts("train", 1, DatasetCounts(11, 9, 1))
    ledger.add(record(epoch=4))
    ledger.add(record(rank=2))
    store, epoch, unknown = ledger.check()
    assert "rank 1: 11 rows came in, but 9 were stored and 1 dropped" in store
    assert "rank 0, epoch 4: 11 rows came in, but 10 were fed" in epoch
    assert "never counted" in unknown


def test_an_epoch_that_was_given_up_is_listed_but_not_checked():
    ledger = Ledger()
    ledger.set_counts("train", 0, DatasetCounts(11, 11, 0))
    ledger.add(record(complete=False))
    assert ledger.check() == []
    assert "given up" in str(ledger)
    assert ledger.to_pandas()["rows_in"].tolist() == [11]


def test_negative_counts_are_refused():
    with pytest.raises(InvalidArgument, match="negative"):
        DatasetCounts(rows_in=-1)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sampled_from(["spread", "repeat", "drop"]),
    st.integers(0, 3),
)
def test_the_ledger_of_any_plan_balances_and_survives_json(rows, batch_size, tail, dropped):
    if tail == "drop" and min(rows) < batch_size:
        batch_size = min(rows)
    steps = steps_for(rows, batch_size, tail)
    ledger = Ledger()
    for rank, n in enumerate(rows):
        ledger.set_counts("train", rank, DatasetCounts(n + dropped, n, dropped))
        plan = BatchPlan([n], batch_size, steps, tail)
        ledger.add(
            record(
                rank=rank,
                rows_fed=plan.rows_fed,
                rows_repeated=plan.rows_repeated,
                rows_left_out=plan.rows_left_out,
            ).to_dict()
        )
    assert ledger.check() == []
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again.counts == ledger.counts
    assert again.records == ledger.records
    assert str(again) == str(ledger)


def test_what_was_fed_before_rows_were_divided_anew_is_checked_against_the_counts_of_then():
    ledger = Ledger()
    ledger.divide_anew()
    for rank, rows in enumerate((6, 6)):
        ledger.set_counts("train", rank, DatasetCounts(rows, rows))
        ledger.add(EpochRecord("train", rank, 0, rows, 0, 0, complete=True))
    ledger.divide_anew()
    for rank, rows in enumerate((4, 4, 4)):
        ledger.set_counts("train", rank, DatasetCounts(rows, rows))
        ledger.add(EpochRecord("train", rank, 1, rows, 0, 0, complete=True))
    assert ledger.check() == []
    assert [(each.epoch, each.rows_fed) for each in ledger.records] == [(0, 6)] * 2 + [(1, 4)] * 3
    assert ledger.to_pandas()["rows_in"].tolist() == [6, 6, 4, 4, 4]
    assert "divided among another number of workers" in str(ledger)
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert (again.records, again.counts, str(again)) == (
        ledger.records,
        ledger.counts,
        str(ledger),
    )
    ledger.divide_anew()
    ledger.set_counts("train", 0, DatasetCounts(12, 12))
    ledger.add(EpochRecord("train", 0, 2, 11, 0, 0, complete=True))
    assert len(ledger.check()) == 1


def test_a_notebook_shows_the_account_and_not_where_it_lies_in_memory():
    ledger = Ledger()
    assert repr(ledger) == "Ledger()"
    ledger.set_counts("train", 0, DatasetCounts(5, 3, 2, nulls={"<b>": 2, "x": 1}))
    assert repr(ledger) == str(ledger)
    assert "dropped from train for nulls: 2 in &lt;b&gt;, 1 in x</pre>" in ledger._repr_html_()
    for epoch in range(1000):
        ledger.add(EpochRecord("train", 0, epoch, 3, 0, 0, complete=True))
    lines = repr(ledger).splitlines()
    assert len(lines) == 61
    assert "945 lines: print(ledger)" in lines[30]
    assert ledger.from_dict(ledger.to_dict()).nulls == {"train": {"<b>": 2, "x": 1}}
