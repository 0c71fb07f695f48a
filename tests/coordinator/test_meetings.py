"""Meetings: held when all have come; who never will is named at once."""

from __future__ import annotations

import pytest

from gridflow._coordinator.meetings import Meetings
from gridflow._wire.reports import Meet

TASKS = ["worker:0", "worker:1", "worker:2", "worker:3", "worker:4"]


def meetings(members=3):
    return Meetings(0, range(members), TASKS)


def meet(number, operation="barrier", value="", generation=0):
    return Meet(number, operation, value, generation=generation)


def told(answers):
    return {answer.rank: (answer.command.values, answer.command.problem) for answer in answers}


@pytest.mark.parametrize(
    ("operation", "values"),
    [("barrier", ["0", "1", "2"]), ("all_gather", ["0", "1", "2"]), ("broadcast", ["0"])],
)
def test_the_last_to_come_lets_all_go_on(operation, values):
    held = meetings()
    for number in (1, 2):
        assert held.came(1, meet(number, operation, "1")) == []
        assert held.waiting(1) == f"ctx.{operation}()"
        assert held.came(0, meet(number, operation, "0")) == []
        answers = held.came(2, meet(number, operation, "2"))
        assert told(answers) == dict.fromkeys((0, 1, 2), (values, ""))
        assert held.waiting(1) == ""


def test_other_operations_at_one_time_are_an_error_for_all_that_come():
    held = meetings()
    held.came(0, meet(1))
    problem = "worker:0 called ctx.barrier() and worker:1 ctx.broadcast(): all ranks must "
    answers = told(held.came(1, meet(1, "broadcast")))
    assert set(answers) == {0, 1}
    assert all(said.startswith(problem) for _, said in answers.values())
    assert told(held.came(2, meet(1))) == {2: answers[0]}


def test_a_rank_that_has_returned_is_not_waited_for():
    held = meetings()
    held.came(0, meet(1))
    assert told(held.left(2, "has returned", 0)) == {0: ([], "worker:2 has returned")}
    assert told(held.came(1, meet(1))) == {1: ([], "worker:2 has returned")}
    assert told(held.came(1, meet(2))) == {1: ([], "worker:2 has returned")}


def test_who_waits_no_longer_hears_who_did_not_come_and_so_do_the_others():
    held = meetings(5)
    held.came(3, meet(1))
    names = "worker:0, worker:1, worker:2 and 1 more did not join"
    assert told(held.given_up(3, 1, 0)) == {3: ([], names)}
    assert held.given_up(3, 1, 0) == []
    assert told(held.came(0, meet(1))) == {0: ([], names)}


def test_other_generations_servers_and_large_values_take_part_in_nothing():
    held = meetings()
    assert held.came(0, meet(1, generation=1)) == []
    assert held.came(4, meet(1)) == []
    assert held.left(0, "has returned", 1) == []
    (answer,) = held.came(0, meet(1, "all_gather", "x" * (1 << 21)))
    assert "larger than 1,048,576 bytes" in answer.command.problem
