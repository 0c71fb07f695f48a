"""What a user sees of a job: lines and one bar that leave each other whole, wherever they go."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import types

import pytest

from gridflow.coordinator import bar
from gridflow.coordinator.console import Console, as_printed
from gridflow.spec.cluster import Task
from gridflow.wire.reports import Progress

COLUMNS = 80
TASKS = [Task("worker", 0), Task("worker", 1)]

PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_console import tell
from gridflow.coordinator.console import Console
tell(lambda tasks: Console(tasks, Path(sys.argv[1])))
"""


def tell(make):
    """Tell a console of three epochs of two ranks, the second of which is a little behind."""
    console = make(TASKS)
    for epoch in range(3):
        for step in range(1, 5):
            for rank in (0, 1):
                console.progress(rank, report(epoch - (rank and step == 1 and epoch > 0), step))
            console.log(TASKS[0], [f"a line at {epoch}.{step}", "and another"])
            console.log(TASKS[1], [" 10%|#\r 20%|## \x1b[Aup\r"])
        console.epoch(epoch, {"loss": 0.5})
    console.say("generation 1 starts")
    console.progress(0, report(1, 2))
    console.close()


def report(epoch, step):
    """Return what a rank tells after a step."""
    return Progress(epoch, step, 4, "train", 8, {"loss": 0.5})


def expected():
    """Return the lines that have to be seen."""
    lines = []
    for epoch in range(3):
        for step in range(1, 5):
            lines += [f"[worker:0] a line at {epoch}.{step}", "[worker:0] and another"]
            lines += ["[worker:1]  20%|## up"]
        lines += [f"[gridflow] epoch {epoch + 1}: loss 0.5"]
    return [*lines, "[gridflow] generation 1 starts"]


class Screen:
    """As much of a terminal as tqdm uses; notes each row that a bar and a line have shared."""

    def __init__(self):
        self.rows, self.row, self.column, self.torn, self.bars = [""], 0, 0, [], set()

    def show(self, text):
        for part in re.findall(r"\x1b\[A|\r|\n|[^\r\n\x1b]|\x1b", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.rows += [""] * (self.row == len(self.rows))
            elif part == "\x1b[A":
                self.row -= 1
            else:
                self._put(part)

    def _put(self, character):
        if self.column == COLUMNS:
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row == len(self.rows))
        row = self.rows[self.row].ljust(self.column)
        row = self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
        self.column += 1
        if is_bar := re.search(r"epoch \d: +\d+%\|", row):
            self.bars.add(is_bar[0])
        if is_bar and "[worker" in row:
            self.torn.append(row)


def run_in_terminal(folder, **streams):
    """Run the program with its errors, and its output unless said otherwise, on a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, COLUMNS))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), os.path.dirname(__file__)],
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **streams},
        env={**os.environ, "TQDM_MININTERVAL": "0"},  # each step is drawn
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # what a terminal says when its last user has gone
            break
        if not data:
            break
        seen += data
    os.close(ours)
    output = process.stdout.read().decode() if process.stdout else None
    if process.stdout:
        process.stdout.close()
    assert process.wait() == 0, seen.decode()
    screen = Screen()
    screen.show(seen.decode())
    return screen, output


def test_bar_and_lines_leave_each_other_whole_in_a_terminal(tmp_path):
    screen, _ = run_in_terminal(tmp_path)
    assert [row.rstrip() for row in screen.rows if row.strip()] == expected()
    assert screen.torn == []
    # An epoch's bar isn't taken away by a rank that is still in the one before.
    assert {bar.split(":")[0] for bar in screen.bars} == {"epoch 1", "epoch 2", "epoch 3"}
    assert "epoch 3: 100%|" in screen.bars


def test_no_bar_is_drawn_where_lines_reach_the_terminal_another_way(tmp_path):
    screen, output = run_in_terminal(tmp_path, stdout=subprocess.PIPE)  # as with | tee
    assert output.splitlines() == expected()
    assert [row for row in screen.rows if row.strip()] == []
    with (tmp_path / "output").open("w+") as file:
        screen, _ = run_in_terminal(tmp_path / "logs", stdout=file)
        file.seek(0)
        assert file.read().splitlines() == expected()
    assert "epoch 3: 100%|" in screen.bars


def test_in_a_notebook_the_bar_has_one_place_of_its_own_and_lines_are_just_lines(
    tmp_path, monkeypatch, capsys
):
    shown = []

    class Handle:
        def update(self, data, *, raw):
            assert raw
            shown.append(data["text/plain"])

    def display(data, *, raw, display_id):
        assert raw
        assert display_id
        assert not shown, "a second place"
        shown.append(data["text/plain"])
        return Handle()

    monkeypatch.setattr(bar, "_NOTEBOOK_SECONDS", 0)
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    notebook = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    tell(lambda tasks: Console(tasks, tmp_path))
    printed = capsys.readouterr()
    assert printed.out.splitlines() == expected()
    assert printed.err == ""
    assert any("epoch 2:  25%|" in text for text in shown)
    assert shown[-1] == ""


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("plain \ttext, ünïcode", "plain \ttext, ünïcode"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("1/3\b\b\b2/3\x1b[2K\x1b[1A\x1b]0;title\x07", "1/32/3"),
        ("first\rsecond\r", "second"),
        ("\r\r", ""),
    ],
)
def test_a_line_moves_no_cursor_but_keeps_its_colours(line, printed):
    assert as_printed(line) == printed


def test_a_traceback_that_was_shown_is_told_in_a_line(tmp_path, capsys):
    console = Console(TASKS, tmp_path, progress=False)
    raised = ["Traceback (most recent call last):", '  File "job.py", line 3', "ValueError: no"]
    console.log(TASKS[0], ["before", *raised, "after"])
    console.log(TASKS[1], ["before", *raised])
    console.log(TASKS[1], [*raised[:2], "ValueError: another"])
    console.log(TASKS[0], raised)  # its next generation
    console.log(TASKS[1], raised[:2])
    console.close()
    assert capsys.readouterr().out.splitlines() == [
        *(f"[worker:0] {line}" for line in ("before", *raised, "after")),
        "[worker:1] before",
        "[worker:1] (the same traceback as that of worker:0)",
        *(f"[worker:1] {line}" for line in (*raised[:2], "ValueError: another")),
        "[worker:0] (the same traceback as before)",
        *(f"[worker:1] {line}" for line in raised[:2]),
    ]
    assert (tmp_path / "worker-1.log").read_text().splitlines()[1:4] == raised
