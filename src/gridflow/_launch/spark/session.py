"""Operations on a Spark session for which it has no public methods."""

from __future__ import annotations

import contextlib
import getpass
import inspect
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from gridflow._files.systems import is_local, scheme_of
from gridflow._spec import jvm
from gridflow._spec.printable import is_terminal
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

#: The maximum number of executors for a standalone master.
_UNLIMITED: Final = (1 << 31) - 1
#: Java's maximum in milliseconds.
_FAR_FUTURE: Final = 1 << 62
#: Of a context's environment.
_environment_lock: Final = threading.Lock()
#: Masters whose executors run on this machine.
_HERE: Final = ("local", "spark://127.", "spark://localhost")


def classic_context(spark: SparkSession) -> Any:
    """Return the SparkContext; None over Spark Connect."""
    return getattr(spark, "_sc", None)


def setting_of(spark: SparkSession, name: str, default: str) -> str:
    """Return a setting of the application; over Spark Connect, of the session.

    A session returns what its builder was given, even if the application already ran with another
    value. And the context's public ``getConf()`` copies all settings, each with a call to the JVM:
    twenty of them took a quarter of a second.
    """
    context = classic_context(spark)
    return str((spark.conf if context is None else context._conf).get(name, default))  # noqa: SLF001


def hide_stage_bar(spark: SparkSession) -> None:
    """Hide Spark's progress bar of stages while a job trains.

    It would be drawn over log lines and our own bar five times a second while the stage runs. It
    has no public switch in a running application, but it waits for half a second after the end of a
    job, whose time it stores; the next end of a job corrects that time.
    """
    context = classic_context(spark)
    if context is None or not is_terminal(sys.stderr):
        return
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):  # a bar isn't worth failing for
        bar = jvm.scala_context(context).progressBar()
        if bar.isDefined():
            last_end = bar.get().getClass().getDeclaredField("lastFinishTime")
            last_end.setAccessible(True)
            last_end.setLong(bar.get(), _FAR_FUTURE)


def refuse_stopped(spark: SparkSession) -> None:
    """Refuse a session that was stopped.

    Raises `InvalidArgument`: This process or Spark has stopped it.
    """
    context = classic_context(spark)
    if context is None:
        return
    java = jvm.java_context(context)
    if java is None or java.sc().isStopped():
        raise InvalidArgument(
            "the SparkSession was stopped. Create a new one (SparkSession.builder…getOrCreate()) "
            "and pass it to the launcher: SparkLauncher(spark)."
        )


def default_folder(spark: SparkSession) -> str:
    """Return the user's folder in Hadoop's default file system; empty if that is local.

    Over Spark Connect, only the session's own setting is visible.
    """
    setting = "fs.defaultFS"
    context = classic_context(spark)
    if context is None:
        system = spark.conf.get(f"spark.hadoop.{setting}", "") or ""
        user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    else:
        system = str(jvm.java_context(context).hadoopConfiguration().get(setting) or "")
        user = str(context.sparkUser())
    if is_local(system):
        return ""
    # Object stores have no home folders: there, paths begin in the bucket.
    home = f"/user/{user}" if scheme_of(system) in {"hdfs", "viewfs"} else ""
    return system.rstrip("/") + home


def task_slots(spark: SparkSession, profile: Any = None) -> int | None:
    """Return how many tasks can run at once; None over Spark Connect, where it is unknown.

    For the default profile, or one that is registered with Spark's profile manager.
    """
    context = classic_context(spark)
    if context is None:
        return None
    scala = jvm.scala_context(context)
    profile = profile or scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def registered_executors(spark: SparkSession) -> int | None:
    """Return how many executors have registered; None over Spark Connect."""
    context = classic_context(spark)
    return None if context is None else executors_of(context)


def executors_of(context: Any) -> int:
    """Return how many executors have registered with a SparkContext."""
    # The driver is counted, too.
    return int(jvm.scala_context(context).getExecutorMemoryStatus().size()) - 1


def ask_for_executors(spark: SparkSession, *, is_dynamic: bool) -> None:
    """Let a standalone cluster start the executors that an application still lacks.

    Its master schedules executors after every event except one: when it has removed those of a
    decommissioned worker (`Master.decommissionWorker`, Spark 4.0 to 4.3). A request is an event.
    Dynamic allocation sends one only when it wants a different number: not if a stage follows the
    last one at once, or if ``minExecutors`` fixes the number.

    `is_dynamic`: Whether dynamic allocation sets the number: then its last request is repeated.
        Otherwise the limit is an application's initial one: only ``spark.cores.max``.
    """
    context = classic_context(spark)
    if context is None or not str(context.master).startswith("spark:"):
        return
    scala = jvm.scala_context(context)
    if is_dynamic:
        scala.requestExecutors(0)
    else:
        nowhere = jvm.classes(context).PythonUtils.toScalaMap({})
        scala.requestTotalExecutors(_UNLIMITED, 0, nowhere)


