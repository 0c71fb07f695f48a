"""When the driver may expect steps of a training process."""

from __future__ import annotations

from gridflow._keras.due import Due
from gridflow._wire.reports import StepsDue


def test_steps_are_due_in_a_fit_and_not_while_it_waits_for_rows():
    sent = []
    due = Due(sent.append, 60.0)
    assert (due.in_step, due.depth, due.idle) == (False, 0, None)
    with due.during(together=True) as is_outer:
        assert (is_outer, due.in_step, due.depth) == (True, True, 1)
        assert due.idle < 60
        due.wait(waits=True)
        assert due.idle is None
        due.wait(waits=False)
        with due.in_callbacks():
            assert (due.in_step, due.depth) == (False, 0)
        with due.during(together=False) as is_outermost:
            assert (is_outermost, due.depth) == (False, 2)
    asks, rests = StepsDue(True, True), StepsDue(False, False)
    assert sent == [asks, StepsDue(False, True), asks, rests]


def test_steps_of_a_loop_are_due_from_its_first_report_until_the_function_has_returned():
    sent = []
    due = Due(sent.append, 60.0)
    due.step_ended()
    assert sent == []
    due.reported()
    due.reported()
    assert due.idle < 60
    due.stop()
    assert due.idle is None
    assert sent == [StepsDue(True, False), StepsDue(False, False)]
