"""Fits that take all ranks: the chief's paths, and ranks that start elsewhere."""

from __future__ import annotations

from gridflow._coordinator.fits import Fits
from gridflow._wire.ranks import FitBegins, FitStarts


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


def test_a_rank_that_starts_elsewhere_is_told_from_the_others():
    fits = Fits(0)
    assert fits.starts(1, FitStarts(0, 0, 0)) == ""
    assert fits.starts(2, FitStarts(0, 0, 0)) == ""
    assert fits.starts(0, FitStarts(0, 3, 300)) == (
        "its fit starts at epoch 3 after 300 updates, but rank 1's at epoch 0 after 0 updates"
    )
    assert fits.starts(0, FitStarts(1, 5, 7)) == ""
    assert fits.starts(1, FitStarts(1, 5, 7)) == ""
    assert fits.starts(2, FitStarts(1, 5, 7, generation=1)) == ""
