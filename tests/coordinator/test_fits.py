"""Fits that take all ranks: the chief's paths, and ranks that start elsewhere."""

from __future__ import annotations

from gridflow._coordinator.fits import Fits
from gridflow._wire.ranks import FitBegins, FitStands


def test_who_would_write_hears_where_the_chief_does_whoever_comes_first():
    fits = Fits(0)
    assert fits.begins(1, FitBegins(0, ["/a"])) == []
    ((rank, told),) = fits.begins(0, FitBegins(0, ["/a", "/b"]))
    assert (rank, told.fit, told.paths) == (1, 0, ["/a", "/b"])
    ((rank, told),) = fits.begins(2, FitBegins(0, ["/b"]))
    assert (rank, told.paths) == (2, ["/a", "/b"])
    assert fits.begins(0, FitBegins(1, [])) == []
    assert fits.begins(1, FitBegins(1, ["/a"]))[0][1].paths == []
    assert fits.begins(0, FitBegins(2, [], generation=1)) == []


def starts(fit, epoch, updates, **more):
    return FitStands(fit, epoch, True, updates, **more)


def test_a_rank_that_starts_elsewhere_is_told_from_the_others():
    fits = Fits(0)
    assert fits.stands(1, starts(0, 0, 0)) == ""
    assert fits.stands(2, starts(0, 0, 0)) == ""
    assert fits.stands(0, starts(0, 3, 300)) == (
        "its fit starts at epoch 3 after 300 updates, but rank 1's at epoch 0 after 0 updates"
    )
    assert fits.stands(0, starts(1, 5, 7)) == ""
    assert fits.stands(1, starts(1, 5, 7)) == ""
    assert fits.stands(2, starts(1, 5, 7, generation=1)) == ""


def ends(epoch, rate=0.1, norm=2.0, **more):
    weights = [("dense/kernel", 0.0, norm), ("dense/bias", 0.0, 0.0)]
    return FitStands(0, epoch, False, 8 * epoch, rates=[rate], weights=weights, **more)


def test_a_rank_that_trains_another_model_is_told_from_the_others():
    fits = Fits(0)
    for epoch in (1, 2, 3):
        assert fits.stands(0, ends(epoch)) == ""
        assert fits.stands(1, ends(epoch, rate=0.1 + 1e-8, norm=2.0 - 1e-5)) == ""  # rounded
    assert fits.stands(0, ends(4)) == ""
    assert fits.stands(1, ends(4, rate=0.05)) == (
        "at epoch 4 after 32 updates, its learning rate is 0.05, but rank 0's 0.1"
    )
    assert fits.stands(2, ends(4, norm=2.1)) == (
        "at epoch 4 after 32 updates, its weight 'dense/kernel' has the norm 2.1 and the sum 0, "
        "but rank 0's 2 and 0"
    )
    assert fits.stands(3, FitStands(0, 4, False, 32, [0.1])).endswith(
        "it trains 0 weights, but rank 0 2"
    )
    assert fits.stands(4, ends(4, norm=float("nan"))) == ""  # the loss says so
