"""The training process: set up the runtime, run the function, send its result.

Run by the agent as ``python -m gridflow._training.main``.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
import traceback
import warnings
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gridflow._spec import program
from gridflow._spec.cluster import DISPATCHER, Task, facts_of
from gridflow._spec.network import past_proxies
from gridflow._spec.option_groups import DATA_SERVICE
from gridflow._spec.printable import shortened
from gridflow._training import output, process, tensorflow_server
from gridflow._training.inbox import Inbox
from gridflow._wire.channel import CHANNEL_VARIABLE, PRELOAD_VARIABLE, Channel
from gridflow._wire.child import Hello, Leave, Raised, Returned, Setup
from gridflow._wire.failures import LONGEST_SUMMARY, LONGEST_TRACEBACK, hint_for
from gridflow._wire.reports import Ready
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from gridflow._wire.failures import FailureKind


def main() -> None:
    """Run one generation of one task."""
    channel, work_dir = Channel.inherited(int(os.environ.pop(CHANNEL_VARIABLE))), Path.cwd()
    channel.send(Hello(os.getpid()))
    faulthandler.enable()
    inbox = Inbox(channel)
    try:
        code = _live(channel, inbox, work_dir)
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            _say_what_goes(work_dir)
            _raised(channel, error, f"the function called sys.exit({error.code!r})", code)
    except BaseException as error:  # noqa: BLE001 (a KeyboardInterrupt of the function's own, too)
        code = 1
        _say_what_goes(work_dir)
        _raised(channel, error, _summary(error), None)
    _leave(code)


def _preload() -> str | None:
    """Import what this process needs in any case; return the module's name."""
    preload = os.environ.pop(PRELOAD_VARIABLE, None)
    if preload is not None:
        with _without_banner(), _without_collections():
            importlib.import_module(preload)
    return preload


def _live(channel: Channel, inbox: Inbox, work_dir: Path) -> int:
    preload = _preload()
    # Keras warns for every distributed dataset, whatever was passed.
    warnings.filterwarnings("ignore", message="`shuffle=True` was passed", module="keras")
    setup = inbox.wait(Setup)
    everyone = (each for addresses in setup.addresses.values() for each in addresses)
    os.environ.update(past_proxies(os.environ, everyone))
    if setup.tf_config is not None:
        os.environ["TF_CONFIG"] = setup.tf_config
    if dispatcher := setup.addresses.get(DISPATCHER):
        os.environ[DATA_SERVICE] = dispatcher[0]
    if facts_of(Task.parse(setup.task).role).is_data_service:
        from gridflow._training import data_server

        return data_server.serve(setup, channel, inbox)
    if not setup.runs_function:
        return tensorflow_server.serve(setup, channel, inbox)
    inbox.leaves_at_once = setup.serves
    from gridflow._keras import results
    from gridflow._keras.patches import registry
    from gridflow._training.context import make_context
    from gridflow._training.runtime import TaskRuntime

    runtime = TaskRuntime(setup, channel, inbox)
    ctx, mode = make_context(runtime), runtime.mode
    mode.begin()
    # Not earlier: many probes look at the group, and a warm process has imported Keras already.
    registry.apply()
    channel.send(Ready())
    program.use(setup.modules)
    refuse()
    loaded = _load(Path(setup.function))
    if setup.spec.training.programs.classic_flags:
        loaded = tensorflow_server.with_flags(loaded, ctx.cluster_spec, ctx.task)
    try:
        value = _run(loaded, ctx)
    except BaseException:
        runtime.writer.settle()  # saving the checkpoint before a failure is worth some seconds
        raise
    folder = Path(setup.results)
    backend = runtime.training.backend
    # The next process on this host starts with it.
    imported = [backend] if preload is None and backend in sys.modules else []
    group = mode.strategy if runtime.facts.exchanges_gradients else None
    # The return value of a task without a rank, a server or an evaluator, isn't used.
    result = results.pack(value if ctx.rank >= 0 else None, folder, ctx.is_chief, group)
    runtime.close()
    runtime.agreement.leave()
    if runtime.stream is not None and not runtime.facts.hands_out_steps:  # else the chief counts
        runtime.stream.give_up()
    _say_what_goes(work_dir)
    output.flush()
    is_sent = channel.send(Returned(result, str(folder), imported))
    if not is_sent:  # if the agent had died, so had this process
        raise GridflowError(
            "the result can't be sent: the training function has closed file descriptors that it "
            "didn't open, as os.closerange() does."
        )
    inbox.wait(Leave)  # leave together: a peer that is still working may need this process
    mode.end()
    return 0


def _run(program: Any, ctx: Any) -> Any:
    process = os.getpid()
    try:
        value = program.run(ctx)
    except BaseException as error:
        if os.getpid() != process:
            _end_child(error)
        if isinstance(error, SystemExit) and not _exit_code(error):
            return None
        raise
    if os.getpid() != process:
        _end_child(None)
    return value


def _end_child(error: BaseException | None) -> NoReturn:
    """End a process that the function has forked and let run on: it isn't the task.

    It ends as Python would end it, but without exit handlers: those are the training process's.
    """
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = _exit_code(error)
    elif error is not None:
        output.write("stderr", _traceback(error))
    output.leave(code)


