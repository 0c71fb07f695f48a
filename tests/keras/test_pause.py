"""A step that ranks agree on while they train: none goes beyond it, and none waits for nothing."""

from __future__ import annotations

import threading

from gridflow._keras.resume.pause import Pause
from suite.waiting import patience, wait_for


def test_a_process_without_a_fit_is_asked_in_vain():
    pause = Pause()
    assert pause.ask() is None
    assert not pause.step_ended()
    pause.begin(saves=False)
    assert pause.ask() is None
    pause.begin(saves=True)
    assert pause.ask() == 2
    pause.end()
    assert pause.ask() is None


def test_no_step_is_made_beyond_the_one_that_was_named_until_all_agree():
    pause, events = Pause(), []
    pause.begin(saves=True)
    assert not pause.step_ended()
    assert pause.ask() == 2

    def train():
        for step in range(2, 6):
            events.append("a step")
            events.append((step, pause.step_ended()))

    thread = threading.Thread(target=train)
    thread.start()
    wait_for(lambda: events, "the second step")
    events.append("all agree")
    pause.agree(4, stays=False)
    thread.join(patience())
    assert events[:2] == ["a step", "all agree"]  # it stood at the end of its second step
    assert events[2::2] == [(2, False), (3, False), (4, True), (5, False)]


def test_where_no_step_is_agreed_on_all_go_on():
    pause = Pause()
    pause.begin(saves=True)
    pause.ask()
    pause.agree(None, stays=False)
    assert not pause.step_ended()
    pause.stay()  # returns at once


def test_a_step_beyond_the_end_of_a_fit_is_one_of_the_next():
    pause = Pause()
    pause.begin(saves=True)
    assert not pause.step_ended()
    pause.ask()
    pause.agree(2, stays=True)
    pause.end()
    pause.begin(saves=True)
    assert pause.step_ended()
    assert pause.stays
