"""Completion of the command line, by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from gridflow.cli import main
from gridflow.deploy import TARGETS
from suite.waiting import patience

#: Presses the tab key behind the words, as bash does it for a function of ``complete -F``.
PRESS_TAB = r"""
eval "$SCRIPT"
read -r _ _ _ _ function _ <<< "$(complete -p gridflow)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"$function" gridflow "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script():
    """Give the scripts, each printed once."""
    import contextlib
    import io

    def print_one(shell):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main(["completion", shell]) == 0
        return printed.getvalue()

    return {shell: print_one(shell) for shell in ("bash", "zsh")}


def complete(script, *words, cwd):
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB, "bash", "gridflow", *words],
        env={**os.environ, "SCRIPT": script["bash"]},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=patience(),
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("d",), {"doctor"}),
        (("re",), {"render", "replay", "report"}),
        (("template", ""), {"render"}),
        (("tfrecord", "co"), {"convert", "count"}),
        (("render", "-t", "sw"), {"swarm"}),
        (("run", "--target", ""), set(TARGETS)),
        (("doctor", "--b"), {"--backend"}),
        (("doctor", "--backend", "j"), {"jax"}),
        (("completion", ""), {"bash", "zsh"}),
        (("render", "-t", "kubernetes", "j"), {"job.yaml", "jobs"}),
        (("render", "-t", "kubernetes", "-o", ""), {"jobs"}),
        (("tfrecord", "head", ""), {"job.yaml", "jobs"}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_bash_completes(script, tmp_path, words, some):
    (tmp_path / "job.yaml").touch()
    (tmp_path / "jobs").mkdir()
    assert set(complete(script, *words, cwd=tmp_path)) == some


def test_zsh_reads_its_script(script, tmp_path):
    """And registers it; what it offers takes a terminal to see."""
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("zsh isn't installed")
    (tmp_path / "_gridflow").write_text(script["zsh"])
    words = (
        f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; "
        "print $_comps[gridflow]; autoload +X _gridflow"
    )
    done = subprocess.run(
        [zsh, "-f", "-c", words], capture_output=True, text=True, timeout=patience(), check=True
    )
    assert (done.stdout, done.stderr) == ("_gridflow\n", "")


def test_zsh_is_given_the_targets_and_files(script):
    assert f"({' '.join(TARGETS)})" in script["zsh"]
    assert ":_files" in script["zsh"]


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "choose from" in capsys.readouterr().err
