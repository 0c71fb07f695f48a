"""The files that a path, a pattern or a list of them refers to."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyarrow import fs

from gridflow._files.systems import absolute_path, where
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridflow._files.systems import Where

__all__ = ["FoundFile", "Paths", "find"]

#: What users can pass as paths.
Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
_MAGIC: Final = frozenset("*?[")


@dataclass(frozen=True)
class FoundFile:
    """A found file.

    `size`: Bytes.
    `changed`: Modification time in nanoseconds since 1970; 0 if the file system doesn't report it.
    """

    at: Where
    size: int
    changed: int

    @property
    def path(self) -> str:
        """Its path with its scheme; a local one as it is."""
        return self.at.complete(self.at.path)


def find(paths: Any, base: str, filesystem: Any = None) -> list[FoundFile]:
    """Return the files, each once, in the order of their paths.

    `paths` (str, path-like, or sequence of them): Files; folders, including everything below them
        except names that begin with ``_`` or ``.`` (Spark's ``_SUCCESS``); or patterns with ``*``,
        ``?``, ``[…]``, and ``**`` for any depth.
    `base`: The base of relative paths, see `gridflow._files.systems.absolute_path`.
    `filesystem`: See `gridflow._files.systems.where`.
    Raises `InvalidArgument`: There are no such files.
    Raises `GridflowError`: The file system refuses.
    """
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise InvalidArgument(f"a path must be a string or a list of strings; got {paths!r}.")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise InvalidArgument("the list of paths is empty.")
    found: dict[str, FoundFile] = {}
    for path in given:
        complete = absolute_path(path, base)
        at = where(complete, filesystem)
        try:
            files = list(_files(at))
        except OSError as error:
            raise GridflowError(f"can't list {complete}: {error}") from error
        if not files:
            raise InvalidArgument(
                f"no files at {complete} (given as {os.fspath(path)!r})."
                " A folder includes all files below it, except names that begin with _ or . ; a "
                "pattern can contain *, ?, [...] and **."
            )
        found.update((file.path, file) for file in files)
    return [found[path] for path in sorted(found)]


def _files(at: Where) -> Iterator[FoundFile]:
    places: Iterable[str] = [at.path]
    if _MAGIC.intersection(at.path):
        places = sorted(set(_matches(at.system, *_split(at.path))))
    for info in at.system.get_file_info(list(places)):
        if info.type == fs.FileType.File:
            yield _found(at, info)
        elif info.type == fs.FileType.Directory:
            selector = fs.FileSelector(info.path, recursive=True)
            for inner in at.system.get_file_info(selector):
                below = inner.path[len(info.path) :].strip("/").split("/")
                if inner.type == fs.FileType.File and not any(map(_is_hidden, below)):
                    yield _found(at, inner)


def _found(at: Where, info: Any) -> FoundFile:
    return FoundFile(at.at(info.path), int(info.size or 0), int(info.mtime_ns or 0))


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _split(pattern: str) -> tuple[str, list[str]]:
    """Return the folder before the first part with a pattern, and the remaining parts."""
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if _MAGIC.intersection(part))
    return "/".join(parts[:first]) or "/", parts[first:]


def _matches(system: Any, folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths at or below a folder that match the parts of a pattern."""
    if not parts:
        yield folder
        return
    part, rest = parts[0], parts[1:]
    if not _MAGIC.intersection(part):
        yield from _matches(system, f"{folder.rstrip('/')}/{part}", rest)
        return
    if part == "**":
        yield from _matches(system, folder, rest)
    selector = fs.FileSelector(folder, allow_not_found=True)
    for info in sorted(system.get_file_info(selector), key=lambda info: str(info.path)):
        if _is_hidden(info.base_name) and not _is_hidden(part):
            continue
        is_folder = info.type == fs.FileType.Directory
        if part == "**" and is_folder:
            yield from _matches(system, info.path, parts)
        elif part == "**" and not rest:
            yield info.path
        elif part != "**" and fnmatch.fnmatchcase(info.base_name, part) and (is_folder or not rest):
            yield from _matches(system, info.path, rest)
