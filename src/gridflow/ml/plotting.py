"""Learning curves. Needs matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.markup import panels
from gridflow.errors import InvalidArgument, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

_INCHES: Final = (4.8, 3.4)


def learning_curve(history: Mapping[str, Sequence[float]]) -> Figure:
    """Return a figure with a panel for the loss and for each metric, over epochs.

    Parameters
    ----------
    history : mapping of str to sequence of float
        Values by epoch. ``val_loss`` is drawn beside ``loss``, and so on.

    Raises
    ------
    MissingDependency
        matplotlib isn't installed.
    InvalidArgument
        There is no epoch to draw.
    """
    if not any(history.values()):
        raise InvalidArgument(
            "nothing to draw: history is empty. The training function has to call fit "
            "with callbacks=ctx.callbacks()."
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "plot() needs matplotlib: pip install 'gridflow[plot]', or pip install matplotlib."
        ) from error

    class LearningCurve(Figure):  # type: ignore[misc]
        """A figure with its own notebook representation."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    found = panels(history)
    width, height = _INCHES
    # Without pyplot, which would keep it and show it twice in a notebook.
    figure: Any = LearningCurve(figsize=(width * len(found), height), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (panel, lines) in zip(every, found.items(), strict=True):
        for label, values in lines.items():
            axes.plot(range(1, len(values) + 1), values, marker=".", label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(panel)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    return figure
