"""Render the examples for every target: ``python examples/manifests/render.py``.

What a target can't express is left out and noted in ``left-out.txt`` beside its documents.
"""

from pathlib import Path

from gridflow.deploy import TARGETS, JobError, load_job, render

HERE = Path(__file__).parent
JOBS = ("flights", "flights-ps")


def documents():
    """Yield the path below this folder and the text of every document."""
    for name in JOBS:
        job = load_job(HERE.parent / f"{name}.yaml")
        for target in TARGETS:
            try:
                rendering = render(job, target, lossy=True)
            except JobError as error:
                # No such section: nothing to serve, no notebook.
                if not all(problem.reason.startswith("the target") for problem in error.problems):
                    raise
                continue
            for document in rendering.documents:
                yield Path(name) / target / document.name, document.text()
            if rendering.warnings:
                lines = "".join(f"{problem}\n" for problem in rendering.warnings)
                yield Path(name) / target / "left-out.txt", lines


if __name__ == "__main__":
    for path, text in documents():
        (HERE / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / path).write_text(text, encoding="utf-8")
