"""What notebooks show: tables, texts, histories. Pure."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.curves import learning_curves
from gridflow._spec.printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
