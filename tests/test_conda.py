"""The conda recipe says what pyproject.toml says, and its tool can read it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from suite.waiting import patience

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "conda" / "recipe.yaml"
RENDER = """
import json, sys
from rattler_build import Stage0Recipe, VariantConfig
(variant,) = Stage0Recipe.from_file(sys.argv[1]).render(VariantConfig())
print(json.dumps(variant.recipe.to_dict()))
"""


def spelled(requirement):
    """Return a requirement as conda spells it."""
    name, bounds = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return f"{name} {bounds}"


def test_it_says_what_the_wheel_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load(RECIPE.read_text())
    assert recipe["context"]["version"] == project["version"]
    requirements = recipe["requirements"]
    python = f"python {project['requires-python']}"
    assert requirements["run"] == [python, *map(spelled, project["dependencies"])]
    extras = project["optional-dependencies"]
    optional = {spelled(each) for name in ("spark", "tensorflow", "jax") for each in extras[name]}
    assert set(requirements["run_constraints"]) == {*optional, "openjdk >=17"}
    commands = [f"{name} = {where}" for name, where in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"]["license"] == project["license"]


@pytest.mark.slow
def test_the_tool_that_builds_it_can_read_it():
    uv = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    pins = (ROOT / "requirements" / "release.txt").read_text()
    (pinned,) = re.findall(r"^py-rattler-build==.*", pins, re.MULTILINE)
    words = [uv, "run", "--quiet", "--no-project", "--with", pinned, "python", "-c", RENDER, RECIPE]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patience())
    assert done.returncode == 0, done.stderr
    assert '"name": "gridflow"' in done.stdout
