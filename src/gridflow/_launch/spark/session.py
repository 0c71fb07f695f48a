"""What is done to a Spark session by other means than its public methods: there are none for it."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from gridflow._files.systems import is_local, scheme_of
from gridflow._spec.printable import is_terminal
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

#: Of executors, as a standalone master counts them.
_UNLIMITED: Final = (1 << 31) - 1
#: In Java's milliseconds.
_FAR_FUTURE: Final = 1 << 62
#: Of a context's environment.
_environment_lock: Final = threading.Lock()
#: Masters whose executors run on this machine.
_HERE: Final = ("local", "spark://127.", "spark://localhost")


def classic_context(spark: SparkSession) -> Any:
    """Return the SparkContext; None over Spark Connect."""
    return getattr(spark, "_sc", None)


def setting_of(spark: SparkSession, name: str, default: str) -> str:
    """Return a setting of the application; over Spark Connect of the session.

    A session says of an application's setting what its builder was given, even where it found one
    that ran already. And the context's public ``getConf()`` copies all settings, each by a call to
    the JVM: twenty of them took a quarter of a second.
    """
    context = classic_context(spark)
    return str((spark.conf if context is None else context._conf).get(name, default))  # noqa: SLF001


def hide_stage_bar(spark: SparkSession) -> None:
    """Keep Spark's bar of stages from a terminal while a job trains.

    It would be drawn over log lines and our own bar five times a second for as long as the stage
    lasts. Nothing public turns it off in a running application, but it waits for half a second
    after the end of a job, of which it keeps the time; the next end of a job sets that right again.
    """
    context = classic_context(spark)
    if context is None or not is_terminal(sys.stderr):
        return
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):  # a bar is no reason to fail
        bar = context._jsc.sc().progressBar()  # noqa: SLF001 (there is no public way)
        if bar.isDefined():
            last_end = bar.get().getClass().getDeclaredField("lastFinishTime")
            last_end.setAccessible(True)
            last_end.setLong(bar.get(), _FAR_FUTURE)


def refuse_stopped(spark: SparkSession) -> None:
    """Refuse a session that can run nothing any more.

    Raises
    ------
    InvalidArgument
        It was stopped, by this process or by Spark.
    """
    context = classic_context(spark)
    if context is None:
        return
    java = context._jsc  # noqa: SLF001 (there is no public way)
    if java is None or java.sc().isStopped():
        raise InvalidArgument(
            "the SparkSession was stopped. Create a new one (SparkSession.builder…getOrCreate()) "
            "and pass it to the launcher: SparkLauncher(spark)."
        )


def default_folder(spark: SparkSession) -> str:
    """Return the user's folder in Hadoop's default file system; empty where that is local.

    Over Spark Connect only the session's own setting tells what it is.
    """
    setting = "fs.defaultFS"
    context = classic_context(spark)
    if context is None:
        system = spark.conf.get(f"spark.hadoop.{setting}", "") or ""
        user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    else:
        system = str(context._jsc.hadoopConfiguration().get(setting) or "")  # noqa: SLF001
        user = str(context.sparkUser())
    if is_local(system):
        return ""
    # Object stores know no users: there a path begins in the bucket.
    home = f"/user/{user}" if scheme_of(system) in {"hdfs", "viewfs"} else ""
    return system.rstrip("/") + home


def task_slots(spark: SparkSession, profile: Any = None) -> int | None:
    """Return how many tasks can run at once; None over Spark Connect, which doesn't tell.

    Of the default profile, or of one that Spark's manager of profiles knows.
    """
    context = classic_context(spark)
    if context is None:
        return None
    scala = context._jsc.sc()  # noqa: SLF001 (there is no public way)
    profile = profile or scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def registered_executors(spark: SparkSession) -> int | None:
    """Return how many executors have registered; None over Spark Connect."""
    context = classic_context(spark)
    if context is None:
        return None
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001 (the driver is counted)


def ask_for_executors(spark: SparkSession, *, is_dynamic: bool) -> None:
    """Let a standalone cluster start the executors that an application still lacks.

    Its master looks for room after each event but one: when it has taken executors back from a
    worker that is decommissioned (`Master.decommissionWorker`, Spark 4.0 to 4.3). A request is an
    event. Dynamic allocation sends one only where it wants another number than before, so where a
    stage follows the last one at once, or ``minExecutors`` keeps the number, none.

    Parameters
    ----------
    spark : SparkSession
    is_dynamic : bool
        Whether dynamic allocation says how many there are to be: what it last said is said again.
        Else the limit is the one that an application begins with: none but ``spark.cores.max``.
    """
    context = classic_context(spark)
    if context is None or not str(context.master).startswith("spark:"):
        return
    scala = context._jsc.sc()  # noqa: SLF001 (there is no public way)
    if is_dynamic:
        scala.requestExecutors(0)
    else:
        nowhere = context._jvm.PythonUtils.toScalaMap({})  # noqa: SLF001 (there is no public way)
        scala.requestTotalExecutors(_UNLIMITED, 0, nowhere)


def replace_executor(spark: SparkSession, executor: str) -> None:
    """Let the cluster manager end an executor, however it stands, and start another one.

    Its tasks are lost, and tried again elsewhere, as Spark does it two minutes later
    (``spark.network.timeout``). Over Spark Connect there is no way to ask for it.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError

    context = classic_context(spark)
    if context is None:
        return
    with contextlib.suppress(Py4JError, Py4JNetworkError, OSError, AttributeError):  # Spark will
        context._jsc.sc().killAndReplaceExecutor(executor)  # noqa: SLF001 (there is no public way)