@contextlib.contextmanager
def _without_banner() -> Iterator[None]:
    """Suppress what TensorFlow's libraries print while loading, unless loading fails.

    They print lines about processor features on every rank, before a log level can be set.
    """
    with tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(real, held.read())
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection while modules are loaded, and exempt their objects later.

    Modules create hundreds of thousands of permanent objects; collecting takes a seventh of the
    time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _load(path: Path) -> Any:
    import cloudpickle

    from gridflow._files.local import open_own

    # The file came over the agent's mutually authenticated connection.
    with open_own(path) as file:
        return cloudpickle.load(file)


def _say_what_goes(folder: Path) -> None:
    """Print the user's files that are deleted with the task."""
    with contextlib.suppress(OSError):  # the function may have deleted its folder itself
        script = getattr(sys.modules["__main__"], "__file__", None)
        words = process.describe(folder.resolve(), script)
        output.write("stdout", f"{words}\n" if words else "")


def _raised(channel: Channel, error: BaseException, summary: str, exit_code: int | None) -> None:
    text = _traceback(error)
    output.write("stderr", text)
    summary = shortened(summary, LONGEST_SUMMARY)
    text = shortened(text, LONGEST_TRACEBACK)
    hint, consequence = hint_for(type(error).__name__, text)
    raised = Raised(
        summary=summary,
        traceback=text,
        exit_code=exit_code,
        hint=hint,
        consequence=consequence,
        failure_kind=_kind_of(error),
    )
    channel.send(raised)


def _kind_of(error: BaseException) -> FailureKind | None:
    """Return the failure kind of one of gridflow's own errors."""
    from gridflow._keras.patches.private_parts import MissingPart
    from gridflow._spec.exits import kind_of

    return "environment" if isinstance(error, MissingPart) else kind_of(error)


def _traceback(error: BaseException) -> str:
    """Return the traceback starting at the user's function."""
    frames = error.__traceback__
    ours = str(Path(__file__).parent.parent)
    while (
        frames is not None
        and frames.tb_next is not None
        and frames.tb_frame.f_code.co_filename.startswith(ours)
        and Path(frames.tb_frame.f_code.co_filename).name in {"main.py", "program.py"}
    ):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


#: What an operation of a graph said, or a Python function raised that TensorFlow called: the first
#: line says only where.
_IN_A_GRAPH: Final = re.compile(
    r"^Graph execution error.*?(?:^(?P<raised>\w+: [^\n]+)\s+^Traceback \(most recent call last\):"
    r"|^(?P<said>[^\n]+)\n\s+\[\[\{\{node)",
    re.MULTILINE | re.DOTALL,
)


def _summary(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except BaseException:  # noqa: BLE001 (a __str__ of the user's may raise anything)
        text = "<exception str() failed>"  # as in Python's tracebacks
    inside = _IN_A_GRAPH.search(text)
    if inside:
        first = (inside["raised"] or inside["said"]).strip()
    else:
        first = text.splitlines()[0] if text else ""
    if _kind_of(error) == "environment":
        return first
    return f"the function raised {type(error).__name__}: {first}"


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF or int(error.code != 0)  # 256 isn't success
    output.write("stderr", f"{error.code}\n")
    return 1


def _leave(code: int) -> None:
    """Exit as Python does, but without waiting for TensorFlow's threads and destructors."""
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 (the only way to run them before os._exit)
    finally:
        with contextlib.suppress(Exception):  # of the function's own handlers
            logging.shutdown()
        output.leave(code)


# Prevent Spark inside the training function: it would silently start in each task.

_MODULE: Final = "pyspark.core.context"
#: Spark's own setting to allow a SparkContext inside a task.
_ALLOW: Final = "spark.executor.allowSparkContext"


def refuse() -> None:
    """Make creating a SparkContext an error in this process, without importing Spark."""
    if _MODULE in sys.modules:
        _guard(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Waits for the import of the module to change."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 (importlib's signature)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the module's own spec, with the change applied after loading."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(  # type: ignore[method-assign]
                _execute, spec.loader.exec_module
            )
        return spec


def _execute(really: Any, module: ModuleType) -> None:
    really(module)
    _guard(module)


def _guard(module: ModuleType) -> None:
    context: Any = module.SparkContext
    begin = context.__init__

    @functools.wraps(begin)
    def refusing(self: Any, *args: Any, **kwargs: Any) -> None:
        conf = kwargs.get("conf")
        if conf is None or str(conf.get(_ALLOW, "false")).lower() != "true":
            raise GridflowError(
                "Spark can't be used inside the training function, which runs in a process beside "
                "an executor: a SparkSession created here would start another Spark in every task. "
                "Read data before run(): pass DataFrames with data=, and values as arguments. Or "
                f"let TensorFlow or pyarrow read files here. ({_ALLOW}=true lifts this.)"
            )
        begin(self, *args, **kwargs)

    context.__init__ = refusing


if __name__ == "__main__":
    main()
