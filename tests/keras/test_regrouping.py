"""What ranks remember of each other while they come and go."""

from __future__ import annotations

from gridflow._keras import regrouping


def noted(*moments):
    """Return the absences of a rank that is or isn't there at steps of the first epoch."""
    found = []
    for step, is_there in moments:
        regrouping.note(found, [[0, step]], is_there=is_there)
    return [(left[0][1], back[0][1] if back else None) for left, back in found]


def test_absences_begin_with_a_loss_and_end_with_a_return():
    assert noted((3, True)) == []
    assert noted((3, False), (5, False)) == [(3, None)]
    assert noted((3, False), (5, True), (6, True), (9, False), (9, True)) == [(3, 5), (9, 9)]


def test_who_was_back_for_no_step_was_away_all_the_time():
    assert noted((3, False), (5, True), (5, False), (7, True)) == [(3, 7)]


def test_a_dataset_that_was_made_meanwhile_was_missed_from_its_start():
    absences = [[[[0, 3]], [[1, 2], [0, 4]]]]
    assert regrouping._of_dataset(0, absences) == [((0, 3), (1, 2))]
    assert regrouping._of_dataset(1, absences) == [((0, 0), (0, 4))]
    assert regrouping._of_dataset(2, absences) == []
