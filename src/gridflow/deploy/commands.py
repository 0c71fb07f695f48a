"""The subcommands that make and check documents. Only documents go to standard output."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow.deploy.description.loading import load_with_places
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.description.tree import Node, assign, plain_value
from gridflow.deploy.inside.terminal import paint
from gridflow.deploy.rendering import explain, render
from gridflow.deploy.targets.base import Rendering, write_all
from gridflow.deploy.targets.registry import get_target, names
from gridflow.deploy.validation import validate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from gridflow.deploy.description.description import Job


def warn(text: str) -> None:
    """Print a warning."""
    sys.stderr.write(f"{paint('warning:', 'yellow', sys.stderr)} {text}\n")


@contextlib.contextmanager
def described(arguments: argparse.Namespace) -> Iterator[Job]:
    """Yield the arguments' job; problems found inside get their line and column in its file."""
    job, places = load_with_places(arguments.job, arguments.assignments)
    with places.named():
        yield job


def rendered(
    arguments: argparse.Namespace, change: Callable[[Job], Job] | None = None
) -> tuple[Job, Rendering]:
    """Return the arguments' job, after `change`, and its documents; print warnings."""
    job, places = load_with_places(arguments.job, arguments.assignments)
    job = change(job) if change else job
    with places.named():
        rendering = render(job, arguments.target, lossy=arguments.lossy)
    for problem in rendering.warnings:
        warn(str(places.located(problem)))
    return job, rendering


def targets(arguments: argparse.Namespace) -> int:
    """List the targets."""
    titles = {name: get_target(name).title for name in names()}
    if arguments.json:
        sys.stdout.write(json.dumps(titles, indent=2) + "\n")
    else:
        width = max(map(len, titles))
        for name, title in titles.items():
            sys.stdout.write(f"{name:<{width}}  {title}\n")
    return 0


def render_job(arguments: argparse.Namespace) -> int:
    """Print a target's documents, or write them to a directory."""
    _, rendering = rendered(arguments)
    if arguments.output is None:
        sys.stdout.write(rendering.text())
        return 0
    directory = Path(arguments.output)
    try:
        write_all(rendering.documents, directory)
    except OSError as error:
        raise JobError([Problem("", f"can't be written: {error}", str(directory))]) from error
    names = ", ".join(document.name for document in rendering.documents)
    sys.stderr.write(f"wrote {names} to {directory}\n")
    return 0


def validate_file(arguments: argparse.Namespace) -> int:
    """Check documents; return 1 if there are problems."""
    if arguments.file == "-":
        text, source = sys.stdin.read(), "<stdin>"
    else:
        source = arguments.file
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise JobError([Problem("", f"can't be read: {error}", source)]) from error
    result = validate(arguments.target, text, source=source, schemas=arguments.schemas)
    if arguments.json:
        sys.stdout.write(json.dumps(dataclasses.asdict(result), indent=2) + "\n")
        return 1 if result.problems else 0
    for note in result.notes:
        warn(note)
    for problem in result.problems:
        sys.stdout.write(f"{paint(str(problem), 'red', sys.stdout)}\n")
    if not result.problems:
        sys.stderr.write(f"{source}: {result.documents} documents, all valid\n")
    return 1 if result.problems else 0


def explain_target(arguments: argparse.Namespace) -> int:
    """Print how a target handles each feature of the description."""
    rows = explain(arguments.target)
    if arguments.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")
        return 0
    place = get_target(arguments.target)
    sys.stdout.write(f"{place.name}: {place.title}\n")
    for how, heading, colour in (
        ("no", "can't express", "red"),
        ("other", "leaves to other targets", "dim"),
        ("yes", "expresses", "green"),
    ):
        sys.stdout.write(f"\n{paint(heading, colour, sys.stdout)}\n")
        for row in rows:
            if row.how == how:
                reason = f": {row.reason}" if row.reason else ""
                sys.stdout.write(f"  {row.feature} ({row.title}){reason}\n")
    return 0


def render_template(arguments: argparse.Namespace) -> int:
    """Print a rendered Jinja2 template of the user's; unknown variables are an error."""
    import jinja2

    root = Node({}, "--set")
    for assignment in arguments.assignments:
        assign(root, assignment)
    path = Path(arguments.file)
    environment = jinja2.Environment(  # noqa: S701  (the documents aren't HTML)
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    # Jinja2's own filter escapes for HTML, which YAML and JSON parsers would read differently.
    environment.filters["tojson"] = _tojson
    try:
        text = environment.get_template(path.name).render(plain_value(root))
    except jinja2.TemplateNotFound as error:
        raise JobError([Problem("", f"no such template: {error.name!r}.", str(path))]) from error
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise JobError([Problem("", f"{error.message}.", where)]) from error
    except jinja2.UndefinedError as error:
        reason = f"{error.message}. Set it with --set."
        raise JobError([Problem("", reason, _place(error, path))]) from error
    # Expressions in a template can raise any error of Python's operators.
    except (
        jinja2.TemplateError,
        ArithmeticError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as e:
        raise JobError([Problem("", f"{type(e).__name__}: {e}.", _place(e, path))]) from e
    sys.stdout.write(text)
    return 0


def _place(error: BaseException, path: Path) -> str:
    """Return the template's line that caused an error, if it is known."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_no_json)


def _no_json(value: Any) -> str:
    import jinja2

    if isinstance(value, jinja2.Undefined):
        return str(value)  # which raises, and names the variable
    raise TypeError(f"tojson takes strings, numbers, lists and mappings, got {value!r}")
