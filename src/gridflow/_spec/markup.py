"""What notebooks show: tables, texts, histories. Pure."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Point = tuple[int, float]

#: The number of shown rows; of a longer table, the first and last ones.
_MOST_ROWS: Final = 40


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table with numbers aligned right and without the middle of a long one."""
    lines = [list(row) for row in rows]
    if len(lines) > _MOST_ROWS:
        half, left_out = _MOST_ROWS // 2, len(lines) - _MOST_ROWS
        gap = [f"… {left_out:,} more …", *[""] * (len(head) - 1)]
        lines = [*lines[:half], gap, *lines[-half:]]
    heading = "".join(f"<th>{_escaped(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in lines)
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"


def facts(rows: Mapping[str, str]) -> str:
    """Return names and their values as a table without a header."""
    body = "".join(
        f"<tr><th style='text-align:left'>{_escaped(name)}</th>"
        f"<td style='text-align:left'>{_escaped(value)}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><tbody>{body}</tbody></table>"


def history_view(history: Mapping[str, Sequence[float]]) -> str:
    """Return the curves of losses and metrics, and a table with a row for each epoch."""
    return learning_curves(history) + numbers(history)


def text(content: str, title: str) -> str:
    """Return a text of several lines, which is shown when its title is clicked."""
    return (
        f"<details><summary>{_escaped(title)}</summary>"
        f"<pre style='white-space:pre-wrap'>{_escaped(content)}</pre></details>"
    )


def numbers(history: Mapping[str, Sequence[float]]) -> str:
    """Return a table of losses and metrics, with a row for each epoch."""
    epochs = max(map(len, history.values()), default=0)
    rows = (
        [epoch + 1, *(each[epoch] if epoch < len(each) else "" for each in history.values())]
        for epoch in range(epochs)
    )
    return table(["epoch", *history], rows) if history else "<p>no history</p>"


def _escaped(text: str) -> str:
    return html.escape(plain(text))


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td style='text-align:left'>{_escaped(str(value))}</td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    return f"<td style='text-align:right'>{text}</td>"


# Learning curves as SVG, for notebooks and pages. Pure.

#: What Keras puts before the names of validation's losses and metrics.
_VALIDATION: Final = "val_"
#: Of the lines; both can be seen on light and dark ground.
_COLOURS: Final = {"training": "#1f77b4", "validation": "#e8731a"}
#: Of a panel, and of the space around its lines, in pixels.
_WIDTH, _HEIGHT = 300, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 40, 22
#: Epochs of which each is drawn; of more, evenly spaced ones.
_MOST_POINTS: Final = 300
#: A dot for each epoch of a line that has no more.
_MOST_DOTS: Final = 30


def panels(history: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Sequence[float]]]:
    """Return the lines of each panel: those of training and validation, by loss or metric."""
    found: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in history.items():
        label = "validation" if name.startswith(_VALIDATION) else "training"
        if values:
            found.setdefault(name.removeprefix(_VALIDATION), {})[label] = values
    return found


def learning_curves(history: Mapping[str, Sequence[float]], of: str = "epoch") -> str:
    """Return a picture for the loss and for each metric, by epoch or something else, as HTML.

    Text has the colour of its surroundings. Epochs whose value isn't finite are left out, and so
    are panels without any.
    """
    drawn = "".join(_panel(name, lines, of) for name, lines in panels(history).items())
    return f"<div>{drawn}</div>" if drawn else ""


def _panel(name: str, lines: Mapping[str, Sequence[float]], of: str) -> str:
    points = {label: _sampled(values) for label, values in lines.items()}
    values = [value for line in points.values() for _, value in line if math.isfinite(value)]
    if not values:
        return ""
    epochs = max(map(len, lines.values()))
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def place(point: Point) -> tuple[float, float]:
        epoch, value = point
        share = (epoch - 1) / (epochs - 1) if epochs > 1 else 0.5
        height = (value - low) / span if high > low else 0.5
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - height * (_HEIGHT - _TOP - _BOTTOM)

    bottom, middle = _HEIGHT - _BOTTOM, (_LEFT + _WIDTH - _RIGHT) / 2
    scale = {high: place((1, high))[1], low: place((1, low))[1]}
    parts = [
        _text(_LEFT, 15, plain(name), "start", "font-weight='bold'"),
        *(_text(_LEFT - 6, y + 4, f"{value:.4g}", "end") for value, y in scale.items()),
        *(
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' "
            "stroke='currentColor' stroke-opacity='0.2'/>"
            for y in scale.values()
        ),
        _text(_LEFT, bottom + 16, "1" if epochs > 1 else "", "middle"),
        _text(middle, bottom + 16, of if epochs > 1 else f"{of} 1", "middle"),
        _text(_WIDTH - _RIGHT, bottom + 16, f"{epochs:,}" if epochs > 1 else "", "middle"),
    ]
    told = f"{plain(name)}, from {low:.4g} to {high:.4g} over {epochs:,} of {of}"
    for number, (label, line) in enumerate(points.items()):
        parts.append(_text(_LEFT + 90 * number, 30, label, "start", f"fill='{_COLOURS[label]}'"))
        parts += _line([[place(point) for point in piece] for piece in _whole(line)], label)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}' fill='currentColor' font-family='sans-serif' "
        f"font-size='11' role='img' aria-label='{html.escape(told, quote=True)}'>"
        f"{''.join(parts)}</svg>"
    )


def _sampled(values: Sequence[float]) -> list[Point]:
    """Return the points to draw: the first, the last, and not too many between."""
    stride = -(-len(values) // _MOST_POINTS)
    points = [(at + 1, float(values[at])) for at in range(0, len(values), stride)]
    if points[-1][0] < len(values):
        points.append((len(values), float(values[-1])))
    return points


def _whole(line: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the pieces of a line between values that aren't finite."""
    piece: list[Point] = []
    for point in line:
        if math.isfinite(point[1]):
            piece.append(point)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _line(pieces: Sequence[Sequence[tuple[float, float]]], label: str) -> Iterator[str]:
    colour = _COLOURS[label]
    dotted = sum(map(len, pieces)) <= _MOST_DOTS
    for piece in pieces:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
        yield f"<polyline points='{places}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
        for x, y in piece if dotted or len(piece) == 1 else ():
            yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2' fill='{colour}'/>"


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {more}>{html.escape(text)}</text>"
        if text
        else ""
    )
