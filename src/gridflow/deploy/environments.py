"""``gridflow env pack``: packs a virtual environment so that Spark can unpack it on any host.

venv-pack leaves out the interpreter, so each host needs the same one at the same path, and it
rejects packages installed from a clone. This archive includes both: the interpreter with its
standard library, and the environment's packages as if they were installed into it. So it needs no
``pyvenv.cfg`` and contains no path of the host it was made on.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.backends import BACKENDS
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

#: The folder in each executor's working directory into which Spark unpacks the archive.
FOLDER: Final = "environment"
#: Parts of the standard library that aren't needed on a cluster.
_LEFT_OUT: Final = re.compile(r"(test|idlelib|turtledemo|ensurepip|config-.*|site-packages)$")
#: Packages that each executor needs, with any backend.
_NEEDED: Final = ("gridflow", "pyarrow", "cloudpickle")
_SHEBANG: Final = re.compile(rb"#!([^\n]*/)?(python[\d.]*)([^\n]*)\n")
#: Import hooks with which setuptools installs a package from some clones.
_HOOKS: Final = "__editable___*_finder.py"
_LEVEL: Final = 4
_FACTS: Final = """
import importlib.util, json, platform, sys, sysconfig
paths, base = sysconfig.get_paths(), sys.base_prefix
bases = sysconfig.get_paths(vars={"base": base, "platbase": base, "installed_base": base})
print(json.dumps({
    "prefix": sys.prefix, "base": sys.base_prefix, "version": platform.python_version(),
    "executable": sys._base_executable, "short": sysconfig.get_python_version(),
    "standard": sorted({bases["stdlib"], bases["platstdlib"]}),
    "packages": sorted({paths["purelib"], paths["platlib"]}),
    "shared": sysconfig.get_config_var("LDLIBRARY") if sysconfig.get_config_var(
        "Py_ENABLE_SHARED") else None,
    "shared_folder": sysconfig.get_config_var("LIBDIR"),
    "there": [name for name in %r if importlib.util.find_spec(name)],
}))
"""


@dataclass(frozen=True)
class Facts:
    """Properties of a virtual environment, reported by its Python."""

    prefix: str
    base: str
    version: str
    executable: str
    short: str
    standard: list[str]
    packages: list[str]
    shared: str | None
    shared_folder: str | None
    there: list[str] = field(default_factory=list)


def command(arguments: argparse.Namespace) -> int:
    """Pack an environment, and print the settings to use it: ``gridflow env pack``."""
    facts = look_at(Path(arguments.prefix or sys.prefix))
    output = Path(arguments.output)
    if output.exists() and not arguments.force:
        raise InvalidArgument(
            f"{output} already exists. Overwrite it with --force, or name another file with -o."
        )
    for line in lacks(facts):
        sys.stderr.write(f"warning: {line}\n")
    pack(facts, output)
    found = settings(str(output), facts)
    if arguments.json:
        said = {"archive": str(output), "bytes": output.stat().st_size, "python": facts.version}
        sys.stdout.write(json.dumps({**said, "settings": found}, indent=2) + "\n")
        return 0
    size = output.stat().st_size / 1e6
    sys.stdout.write(f"{output}: Python {facts.version} with its packages, {size:,.1f} MB\n")
    for title, lines in found.items():
        sys.stdout.write("\n".join((f"\n# {title}", *lines, "")))
    return 0


def look_at(prefix: Path) -> Facts:
    """Return an environment's properties, as its own Python reports them.

    Raises `InvalidArgument`: If `prefix` isn't a virtual environment.
    """
    python = prefix / "bin" / "python"
    code = _FACTS % ([*_NEEDED, *BACKENDS],)
    try:
        words = [str(python), "-I", "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"{prefix} is not a virtual environment: {python} fails ({error})."
        raise InvalidArgument(reason) from error
    facts = Facts(**json.loads(done.stdout))
    if facts.prefix == facts.base:
        raise InvalidArgument(
            f"{prefix} is a full Python installation, not a virtual environment. Create one with "
            "'uv venv' or 'python -m venv'; for a conda environment, use conda-pack."
        )
    return facts


def lacks(facts: Facts) -> list[str]:
    """Return warnings about packages that executors will miss in the archive."""
    missing = [name for name in _NEEDED if name not in facts.there]
    if not set(BACKENDS).intersection(facts.there):
        missing.append(f"{BACKENDS[0]} (or {', '.join(BACKENDS[1:])})")
    found = [f"{facts.prefix} has no {name}, which the executors need" for name in missing]
    hooks = {hook.name for folder in facts.packages for hook in Path(folder).glob(_HOOKS)}
    return found + [
        f"{hook}: a package installed from a clone with an import hook can't be packed; install "
        "it without -e (pip install .)"
        for hook in sorted(hooks)
    ]


def pack(facts: Facts, output: Path) -> None:
    """Write the archive, either completely or not at all.

    Raises `InvalidArgument`: If it can't be written there, or its name doesn't end in ``.tar.gz``
        or ``.tgz``.
    """
    if not output.name.endswith((".tar.gz", ".tgz")):
        raise InvalidArgument(f"the archive's name must end in .tar.gz or .tgz; got {output}.")
    new = output.with_name(f".{output.name}.new")
    try:
        with tarfile.open(new, "w:gz", compresslevel=_LEVEL) as archive:
            _Packer(facts, archive).add_all()
        new.replace(output)
    except OSError as error:
        raise InvalidArgument(f"{output} can't be written: {error}.") from error
    finally:
        new.unlink(missing_ok=True)


class _Packer:
    """Adds an environment's files to an archive."""

    def __init__(self, facts: Facts, archive: tarfile.TarFile) -> None:
        self._facts, self._archive = facts, archive
        self._there: set[str] = set()

    def add_all(self) -> None:
        facts = self._facts
        prefix, base = Path(facts.prefix), Path(facts.base)
        self._add_interpreter()
        for folder in map(Path, facts.packages):
            for other in _elsewhere(folder, prefix):  # packages installed from a clone
                self._add_tree(other, folder.relative_to(prefix), skip=_is_hidden)
        for place in sorted(prefix.iterdir()):
            if place.name not in {"pyvenv.cfg", "bin", ".lock", ".gitignore"}:
                self._add_tree(place, Path(place.name))
        for script in sorted((prefix / "bin").iterdir()):
            self._add_script(script)
        for folder in map(Path, facts.standard):
            self._add_tree(folder, folder.relative_to(base), skip=_is_left_out)

    def _add_interpreter(self) -> None:
        facts, name = self._facts, f"python{self._facts.short}"
        self._add(Path(facts.executable).resolve(), Path("bin", name))
        if facts.shared is None or facts.shared_folder is None:
            self._link("bin/python", name)
        else:
            for library in sorted(Path(facts.shared_folder).glob(f"{facts.shared}*")):
                self._add(library.resolve(), Path("lib", library.name))
            # The path of its shared library was set when it was built, and differs on other hosts.
            self._write("bin/python", _WRAPPER.format(name=name).encode(), 0o755)
        self._link("bin/python3", "python")

    def _add_script(self, path: Path) -> None:
        target = f"bin/{path.name}"
        if (
            target in self._there
            or path.is_symlink()
            or path.name.startswith(("activate", "python"))
        ):
            return
        content = path.read_bytes()
        found = _SHEBANG.match(content)
        if found is None:
            self._add(path, Path(target))
        else:
            self._write(target, _HEAD + content[found.end() :], 0o755)

    def _add_tree(self, source: Path, target: Path, skip: Any = None) -> None:
        if not source.is_dir() or source.is_symlink():
            self._add(source, target)
            return
        outside = _outside_paths(Path(self._facts.prefix))
        for folder, folders, names in os.walk(source):
            here = target / Path(folder).relative_to(source)
            if skip is not None:
                folders[:] = [name for name in folders if not skip(name)]
            for name in sorted(names):
                path = Path(folder, name)
                if not (path.suffix == ".pth" and outside(path)):
                    self._add(path, here / name)
            for name in folders:
                if Path(folder, name).is_symlink():
                    self._add(Path(folder, name), here / name)

    def _add(self, source: Path, target: Path) -> None:
        """Add a file or link, unless the archive already has one of that name."""
        name = target.as_posix()
        if name in self._there:
            return
        self._there.add(name)
        inside = source.is_symlink() and not source.readlink().is_absolute()
        self._archive.add(source if inside else source.resolve(), name, recursive=False)

    def _link(self, name: str, to: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, to
        self._there.add(name)
        self._archive.addfile(info)

    def _write(self, name: str, content: bytes, mode: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), mode
        self._there.add(name)
        self._archive.addfile(info, io.BytesIO(content))


#: The head of a script that both a shell and Python can run.
_HEAD: Final = b"""#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/python" "$0" "$@"
'''
"""
_WRAPPER: Final = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="${{here%/bin}}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$here/{name}" "$@"
"""


def _is_left_out(name: str) -> bool:
    return _LEFT_OUT.match(name) is not None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _outside_paths(prefix: Path) -> Any:
    return lambda path: bool(list(_folders_of(path, prefix)))


def _elsewhere(packages: Path, prefix: Path) -> Iterator[Path]:
    """Yield the folders outside an environment that its ``.pth`` files add to the path."""
    for path in sorted(packages.glob("*.pth")):
        yield from _folders_of(path, prefix)


def _folders_of(path: Path, prefix: Path) -> Iterator[Path]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line and not line.startswith(("#", "import ", "import\t")):
            folder = (path.parent / line.strip()).resolve()
            if folder.is_dir() and not folder.is_relative_to(prefix.resolve()):
                yield folder


def settings(archive: str, facts: Facts) -> dict[str, list[str]]:
    """Return the settings that make executors use the archive's Python, by kind of cluster."""
    ours = f"{facts.prefix}/bin/python"
    executors = f"./{FOLDER}/bin/python"
    client = [
        f"export PYSPARK_DRIVER_PYTHON={ours}",
        f"export PYSPARK_PYTHON={executors}",
    ]
    here = f"--conf spark.archives={archive}#{FOLDER}"
    there = f"--conf spark.archives=hdfs:///PATH/{Path(archive).name}#{FOLDER}"
    master = f"--conf spark.yarn.appMasterEnv.PYSPARK_PYTHON={executors}"
    both = f"--conf spark.pyspark.python={executors}"
    return {
        "standalone, and YARN in client mode": [*client, f"spark-submit --master … {here} job.py"],
        "YARN in cluster mode": [
            f"spark-submit --master yarn --deploy-mode cluster {here} {master} job.py",
        ],
        "Kubernetes in client mode": [
            *client,
            f"spark-submit --master k8s://… {here} job.py",
        ],
        "Kubernetes in cluster mode: the archive where the pods can read it": [
            f"spark-submit --master k8s://… --deploy-mode cluster {there} {both} job.py"
        ],
        "a plain Python program": [
            *client[1:],
            f'SparkSession.builder.config("spark.archives", "{archive}#{FOLDER}")',
        ],
    }