def replace_executor(spark: SparkSession, executor: str) -> None:
    """Let the cluster manager kill an executor in any state, and start another one.

    Its tasks are lost and retried elsewhere, as Spark itself would do two minutes later
    (``spark.network.timeout``). Over Spark Connect this isn't possible.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError

    context = classic_context(spark)
    if context is None:
        return
    with contextlib.suppress(Py4JError, Py4JNetworkError, OSError, AttributeError):  # Spark will
        jvm.scala_context(context).killAndReplaceExecutor(executor)


def register_profile(spark: SparkSession, profile: Any) -> Any:
    """Return a ``ResourceProfile`` for `task_slots`; None over Spark Connect."""
    context = classic_context(spark)
    if context is None:
        return None
    java = profile._java_resource_profile  # noqa: SLF001 (there is no public way)
    jvm.scala_context(context).resourceProfileManager().addResourceProfile(java)
    return java


def tag_this_thread(spark: SparkSession, tag: str) -> None:
    """Mark the jobs of this thread, for `cancel`.

    With a SparkContext, this doesn't use the session's addTag: since Spark 4.0, only the thread
    that added a tag knows it, and interruptTag in another thread does nothing.
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
    """Let Spark find the session's settings in a thread without an active session.

    Without one, Spark's defaults apply, for example to looking up column names
    (``spark.sql.caseSensitive``).
    """
    sessions = jvm.classes(spark).org.apache.spark.sql.classic.SparkSession
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(jvm.java_session(spark))


def forget_tag(spark: SparkSession, tag: str) -> None:
    """Stop marking jobs of this thread."""
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
    """Return a thread with the caller's Spark properties, which closes its JVM connection."""
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target, session=spark)
    thread.name, thread.daemon = name, True
    return thread


def cancel(spark: SparkSession, tag: str) -> None:
    context = classic_context(spark)
    if context is not None:
        context.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def check_session(spark: object) -> None:
    """Refuse what isn't a session, classic or of Spark Connect.

    Raises `InvalidArgument`: The message names its type.
    """
    if not hasattr(spark, "conf"):
        raise InvalidArgument(f"expected a SparkSession; got a {type(spark).__name__}: {spark!r}.")


def session_of(data: Iterable[object] = ()) -> SparkSession:
    """Return the session of the first DataFrame, or that of this thread or process.

    Raises `InvalidArgument`: There is no session.
    """
    if "pyspark" in sys.modules:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        for rows in data:
            session = getattr(rows, "sparkSession", None)
            if session is not None:
                return session  # type: ignore[no-any-return]
        with contextlib.suppress(PySparkRuntimeError):
            # A thread that didn't create the session has no active one: this uses the default.
            return SparkSession.active()
    raise InvalidArgument(
        "there is no active SparkSession. Create one (SparkSession.builder…getOrCreate()), "
        "or run without Spark: TensorflowDistributor(launcher=LocalLauncher())."
    )


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type as which Python's workers return a type of Spark's."""
    from pyspark.sql.pandas.types import to_arrow_type

    # From Spark 4.2 on, a moment has no type without a time zone.
    takes_zone = "timezone" in inspect.signature(to_arrow_type).parameters
    zone: Any = {"timezone": "UTC"} if takes_zone else {}
    found: pa.DataType = to_arrow_type(kind, **zone)
    return found


def run_this_python_where_it_can(spark: SparkSession | None = None) -> None:
    """Let executors on this machine run this Python, unless the user chose another.

    This applies to a session, by default that of this process.

    PySpark's default is the first ``python3`` on the PATH, which isn't that of a virtual
    environment unless it was activated. The setting stays for the session, so that the model's
    ``predict_udf`` finds its packages, too.
    """
    context = classic_context(spark or session_of())
    chosen = "PYSPARK_PYTHON" in os.environ
    if context is not None and not chosen and str(context.master).startswith(_HERE):
        context.pythonExec = sys.executable


@contextlib.contextmanager
def worker_environment(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the Python workers of functions first used inside the block.

    Spark has separate workers for different variables. Over Spark Connect they can't be set.
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
