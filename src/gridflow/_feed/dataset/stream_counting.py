"""Datasets of a stream that count the batches which loops draw of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gridflow._feed.dataset.source import SOURCE

if TYPE_CHECKING:
    from gridflow._feed.dataset.stream import StreamSource

__all__ = ["counted"]


def counted(dataset: Any) -> Any:
    """Let a dataset count what loops draw of it; return it."""
    dataset.__class__ = _counting(dataset.__class__)
    return dataset


@functools.cache
def _counting(base: Any) -> Any:
    """Return the class of a dataset or iterator, so that batches are counted that a loop draws."""

    class Counting(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            found = super().__iter__()
            if found is not self:
                found.__class__ = _counting(found.__class__)
                setattr(found, SOURCE, getattr(self, SOURCE))
            return found

        def __next__(self) -> Any:
            source: StreamSource = getattr(self, SOURCE)
            counts = not (source.is_asked or source.progress.is_fit)
            if counts:
                source.has_step(source.progress.steps)
            found = super().__next__()
            source.progress.steps += counts
            return found

    Counting.__name__ = base.__name__
    return Counting
