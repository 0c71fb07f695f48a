"""What a user sees of a job: lines and one bar that leave each other whole, wherever they go."""

from __future__ import annotations

import os
import pty
import re
import resource
import subprocess
import sys
import termios
import threading
import types

import pytest

from gridflow._coordinator import progress_bar
from gridflow._coordinator.console import Console, as_printed
from gridflow._coordinator.observing import Observed
from gridflow._coordinator.progress import TaskProgress
from gridflow._spec.cluster import Task
from gridflow._spec.place import Place
from suite.waiting import wait_for

COLUMNS = 80
TASKS = [Task("worker", 0), Task("worker", 1)]

PROGRAM = """
import sys
from pathlib import Path
from test_console import tell
from gridflow._coordinator.console import Console
tell(lambda tasks: Console(tasks, Path(sys.argv[1])))
"""


def tell(make):
    """Tell a console of three epochs of two ranks, the second of which is a little behind."""
    console = make(TASKS)
    observed = Observed((), console.say, console.drawn)
    for epoch in range(3):
        for step in range(1, 5):
            for rank in (0, 1):
                at = place(epoch - (rank and step == 1 and epoch > 0), step)
                observed.progress(f"worker:{rank}", at)
            console.log(TASKS[0], [f"a line at {epoch}.{step}", "and another"])
            console.log(TASKS[1], [" 10%|#\r 20%|## \x1b[Aup\r"])
        observed.epoch(0, epoch, {"loss": 0.5})
        console.epoch(epoch, {"loss": 0.5})
    console.say("generation 1 starts")
    observed.progress("worker:0", place(1, 2))
    console.close()


def place(epoch, step):
    """Return where a task is after a step."""
    return TaskProgress(
        Place(0, epoch, step), 4, "train", {"loss": 0.5}, rows=8 * (4 * epoch + step)
    )


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


def tell_of_metric(make):
    """Tell a console of a metric whose name holds what a terminal obeys."""
    console = make(TASKS)
    observed = Observed((), console.say, console.drawn)
    for step in (1, 2):
        evil = {"a\x1b[2J\nb\x9b5A\r<b>": 0.5}
        observed.progress("worker:0", TaskProgress(Place(0, 0, step), 4, "train", evil))
    console.log(TASKS[0], ["a line"])
    console.close()


def run_in_terminal(folder, program=PROGRAM, **streams):
    """Run the program with its errors, and its output unless said otherwise, on a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, COLUMNS))
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **streams},
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TQDM_MININTERVAL": "0",  # each step is drawn
        },
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
    assert {progress_bar.split(":")[0] for progress_bar in screen.bars} == {
        "epoch 1",
        "epoch 2",
        "epoch 3",
    }
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


@pytest.fixture
def shown(monkeypatch):
    """Give what a notebook's cell shows as time goes on."""
    shown = []

    class Handle:
        def update(self, data, *, raw):
            assert raw
            shown.append(data)

    def display(data, *, raw, display_id):
        assert raw
        assert display_id
        assert not shown, "a second place"
        shown.append(data)
        return Handle()

    monkeypatch.setattr(progress_bar, "_NOTEBOOK_SECONDS", 0)
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    notebook = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    return shown


def test_in_a_notebook_the_bar_has_one_place_of_its_own_and_lines_are_just_lines(
    shown, tmp_path, capsys
):
    tell(lambda tasks: Console(tasks, tmp_path))
    printed = capsys.readouterr()
    assert printed.out.splitlines() == expected()
    assert printed.err == ""
    assert any("epoch 2:  25%|" in each["text/plain"] for each in shown)
    assert any("epoch 2:  25% <progress max='4' value='1'" in each["text/html"] for each in shown)
    assert shown[-1] == {"text/plain": "", "text/html": ""}
    del shown[:]
    tell_of_metric(lambda tasks: Console(tasks, tmp_path))
    assert any("&lt;b&gt;=0.5" in each["text/html"] for each in shown)
    assert not any("<b>" in each["text/html"] for each in shown)


