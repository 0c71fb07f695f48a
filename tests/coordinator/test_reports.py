"""How a failure is told."""

from __future__ import annotations

import pytest

from gridflow._wire.failures import TaskFailure
from gridflow.errors import did_you_mean

TRACEBACK = """\
Traceback (most recent call last):
  File "job.py", line 3, in train
    raise ValueError("no")
ValueError: no
"""


def told(*log_tail, traceback=TRACEBACK):
    """Return the text of a failure with these last log lines."""
    return TaskFailure(
        "worker:1", "a", "exception", "it raised", traceback=traceback, log_tail=log_tail
    ).describe()


@pytest.mark.parametrize("after", [(), ("ended",)])
def test_a_traceback_that_was_also_printed_is_told_once(after):
    text = told("before", *TRACEBACK.splitlines(), *after)
    assert text.count("ValueError: no") == 1
    assert f"Its last {1 + len(after)} log lines:\n    before" in text


def test_a_traceback_of_which_the_log_has_but_the_end_is_told_once():
    text = told(*TRACEBACK.splitlines()[2:])
    assert text.count("ValueError: no") == 1
    assert "log lines" not in text


def test_other_lines_stay():
    lines = ("Traceback (most recent call last):", "ValueError: another")
    assert "    ValueError: another" in told(*lines)
    assert "Its last 4 log lines" in told(*TRACEBACK.splitlines(), traceback="")


def test_a_name_in_another_case_is_meant():
    assert did_you_mean("id", ["x", "ID"]) == " Did you mean 'ID'?"
    assert did_you_mean("ID", ["IDX", "id"]) == " Did you mean 'id'?"
    assert did_you_mean("id", ["x"]) == ""
