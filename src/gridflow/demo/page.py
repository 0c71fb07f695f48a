"""The demo's page of results: a self-contained HTML file."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec import markup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._feed.ledger import Ledger

_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .8em; border-bottom: 1px solid #8884 }
pre { overflow-x: auto }
.bar { background: #1f77b4; height: 1.1em }
"""


def page(
    facts: Mapping[str, str],
    scores: Mapping[str, tuple[float, float]],
    history: Mapping[str, Sequence[float]],
    ledger: Ledger,
    columns: Sequence[str],
    sample: Sequence[Sequence[Any]],
) -> str:
    """Return the page.

    Parameters
    ----------
    facts : mapping of str to str
    scores : mapping of str to (float, float)
        Root mean square and mean absolute error of each model, in minutes.
    history : mapping of str to sequence of float
        Losses and metrics by epoch.
    ledger : Ledger
    columns : sequence of str
    sample : sequence of rows
        Flights with their predictions, in the order of `columns`.
    """
    parts = [
        "<h1>Arrival delays of flights from New York</h1>",
        "<p>A Keras model, trained with gridflow on two workers of a Spark cluster.</p>",
        markup.facts(facts),
        "<h2>Errors on test flights</h2>",
        _bars({name: rmse for name, (rmse, _) in scores.items()}, "root mean square error"),
        _bars({name: mae for name, (_, mae) in scores.items()}, "mean absolute error"),
        "<h2>Training</h2>",
        markup.history_view(history),
        "<h2>Some predictions</h2>",
        markup.table(columns, sample),
        "<h2>Account of the rows</h2>",
        ledger._repr_html_(),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>gridflow: flights</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _bars(values: Mapping[str, float], title: str) -> str:
    """Return a bar for each value, in minutes."""
    longest = max(values.values())
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{value:.2f}</td>"
        f"<td style='width:24em'><div class='bar' style='width:{value / longest:.0%}'></div></td>"
        "</tr>"
        for name, value in values.items()
    )
    return f"<table><caption>{title}, minutes</caption><tbody>{rows}</tbody></table>"
