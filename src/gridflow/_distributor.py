"""`TensorflowDistributor`: the class that users start with."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec import backends, strategies
from gridflow._spec.arguments import (
    check_command_options,
    check_distribution,
    check_run_id,
    check_shared_gpus,
    named_datasets,
    patched,
    roles_of,
    says_what_moved,
    service_of,
    sizes_of,
)
from gridflow._spec.gpus import GpuOptions, describe
from gridflow._spec.job import JobSpec, Role, default_strategy, gpus_of, make_tasks
from gridflow._spec.network import Network
from gridflow._spec.option_checks import (
    LOG_CHOICES,
    START_TIMEOUT,
    LogChoice,
    boolean,
    choose,
    option_group,
    path,
    read_environment,
    time_limit,
    whole_number,
)
from gridflow._spec.option_groups import (
    Deadlines,
    Distribution,
    HostOptions,
    LaunchOptions,
    Programs,
    Spool,
    TensorBoard,
    TrainingOptions,
)
from gridflow.errors import NotEnoughSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._coordinator.folders import Claim
    from gridflow._coordinator.observing import Observer
    from gridflow._coordinator.policies import Restarts
    from gridflow._feed.encodings import Form
    from gridflow._handle import JobHandle
    from gridflow._launch.base import Launcher, Placement
    from gridflow._result import Result
    from gridflow._spec.backends import Backend
    from gridflow._spec.cluster import Task
    from gridflow._spec.plan import Plan
    from gridflow._spec.strategies import Strategy

#: What ``keras.utils.set_random_seed`` takes.
_MAX_SEED: Final = 2**32 - 1
#: ``max_replacements`` where workers come and go, if the user gives no other limit.
_MOST_CHANGES: Final = 100


class TensorflowDistributor:
    """Run a training function on several workers of a Spark cluster, or of this machine.

    Parameters
    ----------
    num_workers : int or tuple of int, default 1
        Number of workers, each a process of its own. Short for
        ``roles=[Role("worker", num_workers)]``. With the least and the most, ``(2, 8)``, the job
        starts with as many of them as Spark has slots for, trains on without those that are lost
        until they are back, and takes more once there are slots; see ``docs/failure.md``.
    strategy : str, optional
        How the tasks train.

        - ``"multi_worker_mirrored"`` (default for several workers): one model; workers average
          their gradients in each step.
        - ``"mirrored"``: one worker with several GPUs, for tf_keras and loops of your own.
        - ``"none"`` (default for one worker): a model for each worker, trained on its share of the
          rows.
        - ``"parameter_server"`` (default with the role ``ps``): one model on parameter servers,
          which workers train asynchronously.
        - ``"server"``: a TensorFlow server in each task, for classic distributed programs.
        - ``"command"`` (default if a role has a command): a program of its own in each task.
    roles : sequence of Role, optional
        The tasks by role, instead of ``num_workers``: ``[Role("worker", 4), Role("ps", 2)]``. See
        ``docs/distribution.md``.
    gpus : int or float, optional
        GPUs of each worker. A fraction shares a GPU: with 0.25, four workers use one, each with a
        quarter of its memory. 0 hides all GPUs. Default: Spark's task resources, or none. With
        ``roles``, set it there: ``Role("worker", 4, gpus=1)``. See ``docs/gpus.md``.
    backend : {'tensorflow', 'jax', 'torch'}, default 'tensorflow'
        The backend of Keras 3. JAX and torch support the strategies ``multi_worker_mirrored`` and
        ``none``. See ``docs/backends.md``.
    launcher : Launcher or str, optional
        What starts the tasks: `SparkLauncher` (``"spark"``), `LocalLauncher` (``"local"``, on this
        machine, without Spark), or a launcher of another package by its name (entry points of the
        group ``gridflow.launchers``). Default: Spark, with the session of the data or the active
        one.
    seed : int, optional
        Seed from 0 to 2**32 - 1, for shuffling and for ``keras.utils.set_random_seed``, which is
        called before the function.
    env : dict, optional
        Environment variables of the training processes: ``{"TF_CPP_MIN_LOG_LEVEL": "2"}``.
    data_service : str, optional
        Address ``"host:port"`` of a tf.data service's dispatcher, for ``ctx.data_service``.
        Default: the job's own, if it has the role ``data``. See ``docs/data_service.md``.
    max_restarts : int, default 0
        How often to restart after a failure, from the last checkpoint.
    checkpoint_dir : str or Path, optional
        Where to keep checkpoints: a folder on the driver's machine, or in HDFS or an object store,
        such as ``"hdfs:///models/flights"``. A run resumes from the checkpoint that it finds
        there, and deletes its checkpoints when it succeeds. Only one job at a time can use the
        folder. Default: the job's own folder. See ``docs/files.md``.
    checkpoint_every : int, optional
        Number of steps between checkpoints of ``ctx.callbacks()``. Default: one at the end of each
        epoch.
    nulls : {'error', 'drop'} or dict, default 'error'
        How to handle nulls in the rows. ``'error'``: ``ctx.dataset()`` raises an error if a column
        that it reads has nulls. ``'drop'``: drop rows with a null in any column; the ledger counts
        them. A dict fills them, by column: ``{"age": 0, "name": ""}``.
    columns : dict of str to Padded, Ragged, Sparse or Keys, optional
        How columns of variable length become tensors: ``{"tokens": Padded(128)}``. See
        ``docs/rows.md``.
    job_dir : str or Path, optional
        Folder on the driver's machine for logs, results and event files; each job gets a folder in
        it. Default: the temporary folder.
    run_id : str, optional
        Name of the run, such as an Airflow run id; needs `job_dir`. Runs are idempotent by it: if
        the run with this name has succeeded, its result is returned and nothing is launched;
        if it has failed or its driver was killed, it resumes from its checkpoints. See
        ``docs/outcomes.md``.
    tensorboard : bool or TensorBoard, default False
        Serve TensorBoard on the chief's host and print its URL. ``TensorBoard(copy_to=…)`` also
        copies the event files to another file system.
    logs : {'all', 'chief', 'none'}, default 'all'
        Whose output to print. ``job_dir`` keeps the output of all tasks.
    progress : bool, default True
        Show a progress bar.
    observers : list of Observer or str, optional
        What else is told in the driver how the job goes: ``[Notify(url=…)]``. See
        ``docs/observers.md``.
    start_timeout : float, default 300
        Seconds that all tasks have to register, and again to come up. Under dynamic allocation,
        each new executor restarts the first period.
    deadlines : Deadlines, optional
        Time limits of the running job: for heartbeats, steps, shutdown and the whole run.
    restarts : Restarts, optional
        Which failures to restart after, and how often to move away from executors that are being
        decommissioned.
    gpu_options : GpuOptions, optional
        How much GPU memory a task may use.
    distribution : Distribution, optional
        How workers exchange gradients, and how variables are split over parameter servers.
    programs : Programs, optional
        Options of scripts and commands: flags of classic programs, and gridflow's patches.
    spool : Spool, optional
        Where hosts store rows, and how many pushed rows may wait there.
    launch_options : LaunchOptions, optional
        How to launch tasks and what to keep afterwards: warm processes, Spark's slots, folders.
    network : Network, optional
        Where the driver listens, and under which address executors reach it.

    Raises
    ------
    InvalidArgument
        With what was given, and what is allowed.

    Examples
    --------
    >>> from gridflow import LocalLauncher, TensorflowDistributor
    >>> def whoami(ctx):
    ...     return ctx.num_workers
    >>> distributor = TensorflowDistributor(2, strategy="none", launcher=LocalLauncher())
    >>> distributor.run(whoami).value
    2
    """

    @says_what_moved
    def __init__(
        self,
        num_workers: int | tuple[int, int] | None = None,
        strategy: Strategy | None = None,
        *,
        roles: Sequence[Role] | None = None,
        gpus: float | None = None,
        backend: Backend = "tensorflow",
        launcher: Launcher | str | None = None,
        seed: int | None = None,
        env: Mapping[str, str] | None = None,
        data_service: str | None = None,
        max_restarts: int = 0,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every: int | None = None,
        nulls: str | Mapping[str, Any] = "error",
        columns: Mapping[str, Form] | None = None,
        job_dir: str | Path | None = None,
        run_id: str | None = None,
        tensorboard: bool | TensorBoard = False,
        logs: LogChoice = "all",
        progress: bool = True,
        observers: Sequence[Observer | str] = (),
        start_timeout: float = START_TIMEOUT,
        deadlines: Deadlines | None = None,
        restarts: Restarts | None = None,
        gpu_options: GpuOptions | None = None,
        distribution: Distribution | None = None,
        programs: Programs | None = None,
        spool: Spool | None = None,
        launch_options: LaunchOptions | None = None,
        network: Network | None = None,
    ) -> None:
        from gridflow._coordinator.observing import observers_of
        from gridflow._coordinator.policies import Restarts
        from gridflow._feed.normalize import FeedOptions
        from gridflow._launch.base import launcher_of

        distribution = option_group("distribution", distribution, Distribution)
        programs = option_group("programs", programs, Programs)
        gpu_options = option_group("gpu_options", gpu_options, GpuOptions)
        board = TensorBoard.of(tensorboard)
        least, workers = sizes_of(num_workers)
        roles = roles_of(workers, roles, gpus)
        name: str = strategy or default_strategy(roles)
        choose("strategy", name, strategies.STRATEGIES)
        tasks = make_tasks(roles, name)
        check_command_options(
            name,
            roles,
            {
                "seed": seed is not None,
                "checkpoint_every": checkpoint_every,
                "tensorboard": board.serve,
                "gpu_options": gpu_options.memory,
            },
        )
        environment = read_environment("env=", {} if env is None else env)
        environment |= patched(name, patches=programs.patches)
        environment |= service_of(data_service, roles)
        for role in roles:
            backends.check(backend, name, tasks, {**environment, **role.env})
        check_distribution(name, backend, distribution, programs)
        if checkpoint_every is not None:
            whole_number("checkpoint_every", checkpoint_every, 1)
        if seed is not None:
            whole_number("seed", seed, 0, _MAX_SEED)
        given_restarts = option_group("restarts", restarts, Restarts)
        self.spec = JobSpec(
            tasks=tasks,
            training=TrainingOptions(
                strategy=name,
                backend=backend,
                seed=seed,
                checkpoint_every=checkpoint_every,
                tensorboard=board,
                distribution=distribution,
                programs=programs,
            ),
            feed=FeedOptions(nulls, {} if columns is None else columns),  # type: ignore[arg-type]
            hosts=HostOptions(
                environment,
                option_group("spool", spool, Spool),
                option_group("launch_options", launch_options, LaunchOptions),
            ),
            start_timeout=time_limit("start_timeout", start_timeout),
            deadlines=option_group("deadlines", deadlines, Deadlines),
            gpus=gpus_of(tasks, roles, name, env or {}),
            gpu_options=gpu_options,
            roles=tuple(roles),
            max_replacements=given_restarts.max_replacements or (_MOST_CHANGES if least else 0),
            least=least,
        )
        self.spec.check_replacements()
        strategies.check_workers(name, self.num_workers)
        check_shared_gpus(name, backend, distribution, self.spec.gpus)
        self.spec.feed.check_strategy(name)
        self._launcher = launcher_of(launcher)
        self._network = option_group("network", network, Network)
        self._restart = given_restarts.policy_with(max_restarts)
        for folder, given in (("checkpoint_dir", checkpoint_dir), ("job_dir", job_dir)):
            if given is not None:
                path(folder, given)
        self._checkpoint_dir, self._job_dir = checkpoint_dir, job_dir
        self._run_id = check_run_id(run_id, job_dir)
        choose("logs", logs, LOG_CHOICES)
        boolean("progress", progress)
        self._logs, self._progress = logs, progress
        self._observers = observers_of(observers)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those that train first, by rank."""
        return self.spec.tasks

    @property
    def num_workers(self) -> int:
        """How many tasks train."""
        return self.spec.num_workers

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.spec.training.strategy

    def plan(
        self,
        train_fn: Callable[..., Any] | str | Path | Sequence[str],
        *args: Any,
        data: Any = None,
        **kwargs: Any,
    ) -> Plan:
        """Check everything that `run` checks before it launches, and say what it would do.

        Takes what `run` takes, waits for executors that are still to come as it does, and raises
        what it raises at the call.
        """
        from gridflow._spec.plan import Plan

        _, spec, program, modules, datasets, placement = self._check(train_fn, args, data, kwargs)
        return Plan(
            spec.tasks,
            spec.training.strategy,
            placement.target,
            placement.slots,
            len(program),
            tuple(datasets),
            spec.start_timeout,
            spec.deadlines,
            tuple(None if need.amount is None else float(need.amount) for need in spec.gpus),
            {
                "modules": f"{len(modules):,} bytes beside the script",
                "gpus": describe(spec.tasks, spec.gpus),
                "coordinator": str(self._network.or_else(placement.host, placement.advertise)),
                **self._range(spec),
                **placement.details,
            },
            spec.training.backend,
            placement.left_out,
        )

    def run(
        self,
        train_fn: Callable[..., Any] | str | Path | Sequence[str],
        *args: Any,
        data: Any = None,
        **kwargs: Any,
    ) -> Result:
        """Run the function on every worker and return what they returned, the chief's first.

        Parameters
        ----------
        train_fn : callable, str, Path or list of str
            A function, closures and those of a notebook included; it gets its `TrainingContext`
            if its first parameter is named ``ctx``. Or the path of a script. Modules and packages
            beside the script that Python runs (for a notebook: in the working directory) travel
            along: the tasks can import them. Under ``strategy="command"`` the words of a command,
            such as ``["python", "/app/train.py"]``.
        *args, **kwargs
            Passed on to the function; the command line of a script or command.
        data : DataFrame or dict of str to DataFrame, optional
            Rows for ``ctx.dataset(name)``; a single DataFrame is named ``train``. Also pandas,
            pyarrow, numpy arrays, tuples of them (``x, y``), and under a dataset's name dicts of
            them by column. `LocalLauncher` takes these only.

        Returns
        -------
        Result

        Raises
        ------
        InvalidArgument, SchemaError, UnpicklableFunction, NotEnoughSlots, NotEnoughGpus
            At the call, before anything is launched.
        JobExists
            Another job has the `run_id` or `checkpoint_dir`: at the call; or it has taken the
            `checkpoint_dir` over since.
        StartTimeout, EnvironmentMismatch, DataError, TrainingFailed, TaskLost, StepTimeout
            Naming the first task that failed, its host, exit, traceback and last log lines.
        KeyboardInterrupt
            After Ctrl-C, once everything has ended.
        """
        handle = self._start(train_fn, args, data, kwargs, is_fed_later=False)
        handle.is_never_fed = True
        return handle.result_in_foreground()

    def start(
        self,
        train_fn: Callable[..., Any] | str | Path | Sequence[str],
        *args: Any,
        data: Any = None,
        **kwargs: Any,
    ) -> JobHandle:
        """Start what `run` runs, and return at once with a handle on it.

        Several jobs may run at the same time, from one distributor and launcher or several.

        Parameters
        ----------
        train_fn, *args, data, **kwargs
            As for `run`.

        Returns
        -------
        JobHandle
            ``handle.result()`` is what `run` returns.

        Raises
        ------
        InvalidArgument, SchemaError, UnpicklableFunction, NotEnoughSlots, NotEnoughGpus
            At the call, before anything is launched. All else is raised by the handle.
        JobExists
            Another job has the `run_id` or `checkpoint_dir`. One in HDFS or an object store whose
            owner gives no sign of life is waited for first, for 30 seconds.
        """
        return self._start(train_fn, args, data, kwargs, is_fed_later=data is None)

    # ---------------------------------------------------------------------------------------------

    def _start(
        self,
        train_fn: Callable[..., Any] | str | Path | Sequence[str],
        args: tuple[Any, ...],
        data: Any,
        kwargs: dict[str, Any],
        *,
        is_fed_later: bool,
    ) -> JobHandle:
        from gridflow._coordinator.job import PreparedJob
        from gridflow._coordinator.loop import JobRun
        from gridflow._features.checkpoints.remote import place_of, places
        from gridflow._handle import JobHandle
        from gridflow._result import Result

        before = self._before()
        if before is not None:
            return before
        launcher, spec, program, modules, datasets, placement = self._check(
            train_fn, args, data, kwargs
        )
        size = None
        if spec.least is not None:  # there may be room for more later
            size, spec = spec.num_workers, self.spec
        name = uuid.uuid4().hex[:10]
        notice = f"to be fed later: {placement.full}" if is_fed_later and placement.full else ""
        job_dir, claim = self._make_job_dir(name)
        run: JobRun | None = None
        try:
            if claim is not None and (before := self._before()) is not None:
                claim.release()  # another driver has come to its end in the meantime
                launcher.close()
                return before
            folder = placement.default_folder or str(Path.cwd())
            checkpoints, mirror = places(self._checkpoint_dir, job_dir, folder)
            spec = replace(spec, hosts=replace(spec.hosts, default_folder=folder))
            job = PreparedJob(
                id=name,
                spec=spec,
                program=program,
                modules=modules,
                data=datasets,
                left_out=placement.left_out,
                job_dir=job_dir,
                checkpoint_dir=checkpoints,
                checkpoint_mirror=mirror,
                tensorboard_mirror=place_of(spec.training.tensorboard.copy_to, folder),
                network=self._network.or_else(placement.host, placement.advertise),
                restart=self._restart,
                logs=self._logs,
                show_progress=self._progress,
                notice=notice,
                run_id=self._run_id,
                observers=self._observers,
                make_result=Result,
                size=size,
            )
            run = JobRun(job, launcher)
            return JobHandle(run, launcher, job_dir, claim)
        except BaseException:
            if run is not None:
                run.close()
            if claim is not None:
                claim.release()
            raise

    def _before(self) -> JobHandle | None:
        """Return the run that has succeeded under the same id, None if there is none."""
        if self._run_id is None or self._job_dir is None:
            return None
        from gridflow._coordinator import folders, recorded
        from gridflow._handle import JobHandle
        from gridflow._launch.local import LocalLauncher

        job_dir = Path(self._job_dir) / self._run_id
        folders.check(job_dir)
        run = recorded.find(job_dir, self.spec)
        return None if run is None else JobHandle(run, LocalLauncher(), job_dir)

    def _check(
        self,
        train_fn: Callable[..., Any] | str | Path | Sequence[str],
        args: tuple[Any, ...],
        data: Any,
        kwargs: dict[str, Any],
    ) -> tuple[Launcher, JobSpec, bytes, bytes, dict[str, Any], Placement]:
        from gridflow._spec.program import dump, folder_of, for_job, make_program, pack

        datasets, spec = named_datasets(data), self.spec
        made = for_job(make_program(train_fn, args, kwargs), spec, datasets)
        program = dump(made)
        launcher = self._launcher_of(datasets)
        try:
            placement = self._place(launcher, spec, datasets)
        except NotEnoughSlots as short:
            if spec.least is None or short.available < spec.least:
                raise
            spec = spec.with_workers(short.available)
            launcher = self._launcher_of(datasets)
            placement = self._place(launcher, spec, datasets)
        if placement.columns:
            spec.feed.check_columns(placement.columns)
            placement = replace(placement, left_out=spec.feed.still_out(placement.left_out))
        return launcher, spec, program, pack(folder_of(made)), datasets, placement

    def _range(self, spec: JobSpec) -> dict[str, str]:
        if spec.least is None:
            return {}
        return {"workers": f"{spec.num_workers}, of {spec.least} to {self.num_workers}"}

    def _launcher_of(self, datasets: dict[str, Any]) -> Launcher:
        from gridflow._launch import base

        if self._launcher is not None:
            launcher = self._launcher.for_job()
        else:
            from gridflow._launch.spark.launcher import SparkLauncher
            from gridflow._launch.spark.session import session_of

            launcher = SparkLauncher(session_of(datasets.values()))
        if self.spec.hosts.launch.detached:
            launcher = base.detached(launcher)
        elif self.spec.max_replacements:
            launcher = base.replacing(launcher)
        return launcher

    def _place(self, launcher: Launcher, spec: JobSpec, datasets: dict[str, Any]) -> Placement:
        return launcher.place(
            len(spec.tasks), datasets, spec.start_timeout, fed=spec.fed, gpus=spec.gpus
        )

    def _make_job_dir(self, job: str) -> tuple[Path, Claim | None]:
        from gridflow._coordinator import folders

        if self._job_dir is not None and self._run_id is not None:
            claim = folders.Claim(Path(self._job_dir), self._run_id)
            return claim.path, claim
        if self._job_dir is not None:
            return folders.make(Path(self._job_dir), job), None
        return folders.make_in_default(job, self.spec.hosts.launch.keep_jobs), None
