"""The artefacts of a release, in ``dist/``: ``make dist``, or ``python scripts/dist.py --help``.

Builds the sdist and, from it alone, the wheel with its jar; builds both once more in another folder
and compares all bytes; checks what is in them; installs the wheel in a fresh environment of each
Python that this machine has. Beside them lie a bill of materials (CycloneDX, of what
``pip install gridflow[spark,tensorflow-cpu]`` brings), ``SHA256SUMS``, and ``provenance.json``: the
commit and the tools that they were built with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from commands import ROOT, release_tool, run, uv

sys.path.insert(0, str(ROOT / "tests" / "suite"))
from pythons import find

JAR = "gridflow/tfrecord/gridflow-tfrecord.jar"
NATIVE = "gridflow/_collectives/native/"
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = "[spark,tensorflow-cpu]"
#: What a release holds besides the packages.
BESIDE = {"README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "pyproject.toml", "hatch_build.py"}


def version():
    """Return the version, which stands in pyproject.toml; the jar's must be the same."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    pom = re.search(r"<version>(.*?)</version>", (ROOT / "java" / "pom.xml").read_text())
    if pom is None or pom[1] != found:
        raise SystemExit(f"java/pom.xml must have the version of pyproject.toml, {found}")
    return found


def build(folder, commit, epoch):
    """Build the sdist of a commit and its wheel in a folder; return both paths.

    Not from the working tree, where there may be files that nobody has committed.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    # Without --wheel or --sdist it makes the wheel of what the sdist holds.
    uv("build", "--quiet", "--out-dir", folder / "out", source, env=environment)
    (sdist,) = (folder / "out").glob("*.tar.gz")
    (wheel,) = (folder / "out").glob("*.whl")
    return sdist, wheel


def digest(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(sdist, wheel):
    """Refuse artefacts that lack something, or hold what is nobody's business."""
    names = set(zipfile.ZipFile(wheel).namelist())
    if JAR not in names:
        raise SystemExit(f"{wheel.name} has no jar: Maven and a JDK are needed to build it")
    if not any(name.startswith(NATIVE) and name.endswith(".so") for name in names):
        raise SystemExit(f"{wheel.name} has no exchange in C: a C compiler is needed to build it")
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    if not {"LICENSE", "NOTICE"} <= licences:
        raise SystemExit(f"{wheel.name} holds the licences {sorted(licences)}")
    strange = [name for name in names if not name.startswith(("gridflow/", "gridflow-"))]
    if strange:
        raise SystemExit(f"{wheel.name} holds {', '.join(strange)}")
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    missing = (BESIDE | {"java/pom.xml"}) - held
    if missing:
        raise SystemExit(f"{sdist.name} lacks {', '.join(sorted(missing))}")
    print(release_tool("twine", "check", "--strict", sdist, wheel))
    print(release_tool("check-wheel-contents", wheel))


def try_out(wheel, python, folder):
    """Install the wheel beside nothing else, without Maven or Java's compiler, and try it."""
    found = find(python)
    if found is None:
        raise SystemExit(f"this machine has no Python {python}: install it, or leave it out")
    environment = folder / f"python-{python}"
    uv("venv", "--quiet", "--python", found, environment)
    interpreter = environment / "bin" / "python"
    constraints = ["--constraint", ROOT / "requirements" / "constraints.txt"]
    wanted = f"gridflow{EXTRAS} @ {wheel.as_uri()}"
    uv("pip", "install", "--quiet", "--python", interpreter, *constraints, wanted)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean["MVN"] = "no-maven-here"
    print(run(interpreter, "-m", "gridflow.testing.smoke", cwd=folder, env=clean), flush=True)
    return interpreter


def bill_of_materials(interpreter, target):
    """Write what an environment holds, with versions and licences."""
    words = ("environment", "--output-reproducible", "--output-format", "JSON", "-o", target)
    release_tool("cyclonedx-py", *words, interpreter, package="cyclonedx-bom")


def provenance(commit, epoch):
    """Return what the artefacts were built from, and with."""
    return {
        "commit": commit,
        "source_date_epoch": int(epoch),
        "python": platform.python_version(),
        "uv": uv("--version"),
        "maven": run("mvn", "--version").splitlines()[0],
        "java": run("java", "--version").splitlines()[0],
        "command": "make dist",
    }


def main():
    """Build, compare, check and try."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pythons",
        nargs="*",
        default=list(PYTHONS),
        metavar="VERSION",
        help="versions of Python to try the wheel with; none: it is only built and checked "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="the folder (default: %(default)s)"
    )
    given = parser.parse_args()
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT):
        raise SystemExit("there are changes that aren't committed: a release is of a commit")
    wanted = version()
    commit = run("git", "rev-parse", "HEAD", cwd=ROOT)
    epoch = run("git", "log", "-1", "--format=%ct", commit, cwd=ROOT)
    with tempfile.TemporaryDirectory(prefix="gridflow-dist-") as name:
        folder = Path(name)
        first, second = (build(folder / each, commit, epoch) for each in ("first", "second"))
        for one, other in zip(first, second, strict=True):
            if digest(one) != digest(other):
                raise SystemExit(f"two builds of {one.name} differ: {one} and {other}")
        print("Two builds have the same bytes.", flush=True)
        check(*first)
        shutil.rmtree(given.out, ignore_errors=True)
        given.out.mkdir(parents=True)
        made = [Path(shutil.copy2(path, given.out)) for path in first]
        for python in given.pythons:
            interpreter = try_out(made[1], python, folder)
        if given.pythons:
            bill = given.out / f"gridflow-{wanted}.cdx.json"
            bill_of_materials(interpreter, bill)
            made.append(bill)
    place = given.out / "provenance.json"
    place.write_text(json.dumps(provenance(commit, epoch), indent=2) + "\n")
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in [*made, place])
    (given.out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


if __name__ == "__main__":
    sys.exit(main())