def register_profile(spark: SparkSession, profile: Any) -> Any:
    """Return a ``ResourceProfile`` as `task_slots` takes it; None over Spark Connect."""
    context = classic_context(spark)
    if context is None:
        return None
    java = profile._java_resource_profile  # noqa: SLF001 (there is no public way)
    context._jsc.sc().resourceProfileManager().addResourceProfile(java)  # noqa: SLF001
    return java


def tag_this_thread(spark: SparkSession, tag: str) -> None:
    """Mark the jobs of this thread, for `cancel`.

    Not by the session's addTag where there is a SparkContext: since Spark 4.0 its tags are known
    to the thread alone that added them, and interruptTag in another thread does nothing.
    """
    from gridflow._feed.ingest.packing import see_added_jars

    context = classic_context(spark)
    if context is not None:
        context.addJobTag(tag)
        see_added_jars(spark)
        _have_settings(spark)
    else:
        spark.addTag(tag)


def _have_settings(spark: SparkSession) -> None:
    """Let Spark look up settings in the session, in a thread that has none yet.

    Without one, a column's name is looked up by Spark's defaults, for example
    (``spark.sql.caseSensitive``).
    """
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]  # noqa: SLF001 (there is no public way)
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def forget_tag(spark: SparkSession, tag: str) -> None:
    """Mark further jobs of this thread no more."""
    context = classic_context(spark)
    if context is not None:
        context.removeJobTag(tag)
    else:
        spark.removeTag(tag)


def name_this_thread(spark: SparkSession, name: str) -> None:
    """Name the stages and jobs of this thread, where Spark shows them."""
    context = classic_context(spark)
    if context is not None:
        context.setLocalProperty("callSite.short", name)
        context.setLocalProperty("spark.job.description", name)


def make_thread(spark: SparkSession, target: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread with the caller's Spark properties, which closes its line to the JVM."""
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target, session=spark)
    thread.name, thread.daemon = name, True
    return thread


def cancel(spark: SparkSession, tag: str) -> None:
    """Cancel all jobs with a tag."""
    context = classic_context(spark)
    if context is not None:
        context.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def session_of(data: Iterable[object] = ()) -> SparkSession:
    """Return the session of the first DataFrame, else the one of this thread or this process.

    Raises
    ------
    InvalidArgument
        There is none.
    """
    if "pyspark" in sys.modules:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        for rows in data:
            session = getattr(rows, "sparkSession", None)
            if session is not None:
                return session  # type: ignore[no-any-return]
        with contextlib.suppress(PySparkRuntimeError):
            # A thread that didn't make the session has no active one: this takes the default.
            return SparkSession.active()
    raise InvalidArgument(
        "there is no active SparkSession. Create one (SparkSession.builder…getOrCreate()), "
        "or run without Spark: TensorflowDistributor(launcher=LocalLauncher())."
    )


def run_this_python_where_it_can(spark: SparkSession | None = None) -> None:
    """Let executors on this machine run this Python, unless the user chose another.

    Of a session; by default that of this process.

    PySpark's default is the first ``python3`` of the PATH, which is not the one of a virtual
    environment that was not activated. It holds for the session from now on, so that the model's
    ``predict_udf`` finds its packages, too.
    """
    context = classic_context(spark or session_of())
    chosen = "PYSPARK_PYTHON" in os.environ
    if context is not None and not chosen and str(context.master).startswith(_HERE):
        context.pythonExec = sys.executable


@contextlib.contextmanager
def worker_environment(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Give variables to the Python workers of functions that are used for the first time herein.

    Spark keeps workers of other variables apart. Over Spark Connect there is no way to say any.
    """
    context = classic_context(spark)
    if context is None:
        yield
        return
    with _environment_lock:
        before = dict(context.environment)
        context.environment.update(variables)
        try:
            yield
        finally:
            context.environment.clear()
            context.environment.update(before)
