"""What the documents say holds: links, names, arguments, defaults, dependencies."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
import tomllib
import xml.etree.ElementTree as ET

import pytest
from documents import PAGES, ROOT, python_blocks

import gridflow

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def anchors(path):
    """Return the anchors that the headings of a page have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMES)
def test_every_relative_link_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}, which isn't there"
        if anchor:
            assert anchor in anchors(target), f"{page} links to {link}, there is no such heading"


def test_every_page_can_be_reached_from_the_index_or_the_readme():
    linked = (ROOT / "docs/index.md").read_text() + (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"{page.name})" in linked, f"nothing links to {page}"


def test_modules_that_pages_for_contributors_name_exist():
    pages = ("docs/architecture.md", "CONTRIBUTING.md")
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in pages]
    named = {name for text in texts for name in re.findall(r"`([\w/]+(?:\.py|/))`", text)}
    named -= {"benchmarks/", "dist/", "tests/"}
    assert len(named) > 80
    modules = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("src/**/*.py")]
    modules += [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("tests/**/*.py")]
    for name in named:
        part = f"/{name}"
        found = (part in path if name.endswith("/") else path.endswith(part) for path in modules)
        assert any(found), f"there is no {name}"


def test_the_reference_has_every_public_name_and_no_other():
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: gridflow\.(\w+)$", text, re.MULTILINE)
    public = [name for name in gridflow.__all__ if not name.startswith("__")]
    assert sorted(listed) == sorted(public)
    for name in public:
        assert inspect.getdoc(getattr(gridflow, name)), f"{name} has no docstring"


def calls(code):
    """Yield the name of every call in a piece of code, and the names of its keyword arguments."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg for word in node.keywords if word.arg}


SIGNATURES = {
    "TensorflowDistributor": lambda: gridflow.TensorflowDistributor,
    "LocalLauncher": lambda: gridflow.LocalLauncher,
    "SparkLauncher": lambda: gridflow.SparkLauncher,
    "ctx.callbacks": lambda: gridflow.TrainingContext.callbacks,
    "ctx.dataset": lambda: gridflow.TrainingContext.dataset,
    "ctx.steps_per_epoch": lambda: gridflow.TrainingContext.steps_per_epoch,
}


@pytest.mark.parametrize("page", NAMES)
def test_code_in_the_documents_compiles_and_names_real_arguments(page):
    for code in python_blocks(page):
        for name, words in calls(code):
            if name in SIGNATURES:
                known = inspect.signature(SIGNATURES[name]()).parameters
                assert words <= set(known), f"{page}: {name}({', '.join(words)})"


def test_the_deadlines_on_the_page_are_those_of_the_code():
    from gridflow import Deadlines

    text = (ROOT / "docs/failure.md").read_text(encoding="utf-8")
    for name, default in vars(Deadlines()).items():
        limit = "none" if default is None else f"{default:g} s"
        assert f"| `Deadlines.{name}` | {limit} |" in text


def test_the_errors_on_the_page_are_those_of_the_code():
    import builtins

    import gridflow
    from gridflow import errors

    lines = [line for line in errors.__doc__.splitlines() if line.startswith("    ")]
    drawn = textwrap.dedent("\n".join(lines))
    assert drawn in (ROOT / "docs/failure.md").read_text(encoding="utf-8")
    parents, found = [], {}
    for line in drawn.splitlines():
        indent, name, builtin = re.match(r"([│├└─ ]*)(\w+) *(?:\((\w+)\))?", line).groups()
        parents[len(indent) // 4 :] = [name]
        found[name] = (parents[-2] if len(parents) > 1 else "Exception", builtin)
    known = {}
    for name, each in vars(errors).items():
        if isinstance(each, type) and issubclass(each, Exception) and not name.startswith("_"):
            above = [base for base in each.__mro__[1:] if not base.__name__.startswith("_")]
            others = [base.__name__ for base in each.__bases__ if vars(builtins).get(base.__name__)]
            known[name] = (above[0].__name__, (others or [None])[0])
    del known["GridflowError"], found["GridflowError"]
    assert found == known
    assert known.keys() <= set(errors.__all__) & set(gridflow.__all__)


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
        *(each for group in project["dependency-groups"].values() for each in group),
        *project["build-system"]["requires"],
    ]
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    for requirement in wanted:
        name = re.match(r"[\w.-]+", requirement)[0]
        assert f"`{name}`" in text, f"docs/dependencies.md says nothing of {name}"
    for extra in project["project"]["optional-dependencies"]:
        assert f"| `{extra}` |" in text, f"docs/dependencies.md says nothing of the extra {extra}"


def test_the_badges_are_true():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = " ".join(each for extra in project["optional-dependencies"].values() for each in extra)
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    (spark,) = set(re.findall(r"pyspark>=(\d+)\.0", extras))
    (tensorflow,) = set(re.findall(r"tensorflow(?:-cpu)?>=([\d.]+),", extras))
    (keras,) = set(re.findall(r"(?<!-)keras>=([\d.]+),", extras))
    expected = (
        f"Python {pythons[0]} to {pythons[-1]}, Spark {spark}, TensorFlow {tensorflow}, "
        f"Keras {keras}, license {project['license']}"
    )
    picture = ET.parse(ROOT / "docs" / "badges.svg").getroot()
    title, *texts = ("".join(each.itertext()) for each in picture if each.text)
    assert title == expected
    assert ", ".join(map(" ".join, zip(texts[::2], texts[1::2], strict=True))) == expected
    assert f"![{expected.replace('license ', '')}](docs/badges.svg)" in (
        (ROOT / "README.md").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", ["road", "life", "ends"])
def test_a_diagram_is_readable_on_dark_pages_and_without_seeing_it(name):
    picture = ET.parse(ROOT / "docs" / f"{name}.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    background = picture.find(f"{svg}rect")
    assert background.attrib["fill"] == "#ffffff"
    assert width - float(background.attrib["width"]) == 2
    assert height - float(background.attrib["height"]) == 2
    assert picture.find(f"{svg}title").text
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in NAMES)
    assert re.search(rf"!\[[^\]]{{40,}}\]\({name}\.svg\)", text)


@pytest.mark.parametrize("name", gridflow.__all__)
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(gridflow, name)
    assert name in dir(gridflow)
    assert inspect.getdoc(thing), f"{name} has no docstring"
    members = vars(thing) if inspect.isclass(thing) else {}
    for member, value in members.items():
        speaks = inspect.isfunction(value) or isinstance(value, property)
        if speaks and not member.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{member} has no docstring"


def test_public_names_are_sorted_and_unknown_ones_refused():
    assert gridflow.__all__ == sorted(gridflow.__all__)
    with pytest.raises(AttributeError, match="TensorFlowDistributor"):
        gridflow.TensorFlowDistributor  # noqa: B018


def test_importing_any_name_brings_no_package_that_is_large_or_an_extra():
    code = (
        "import sys, gridflow, gridflow.observers\n"
        "large = {'tensorflow', 'keras', 'tf_keras', 'pyspark', 'mlflow', 'opentelemetry'}\n"
        "for name in ('__all__', *gridflow.__all__):\n"
        "    getattr(gridflow, name)\n"
        "    found = large & set(sys.modules)\n"
        "    assert not found, (name, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
