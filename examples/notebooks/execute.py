"""Run notebooks from a clean state, and keep what they show: ``python execute.py targets.ipynb``.

``--check`` keeps nothing: it fails where a cell does, and where one shows no longer what is kept:
text, a picture, or nothing. Each notebook runs in an empty folder of its own. What isn't kept: the
standard error stream (Spark's warnings), a progress bar that has gone, and what a busy machine made
wait.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

#: For a whole cell, and for a kernel to end by itself, which takes its temporary files with it.
SECONDS, LAST_SECONDS = 200, 60
WAITING = "[gridflow] waiting:"


def execute(path, folder):
    """Return a notebook with the outputs of its cells, made in a folder."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
        record_timing=False,  # it would differ each time
        config=Config({"KernelManager": {"shutdown_wait_time": LAST_SECONDS}}),
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = kept(cell.outputs)
    notebook.metadata = {"kernelspec": client.nb.metadata.kernelspec}
    return notebook


def kept(outputs):
    """Return the outputs of a cell that are kept, with the texts that follow on one another as one.

    Whether they come in one piece is chance.
    """
    found = []
    for each in outputs:
        if each.output_type == "stream":
            lines = "".join(each.text).splitlines(keepends=True)
            each.text = "".join(line for line in lines if not line.startswith(WAITING))
            if each.name == "stderr" or not each.text:
                continue
            if found and found[-1].output_type == "stream":
                found[-1].text += each.text
                continue
        elif "data" in each and not any(each.data.values()):
            continue
        found.append(each)
    return found


def kinds(notebook):
    """Return what each cell shows: texts, and the kinds of data."""
    return [
        [
            sorted(each.data) if "data" in each else each.output_type
            for each in kept(cell.get("outputs", []))
        ]
        for cell in notebook.cells
    ]


def main():
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true", help="keep nothing, compare")
    arguments = parser.parse_args()
    for path in arguments.notebooks:
        with tempfile.TemporaryDirectory() as folder:
            made = execute(path, folder)
        if not arguments.check:
            nbformat.write(made, path)
            continue
        kept, now = kinds(nbformat.read(path, as_version=4)), kinds(made)
        for number, (before, after) in enumerate(zip(kept, now, strict=True)):
            if before != after:
                sys.exit(f"{path}: cell {number} has kept {before}, and shows {after}")


if __name__ == "__main__":
    main()
