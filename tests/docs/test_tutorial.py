"""The tutorial, done as a reader would: each script a file of its own, in an empty folder."""

from __future__ import annotations

import re
import sys

import pytest
from documents import ROOT, python_blocks, run, without_javas

PAGE = "docs/tutorial.md"
#: In the order of the page.
SCRIPTS = ("make.py", "train.py", "apply.py")


def words_and_numbers(text):
    """Return a text without its numbers, and the numbers."""
    numbers = [float(each) for each in re.findall(r"\d+", text)]
    return re.sub(r" *\d+", "#", text), numbers


def check_shown(printed, shown):
    """Compare what a script printed with what the page shows: its numbers may differ a little."""
    words, numbers = words_and_numbers(printed)
    expected, about = words_and_numbers(shown)
    assert words == expected
    assert numbers == pytest.approx(about, rel=0.15, abs=3)


def test_the_page_is_short_and_names_its_scripts():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 600
    assert len(python_blocks(PAGE)) == len(SCRIPTS)
    assert all(f"`{name}`" in text for name in SCRIPTS)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_each_script_prints_what_the_page_shows(tmp_path, monkeypatch):
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    made, *printed = [run(sys.executable, code, tmp_path) for code in python_blocks(PAGE)]
    for done in (made, *printed):
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    trained, applied = printed
    assert without_javas(trained.stderr) == []
    *told, last = trained.stdout.splitlines(keepends=True)
    assert all(
        re.match(r"\[gridflow\] (epoch \d|waiting|where the time went): ", line) for line in told
    ), told
    check_shown(last, shown[0])
    check_shown(applied.stdout, shown[1])
    assert (tmp_path / "predicted" / "_SUCCESS").is_file()
