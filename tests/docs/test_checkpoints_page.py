"""The page on checkpoints of one's own: its program runs, and goes on where it was."""

from __future__ import annotations

import ast
import sys

import pytest
from documents import python_blocks, run_as_a_user


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_programs_with_checkpoints_of_their_own_go_on_where_they_were(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    program = "\n".join(python_blocks("docs/own-checkpoints.md"))
    program += f'\nif __name__ == "__main__":\n    print("found", run({str(folder)!r}))\n'
    output = run_as_a_user(sys.executable, program, tmp_path)
    (line,) = [line for line in output.splitlines() if line.startswith("found ")]
    assert ast.literal_eval(line.removeprefix("found ")) == {
        "resumed": [[(0, 8)] * 2, [(2, 16)] * 2],
        "managed": [[(2, 8)] * 2, [(4, 16)] * 2],
    }
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("best.keras", "model.keras", "managed"),
        *(f"epoch-{epoch:02d}.keras" for epoch in range(1, 5)),
    }
