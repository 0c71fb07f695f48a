"""Datasets of a stream that count the batches which loops draw of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridflow._feed.dataset.stream import StreamSource

__all__ = ["counted"]


def counted(dataset: Any, source: StreamSource) -> Any:
    """Let a dataset count what loops draw of it; return it."""
    dataset.__class__ = _counting(dataset.__class__)
    dataset.gridflow_stream = source
    return dataset


@functools.cache
def _counting(base: Any) -> Any:
    """Return the class of a dataset or iterator, so that batches are counted that a loop draws."""

    class Counting(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            found = super().__iter__()
            if found is not self:
                found.__class__ = _counting(found.__class__)
                found.gridflow_stream = self.gridflow_stream
            return found

        def __next__(self) -> Any:
            source = self.gridflow_stream
            counts = not (source.is_asked or source.progress.is_fit)
            if counts:
                source.has_next()
            found = super().__next__()
            source.progress.steps += counts
            return found

    Counting.__name__ = base.__name__
    return Counting
