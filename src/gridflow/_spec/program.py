"""What the tasks run: a function with its arguments, a script, a command. Checked on the driver.

The modules beside the user's script are shipped, so that tasks can import them: a script can import
modules from its folder, and so can the training function on the same machine, but not on an
executor. So the driver packs that folder's modules and packages, the agent unpacks them, and the
training process finds them before anything that is installed.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import io
import os
import sys
import threading
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import cloudpickle

from gridflow._spec import strategies
from gridflow._spec.command import CommandProgram, make_command, with_commands_of
from gridflow.errors import InvalidArgument, UnpicklableFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from types import ModuleType

    from gridflow._spec.job import JobSpec


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


#: cloudpickle's list of modules to pickle by value is global, and jobs may run in threads.
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class FunctionProgram:
    """A function; its context is passed when its first parameter is named ``ctx``."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    takes_context: bool = False

    def run(self, context: object) -> Any:
        first = (context,) if self.takes_context else ()
        return self.function(*first, *self.args, **self.kwargs)


@dataclass(frozen=True)
class ScriptProgram:
    """A script's text with its command line; it gets `gridflow.current_context()`."""

    name: str
    text: str
    args: tuple[str, ...] = ()
    folder: Path | None = field(default=None, compare=False)

    def run(self, context: object) -> None:  # noqa: ARG002 (the same call for both)
        """Run it as ``__main__`` would."""
        path = Path(self.name).resolve()  # in the task's own working directory
        path.write_text(self.text, encoding="utf-8")
        sys.argv = [str(path), *self.args]
        sys.path.insert(0, str(path.parent))
        main = sys.modules["__main__"]
        main.__dict__.update(__file__=str(path), __name__="__main__", __spec__=None)
        exec(compile(self.text, str(path), "exec"), main.__dict__)  # noqa: S102 (it is the task)


Program: TypeAlias = FunctionProgram | ScriptProgram | CommandProgram