def test_the_bar_waits_for_no_worker_that_is_away(shown):
    bar = progress_bar.ProgressBar(TASKS, lambda: None)

    def after(rank, epoch, step):
        bar.progress(f"worker:{rank}", place(epoch, step))
        return shown[-1]["text/plain"]

    after(0, 0, 1)
    assert "1/4" in after(1, 0, 3)
    bar.task("worker:0", "away", "host")
    assert "4/4" in (text := after(1, 0, 4))
    assert "workers=1 of 2" in text
    assert after(0, 0, 2) == text  # it isn't in the group yet
    bar.task("worker:0", "back", "host")
    after(0, 1, 1)
    assert "1/4" in (text := after(1, 1, 1))
    assert "workers" not in text
    bar.close()


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("plain \ttext, ünïcode", "plain \ttext, ünïcode"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("1/3\b\b\b2/3\x1b[2K\x1b[1A\x1b]0;title\x07", "1/32/3"),
        ("1\x9b2K2\x9d0;title\x9c\x85\x90q\x1b\\3", "123"),  # the same in 8 bits
        ("\x1b]0;no end", "0;no end"),
        ("\x1b[3", "3"),
        ("\x1b(0\x1bc\x1b", ""),
        ("\x1b[>4;2mkeys\x1b[?1m", "keys"),
        ("\x1b[3\x1b[2J1mred", "31mred"),
        ("\x1b[1;31mred", "\x1b[1;31mred\x1b[0m"),  # no other task's lines are red
        ("abc\u202edef\u2066", "abcdef"),
        ("first\rsecond\r", "second"),
        ("\r\r", ""),
    ],
)
def test_a_line_moves_no_cursor_but_keeps_its_colours(line, printed):
    assert as_printed(line) == printed


def test_what_the_coordinator_says_of_a_task_moves_no_cursor(tmp_path, capsys):
    console = Console(TASKS, tmp_path, progress=False)
    console.say("worker:0: the function raised ValueError: \x9b2J\x1b]0;title\x07no")
    console.log(TASKS[0], ["one\n[gridflow] two"])  # from another program than gridflow's agent
    console.close()
    assert capsys.readouterr().out.splitlines() == [
        "[gridflow] worker:0: the function raised ValueError: no",
        "[worker:0] one",
        "[worker:0] [gridflow] two",
    ]


def test_a_metric_with_a_cursor_in_its_name_leaves_the_bar_whole(tmp_path):
    program = PROGRAM.replace("import tell", "import tell_of_metric").replace(
        "tell(", "tell_of_metric("
    )
    screen, _ = run_in_terminal(tmp_path, program)
    assert [row.rstrip() for row in screen.rows if row.strip()] == ["[worker:0] a line"]
    assert screen.torn == []


@pytest.mark.parametrize("fill", ["lines", "long lines"])
@pytest.mark.timeout(60)
def test_a_terminal_that_nobody_reads_holds_up_nobody(tmp_path, monkeypatch, fill):
    monkeypatch.setattr("gridflow._coordinator.console._TERMINAL_PATIENCE", 0.2)
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdout", stdout := os.fdopen(write, "w"))
    console = Console(TASKS, tmp_path, progress=False)
    console.say("begins")
    # Given more than the pipe and the queue hold.
    width, count, at_once = (100, 200_000, 1000) if fill == "lines" else (1 << 20, 20, 1)
    for first in range(0, count, at_once):
        numbers = range(first, first + at_once)
        console.log(TASKS[0], [f"{number} ".ljust(width, "x") for number in numbers])
    console.say("ends")
    # When the job ends, it isn't waited for.
    console.close()
    # Then the files are whole, and of what is shown nothing is missing without a word.
    kept = console.paths[TASKS[0]].read_text().splitlines()
    assert [int(line.split()[0]) for line in kept] == list(range(count))
    reader = os.fdopen(read, "r")
    seen = []
    while not seen or seen[-1] != "[gridflow] ends":
        seen.append(reader.readline().rstrip("\n"))
    monkeypatch.undo()
    stdout.close()
    assert reader.read() == ""
    reader.close()
    assert seen[0] == "[gridflow] begins"
    shown = [int(line.split()[1]) for line in seen if line.startswith("[worker:0]")]
    (note,) = [line for line in seen if "lines not shown" in line]
    missing = int(note.split()[4].replace(",", ""))
    assert shown == list(range(count - missing))
    assert str(tmp_path) in note
    wait_for(
        lambda: not [t for t in threading.enumerate() if t.name == "gridflow-console"],
        "the end of the console's thread",
    )


