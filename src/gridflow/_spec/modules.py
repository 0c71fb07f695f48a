"""The modules beside the user's script, which are shipped so that tasks can import them.

A script can import modules from its folder, and so can the training function on the same machine,
but not on an executor. So the driver packs that folder's modules and packages, the agent unpacks
them, and the training process finds them before anything that is installed.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import warnings
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pack", "script_folder", "unpack", "use"]

#: Parts of the path of an installed module, which the tasks have, or should have.
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_MOST_BYTES: Final = 20 << 20
_MOST_FILES: Final = 2_000
#: Besides modules, a package may contain small files that it reads. Larger ones are data.
_MOST_BYTES_OF_DATA: Final = 1 << 20
_MODULES: Final = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
_IGNORED: Final = frozenset({"__pycache__", "node_modules", *INSTALLED})


def script_folder() -> Path | None:
    """Return the first folder on Python's path: the script's or notebook's.

    None for an installed program, such as pytest.
    """
    first = sys.path[0] if sys.path else ""
    if hasattr(builtins, "__IPYTHON__") and "" in sys.path:
        first = ""  # IPython keeps PYTHONPATH and Python's own folders before it
    elif not Path(first or ".").is_dir():  # an archive of Python's own
        if "" not in sys.path:
            return None
        first = ""
    folder = Path(first).resolve()
    is_installed = INSTALLED.intersection(folder.parts) or folder == Path(sys.executable).parent
    return None if is_installed else folder


def pack(folder: Path | None) -> bytes:
    """Return the modules of a folder as an archive; empty if there are none or too many.

    It contains modules, packages and small other files in packages.
    """
    if folder is None:
        return b""
    files, size = [], 0
    for path in _importable(folder, set()):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            size += path.stat().st_size
            files.append(path)
        if len(files) > _MOST_FILES or size > _MOST_BYTES:
            warnings.warn(
                f"the modules in {folder} are not sent to the tasks: there are more than "
                f"{_MOST_FILES:,} files or {_MOST_BYTES >> 20} MiB. Put the script and what it "
                "imports into a separate folder, or ship what the tasks import with "
                "--py-files.",
                stacklevel=2,
            )
            return b""
    if not files:
        return b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as archive:
        archive.comment = os.fsencode(folder)
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack what `pack` made, unless this process can import from the original folder."""
    with zipfile.ZipFile(archive) as packed:
        if os.fsdecode(packed.comment) not in sys.path:
            packed.extractall(folder)  # it removes ".." and roots from names


def use(folder: str) -> None:
    """Let this process, and Pythons that it starts, import the unpacked modules, if any."""
    if not Path(folder).is_dir():
        return
    sys.path.insert(1, folder)  # after the working directory
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}:{others}" if others else folder


def _importable(folder: Path, seen: set[Path], package: bool = False) -> Iterator[Path]:
    """Yield the files below a folder that are modules, or belong to a package."""
    real = folder.resolve()
    if real in seen or real == Path(__file__).parent:
        return
    seen.add(real)
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        if path.name in _IGNORED or path.name.startswith("."):
            continue
        if path.is_dir():
            is_package = package or (path / "__init__.py").is_file()
            if is_package or _is_namespace(path):
                yield from _importable(path, seen, is_package)
        elif path.is_file() and os.access(path, os.R_OK):
            is_module = path.name.endswith(_MODULES)
            if is_module or (package and path.stat().st_size <= _MOST_BYTES_OF_DATA):
                yield path


def _is_namespace(path: Path) -> bool:
    """Return whether a folder without ``__init__.py`` contains importable modules."""
    if not path.name.isidentifier() or (path / "pyvenv.cfg").exists():
        return False
    try:
        return any(each.name.endswith(".py") for each in path.iterdir())
    except OSError:
        return False