def make_program(
    train_fn: Callable[..., Any] | str | Path | Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Program:
    """Check the user's program and return it in the form that is sent.

    Raises `InvalidArgument`: It isn't a function, a script or a command, or the arguments don't
        match it.
    """
    if isinstance(train_fn, str | Path):
        return _script(Path(train_fn), args, kwargs)
    if isinstance(train_fn, list | tuple):
        return make_command(train_fn, args, kwargs)
    if not callable(train_fn):
        raise InvalidArgument(
            f"train_fn must be a function or the path of a script; got {type(train_fn).__name__}. "
            "Use a list of words with strategy='command'."
        )
    if kind := _deferred(train_fn):
        raise InvalidArgument(
            f"train_fn must be a plain function, as calling {kind} runs nothing of it; wrap it: "
            "asyncio.run(…) in a function without async, or a loop over the generator."
        )
    try:
        signature = inspect.signature(train_fn)
    except (TypeError, ValueError):  # some callables written in C have none
        return FunctionProgram(train_fn, args, kwargs)
    takes_context = next(iter(signature.parameters), None) == "ctx"
    try:
        signature.bind(*((None,) if takes_context else ()), *args, **kwargs)
    except TypeError as error:
        name = getattr(train_fn, "__name__", "train_fn")
        raise InvalidArgument(
            f"the arguments of run() don't match {name}{signature}: {error}. gridflow passes ctx "
            "if the first parameter is named 'ctx'; run() passes on everything else."
        ) from error
    return FunctionProgram(train_fn, args, kwargs, takes_context)


def _deferred(train_fn: Callable[..., Any]) -> str | None:
    """Return what a function is whose body doesn't run when it is called."""
    for function in (train_fn, type(train_fn).__call__):
        if inspect.iscoroutinefunction(function):
            return "an async function"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return "a generator function"
    return None


def _script(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScriptProgram:
    if kwargs:
        raise InvalidArgument(
            f"a script takes no keyword arguments, only a command line; got {', '.join(kwargs)}."
        )
    if not path.is_file():
        raise InvalidArgument(f"no script {str(path)!r} (working directory: {Path.cwd()}).")
    text = path.read_text(encoding="utf-8")
    try:
        compile(text, str(path), "exec")
    except SyntaxError as error:
        raise InvalidArgument(f"{path} isn't a valid Python script: {error}") from error
    return ScriptProgram(path.name, text, tuple(str(each) for each in args), path.parent.resolve())


def for_job(program: Program, spec: JobSpec, datasets: Collection[str]) -> Program:
    """Return the program as a job runs it.

    Raises `InvalidArgument`: The job's strategy or options don't support this kind of program.
    """
    training = spec.training
    if training.programs.classic_flags and isinstance(program, FunctionProgram):
        raise InvalidArgument(
            "Programs(classic_flags=True) adds flags to the command line of a script; a function "
            "gets the same from its first parameter: ctx.cluster_spec, ctx.task."
        )
    if isinstance(program, CommandProgram) is not strategies.of(training.strategy).runs_programs:
        got = "words" if isinstance(program, CommandProgram) else "a function or script"
        raise InvalidArgument(
            "strategy='command' runs a list of words, such as ['python', 'train.py'], and no other "
            f"strategy does; got {got} under strategy={training.strategy!r}."
        )
    if not isinstance(program, CommandProgram):
        return program
    if datasets:
        raise InvalidArgument("data= is only for functions and scripts; a command must read files.")
    return with_commands_of(program, spec.roles)


def folder_of(program: Program) -> Path | None:
    """Return the folder from which the program can import modules in the driver."""
    if isinstance(program, CommandProgram):
        return None
    return program.folder if isinstance(program, ScriptProgram) else script_folder()


def dump(program: Program) -> bytes:
    """Pickle it, with the modules beside the user's script by value, as tasks can't import them.

    Raises `UnpicklableFunction`: With the name of the captured object that can't be pickled, if it
        can be found.
    """
    try:
        return dump_by_value(program)
    except Exception as error:
        culprits = [
            f"{where} ({type(value).__name__})"
            for where, value in _captured(program)
            if not _picklable(value)
        ]
        which = f" What can't be pickled: {', '.join(culprits)}." if culprits else ""
        raise UnpicklableFunction(
            f"the training function can't be sent to the tasks: {type(error).__name__}: {error}"
            f"{which} Create it inside the function, or pass DataFrames with data=."
        ) from error


def dump_by_value(value: object) -> bytes:
    """Pickle an object, with the modules beside the user's script by value."""
    with _lock, _by_value(_modules_beside_the_script()), io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also pickles functions with a cache by value, of which cloudpickle writes only the names."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is reconstructed."""
        if isinstance(obj, _Cached) and _is_by_value(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


_Cached: Final = type(functools.lru_cache(int))


def _is_by_value(function: Any) -> bool:
    module = str(function.__module__)
    names = ("__main__", *cloudpickle.list_registry_pickle_by_value())
    is_sent = any(module == name or module.startswith(f"{name}.") for name in names)
    return is_sent or "<locals>" in function.__qualname__


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return found


def _modules_beside_the_script() -> list[ModuleType]:
    """Return the imported modules in the folder of the script or notebook."""
    root = script_folder()
    beside: list[ModuleType] = []
    if root is None:
        return beside
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name == "__main__" or name.partition(".")[0] == "gridflow":
            continue
        path = Path(file)
        if path.is_relative_to(root) and not INSTALLED.intersection(path.parts):
            beside.append(module)
    return beside


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    new = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _captured(program: Program) -> Iterator[tuple[str, Any]]:
    if not isinstance(program, FunctionProgram):
        return
    for position, value in enumerate(program.args):
        yield f"argument {position + 1}", value
    for name, value in program.kwargs.items():
        yield f"argument {name!r}", value
    try:
        names = inspect.getclosurevars(program.function)
    except TypeError:
        return
    for name, value in {**names.nonlocals, **names.globals}.items():
        yield f"the captured variable {name!r}", value


def _picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 (any reason will do)
        return False
    return True
