"""Other versions of Python, each with an environment of its own for jobs: ``make pythons``.

Whichever of them this machine has. They bring no Spark: the tests give them one by ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Those that TensorFlow's release has packages for, beside the one that the suite runs on.
VERSIONS = ("3.12", "3.13")


def find(version):
    """Return the path of an interpreter; None where this machine has none of that version."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    places = [*([named] if named else []), *sorted(installed.glob(f"{version}.*/bin/python3"))]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for place in places:  # one in the PATH may be a stand-in that only says what is missing
        said = subprocess.run([place, "-c", ask], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return str(place)
    return None


def environment(version):
    """Return the interpreter of an environment with TensorFlow and this gridflow, made once."""
    interpreter = find(version)
    if interpreter is None:
        return None
    folder = ROOT / ".cache" / "pythons" / version
    python = folder / "bin" / "python"
    done = folder / ".done"
    if not done.exists():
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([uv, "venv", "-q", "--python", interpreter, folder], check=True)
        pinned = ["--constraint", "requirements/constraints.txt", "--compile-bytecode"]
        install = [uv, "pip", "install", "-q", "--python", python, *pinned]
        subprocess.run([*install, "--editable", ".[tensorflow-cpu]"], cwd=ROOT, check=True)
        done.touch()
    return str(python)


if __name__ == "__main__":
    for each in VERSIONS:
        print(f"Python {each}: {environment(each) or 'there is none on this machine'}", flush=True)
    sys.exit()