def test_a_terminal_that_reads_again_is_told_what_it_missed(tmp_path, monkeypatch):
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdout", stdout := os.fdopen(write, "w"))
    console = Console(TASKS, tmp_path, progress=False)
    for _ in range(12):
        console.log(TASKS[0], ["x" * (1 << 20)])
    with os.fdopen(read) as reader:
        while not (line := reader.readline()).startswith("[gridflow]"):
            assert line.startswith("[worker:0] x")
        console.log(TASKS[0], ["after"])
        console.close()
        monkeypatch.undo()
        stdout.close()
        assert re.match(r"\[gridflow\] lines not shown: \d \(all of them are in /", line)
        assert reader.read() == "[worker:0] after\n"


class Narrow:
    """Stands in for a stream, and takes ASCII alone."""

    def __init__(self):
        self.written = ""

    def write(self, text):
        text.encode("ascii")
        self.written += text


@pytest.mark.parametrize("kind", ["file", "object"])
def test_a_character_that_the_encoding_lacks_silences_nothing(tmp_path, monkeypatch, kind):
    path = tmp_path / "output"
    stream = path.open("w", encoding="latin-1") if kind == "file" else Narrow()
    monkeypatch.setattr(sys, "stdout", stream)
    console = Console(TASKS, tmp_path / "logs", progress=False)
    console.log(TASKS[0], ["one", "\N{SNOWMAN} \udc80", "three"])
    console.say("\N{SNOWMAN}")
    console.close()
    monkeypatch.undo()
    if kind == "file":
        stream.close()
    written = path.read_text("latin-1") if kind == "file" else stream.written
    assert written.splitlines() == [
        *("[worker:0] one", r"[worker:0] \u2603 \udc80", "[worker:0] three"),
        r"[gridflow] \u2603",
    ]
    assert console.paths[TASKS[0]].read_text("utf-8") == "one\n\N{SNOWMAN} \\udc80\nthree\n"


def closed_file(folder):
    file = (folder / "closed").open("w")
    file.close()
    return file


@pytest.mark.parametrize("make", [lambda folder: None, lambda folder: object(), closed_file])
def test_output_that_is_no_stream_ends_nothing_and_what_follows_it_is_written(
    tmp_path, monkeypatch, make
):
    monkeypatch.setattr(sys, "stdout", make(tmp_path))
    monkeypatch.setattr(sys, "stderr", make(tmp_path))
    console = Console(TASKS, tmp_path / "logs")
    Observed((), console.say, console.drawn).progress("worker:0", place(0, 1))
    console.log(TASKS[0], ["lost"])
    wait_for(lambda: console._missing == 1, "a line that is missed", seen=lambda: console._missing)
    monkeypatch.setattr(sys, "stdout", stream := Narrow())
    console.log(TASKS[0], ["shown"])
    console.close()
    monkeypatch.undo()
    assert stream.written.splitlines() == [
        f"[gridflow] lines not shown: 1 (all of them are in {tmp_path / 'logs'})",
        "[worker:0] shown",
    ]


def test_a_stream_that_cannot_wait_is_waited_for(tmp_path, monkeypatch):
    read, write = os.pipe()
    os.set_blocking(write, False)  # by another program at the same terminal
    monkeypatch.setattr(sys, "stdout", stdout := os.fdopen(write, "w"))
    console = Console(TASKS, tmp_path, progress=False)
    for number in range(100):
        console.log(TASKS[0], [f"{number} ".ljust(10_000, "x")])
    with os.fdopen(read) as reader:
        seen = [int(reader.readline().split()[1]) for _ in range(100)]
    console.close()
    monkeypatch.undo()
    stdout.close()
    assert seen == list(range(100))


def test_a_disk_that_has_room_again_is_written_and_the_file_says_what_it_lacks(tmp_path, capsys):
    console = Console(TASKS, tmp_path, progress=False)
    path = console.paths[TASKS[0]]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        for number in range(30):
            console.log(TASKS[0], [f"{number} ".ljust(99_999, "x")])
        wait_for(lambda: console._files._missing, "a line that no file took")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    console.log(TASKS[0], ["after"])
    console.close()
    lines = path.read_text().splitlines()
    whole = [int(line.split()[0]) for line in lines if len(line) == 99_999]
    (note,) = [line for line in lines if line.startswith("[gridflow]")]
    missing = int(note.split()[-1])
    assert whole[:10] == list(range(10))
    assert len(whole) + missing == 30
    assert lines[-1] == "after"
    words = f"worker:0: lines are missing from {path}: File too large"
    assert console.warnings == (words,)
    assert capsys.readouterr().out.count(words) == 1


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
