"""A process that stood still counts that time against nobody."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from gridflow._wire.clock import Clock


class Times:
    """Time that passes when it is told to."""

    def __init__(self):
        self.real = 100.0
        self.clock = Clock(1.0, lambda: self.real)
        self.began = self.clock.now()

    def pass_(self, seconds, each):
        end = self.real + seconds
        while self.real < end:
            self.real += each
            self.clock.now()

    @property
    def counted(self):
        return self.clock.now() - self.began


def test_a_gap_between_two_calls_is_left_out_and_told_once():
    times = Times()
    times.pass_(5, each=0.125)
    assert times.counted == 5
    times.real += 13
    assert times.counted == 5
    assert times.clock.take_standstill() == 13
    assert times.clock.take_standstill() == 0
    times.pass_(2, each=0.5)
    assert times.counted == 7


def test_several_gaps_add_up():
    times = Times()
    for _ in range(3):
        times.real += 9
        times.clock.now()
        times.pass_(0.25, each=0.25)
    assert times.counted == 0.75
    assert times.clock.take_standstill() == 27


def test_a_short_delay_is_no_standstill():
    times = Times()
    times.pass_(9, each=0.9)
    assert times.counted == pytest.approx(9)
    assert times.clock.take_standstill() == 0


def test_code_that_holds_the_gil_stops_it():
    clock, ended = Clock(0.5), threading.Event()
    really_began, began = time.monotonic(), clock.now()

    def call():
        while not ended.wait(0.05):
            clock.now()

    calls = threading.Thread(target=call)
    calls.start()
    ctypes.PyDLL(None).usleep(900_000)  # unlike CDLL's, with the GIL
    ended.set()
    calls.join()
    counted = clock.now() - began
    passed = time.monotonic() - really_began  # read outside the clock's own two readings
    stood_still = clock.take_standstill()
    assert stood_still >= 0.8
    assert counted + stood_still <= passed + 1e-6  # for rounding
