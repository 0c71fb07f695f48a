"""Work that is done beside the training."""

from __future__ import annotations

import threading

import pytest

from gridflow._keras.resume.writer import Writer
from suite.waiting import patience


def test_work_is_done_in_order_and_at_most_one_piece_at_a_time():
    writer, done, may_go_on = Writer(), [], threading.Event()
    writer.submit(lambda: (may_go_on.wait(patience()), done.append("first")))
    assert not done, "submitting doesn't wait for the work"
    threading.Timer(0.1, may_go_on.set).start()
    writer.submit(lambda: done.append("second"))
    assert done[0] == "first", "the second piece has waited for the first"
    writer.wait()
    assert done == ["first", "second"]
    writer.wait()


def test_what_went_wrong_is_raised_once_where_it_is_waited_for():
    writer, done = Writer(), []

    def fails():
        raise OSError(28, "No space left on device")

    writer.submit(fails)
    with pytest.raises(OSError, match="No space left"):
        writer.submit(lambda: done.append("never"))
    writer.wait()
    assert not done
    writer.submit(fails)
    with pytest.raises(OSError, match="No space left"):
        writer.wait()


def test_a_process_that_has_failed_waits_for_the_work_and_not_without_end():
    writer, done, may_go_on = Writer(), [], threading.Event()
    writer.submit(lambda: (may_go_on.wait(patience()), done.append("done")))
    writer.settle(0.05)
    assert not done
    may_go_on.set()
    writer.settle()
    assert done == ["done"]
