"""What MkDocs and its plugins don't do by themselves, called while the site is built."""

import os
import re

import griffe

#: ``[text](../path)``: the file lies outside of the pages.
_OUTSIDE = re.compile(r"\[`?([^\]`]+)`?\]\(\.\./([^)#\s]+)[^)]*\)")
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)
_NAME = re.compile(r"^::: (\S+)$", re.MULTILINE)


def on_config(config):
    """Show the menu of versions only where mike builds: elsewhere its list is missing."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_page_markdown(markdown, page, **_):
    """Adapt a page that is written for GitHub, too."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # the tabs have all of it
    if page.file.src_uri == "reference.md":
        markdown = _with_summaries(markdown)
    # Name files of the repository instead of linking to what the site doesn't have.
    return _OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2]}` in the repository)", markdown)


def _with_summaries(markdown):
    """Start each section of the reference with a table of its names."""
    package = griffe.load("gridflow", search_paths=["src"])
    start, *sections = _SECTION.split(markdown)
    for section in sections:
        heading, rest = section.split("\n", 1)
        rows = ["| name | what it is |", "|---|---|"]
        for path in _NAME.findall(section):
            name = path.removeprefix("gridflow.")
            summary = package[name].docstring.value.splitlines()[0].replace("``", "`")
            rows.append(f"| [`{name}`][{path}] | {summary} |")
        start += "\n".join([heading, "", *rows, rest])
    return start
