"""A run in MLflow for each job."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import pickle
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.folder import temporary_folder
from gridflow._coordinator import report
from gridflow._coordinator.observing import USER_OF_URL, Observer
from gridflow._coordinator.record import RESULT
from gridflow._files.local import read_json, write_whole
from gridflow._spec.option_checks import boolean
from gridflow.errors import InvalidArgument, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._coordinator.observing import JobEnd, JobStart
    from gridflow._result import Result
    from gridflow._wire.failures import TaskFailure

#: In the job's folder: names the run for the next driver.
_RECORD: Final = "mlflow.json"
_PAUSE_SECONDS: Final = 5.0
#: What a server takes in one request.
_MOST_METRICS: Final = 1000
#: What names of metrics may not contain, on a server on Windows neither.
_NO_NAME: Final = re.compile(r"[^/\w.\- ]")
_STATUS: Final = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_ERROR, _FAILURE, _RESTART = "gridflow.error", "gridflow.failure", "gridflow.last_restart"


class MLflow(Observer):
    """Log a job to MLflow, as one run from its first driver to its last.

    A restart, another driver with the same ``run_id`` and another number of workers go on with the
    run, and log no step twice. Needs ``mlflow-skinny`` in the driver, and there alone.

    Parameters
    ----------
    experiment : str, optional
        The experiment's name; it is created if it is missing. Default: the environment's
        ``MLFLOW_EXPERIMENT_NAME``, or ``Default``.
    tracking_uri : str, optional
        Default: MLflow's own, ``MLFLOW_TRACKING_URI``.
    run : str, optional
        Id of an MLflow run that exists. Default: a new one, or that of an earlier driver.
    params : mapping of str to object, optional
        Parameters to log beside the job's options.
    model : bool, default True
        Log the model that the function returns, with a signature, so that
        ``mlflow.pyfunc.spark_udf`` loads it.
    register : str, optional
        Name of a registered model that gets the model as its new version.
    every_task : bool, default False
        Log the steps of all tasks, not only of the chief.

    Raises
    ------
    MissingDependency
        MLflow isn't installed.
    InvalidArgument
        An option is invalid.

    Examples
    --------
    >>> from gridflow.observers import MLflow
    >>> MLflow("flights", register="flights")  # doctest: +SKIP
    """

    patience = 60.0

    def __init__(
        self,
        experiment: str | None = None,
        *,
        tracking_uri: str | None = None,
        run: str | None = None,
        params: Mapping[str, Any] | None = None,
        model: bool = True,
        register: str | None = None,
        every_task: bool = False,
    ) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise MissingDependency(
                "observers.MLflow needs mlflow-skinny: pip install 'gridflow[mlflow]'."
            )
        for name, given in (("experiment", experiment), ("run", run), ("register", register)):
            if given is not None and not (isinstance(given, str) and given):
                raise InvalidArgument(f"MLflow({name}=) must be a text; got {given!r}.")
        boolean("model", model)
        boolean("every_task", every_task)
        if register is not None and not model:
            raise InvalidArgument(f"MLflow(register={register!r}) needs model=True.")
        self._experiment, self._uri, self._given = experiment, tracking_uri, run
        self._params, self._every_task = dict(params or {}), every_task
        self._model, self._register = model, register

    def begin(self, job: JobStart) -> None:
        """Create the run, or go on with it."""
        self._job = job
        self._client: Any = None
        self._run = ""
        self._samples: dict[str, int] = {}
        #: The last step on the server, by metric.
        self._logged: dict[str, int] = {}
        #: Metrics that the server doesn't have yet: key, value, time, step.
        self._waiting: list[tuple[str, float, int, int]] = []
        self._next = 0.0
        self._flush()
        self._log_inputs()

    def metrics(self, step: int, values: Mapping[str, float], task: str) -> None:
        """Log losses and metrics by step, as ``worker_0/loss``."""
        if self._every_task or task == self._job.tasks[0]:
            self._put(step, {f"{task}/{name}": value for name, value in values.items()})
            if time.monotonic() >= self._next:
                self._flush()

    def host(self, name: str, load: Mapping[str, float]) -> None:
        """Log the load of a host among MLflow's system metrics, as ``system/host/cpu…``."""
        for metric, value in load.items():
            key = _NO_NAME.sub("_", f"system/{name}/{metric}")
            sample = max(self._samples.get(key, -1), self._logged.get(key, -1)) + 1
            self._samples[key] = sample
            self._put(sample, {key: value})
        if time.monotonic() >= self._next:
            self._flush()

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Log the results of an epoch, as ``loss`` and ``val_loss``."""
        self._put(number, values)
        self._flush()

    def restart(self, cause: TaskFailure) -> None:
        """Tag the run with the cause."""
        self._flush()
        self._client.set_tag(self._run, _RESTART, _words(cause))

    def end(self, outcome: JobEnd) -> None:
        """Log the model and the job's record, and end the run."""
        try:
            self._flush()
            self._tag_end(outcome)
            self._log_files(outcome.result)
            if outcome.result is not None and outcome.result.has_model and self._model:
                self._log_model(outcome.result)
        finally:
            if self._run:
                self._client.set_terminated(self._run, _STATUS[outcome.state])

    # ---------------------------------------------------------------------------------------------

    def _put(self, step: int, values: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        self._waiting += [
            (_NO_NAME.sub("_", name), float(value), now, step) for name, value in values.items()
        ]

    def _flush(self) -> None:
        """Send what waits. After an error it waits for the next time."""
        self._next = time.monotonic() + _PAUSE_SECONDS
        if not self._run:
            self._open()
        from mlflow.entities import Metric

        while self._waiting:
            some = self._waiting[:_MOST_METRICS]
            new = [Metric(*each) for each in some if each[-1] > self._logged.get(each[0], -1)]
            if new:
                self._client.log_batch(self._run, metrics=new)
            del self._waiting[: len(some)]

    def _open(self) -> None:
        """Find or create the run."""
        from mlflow import MlflowClient, get_tracking_uri

        if USER_OF_URL.search(self._uri or get_tracking_uri()):  # MLflow would print it
            os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        job, self._client = self._job, MlflowClient(self._uri)
        run = self._known()
        if run is None:
            tags = {"gridflow.job": job.id, "gridflow.run_id": job.run_id or ""}
            run = self._client.create_run(
                self._experiment_id(), tags=tags, run_name=job.run_id or job.id
            )
        else:
            self._go_on(run)
        self._run = run.info.run_id  # at once: what fails below makes no second run
        write_whole(job.folder / _RECORD, json.dumps({"run": self._run}))
        options = {**job.options, **self._params}
        self._log_params(run, {name: str(value) for name, value in options.items()})

    def _known(self) -> Any:
        """Return the run to go on with; None if there is none."""
        if self._given is not None:
            return self._client.get_run(self._given)
        from mlflow.exceptions import MlflowException

        recorded = read_json(self._job.folder / _RECORD)
        if not isinstance(recorded, dict):
            return None
        try:
            run = self._client.get_run(recorded["run"])
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run.info.lifecycle_stage == "active" else None

    def _experiment_id(self) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        found = self._client.get_experiment_by_name(name)
        given: str = self._client.create_experiment(name) if found is None else found.experiment_id
        return given

    def _go_on(self, run: Any) -> None:
        name = run.info.run_id
        self._client.update_run(name, status="RUNNING")
        for tag in {_ERROR, _FAILURE} & set(run.data.tags):
            self._client.delete_tag(name, tag)
        for key in run.data.metrics:
            history = self._client.get_metric_history(name, key)
            self._logged[key] = max(each.step for each in history)

    def _log_params(self, run: Any, params: Mapping[str, str]) -> None:
        """Log parameters. MLflow keeps their first values; those of a changed job become tags."""
        from mlflow.entities import Param, RunTag

        there = run.data.params
        new = [Param(name, value) for name, value in params.items() if name not in there]
        changed = {name: value for name, value in params.items() if there.get(name, value) != value}
        tags = [RunTag(f"gridflow.now.{name}", value) for name, value in changed.items()]
        self._client.log_batch(self._run, params=new, tags=tags)

    def _log_inputs(self) -> None:
        data = self._job.data
        if data and not self._client.get_run(self._run).inputs.dataset_inputs:
            inputs = [_dataset(name, rows) for name, rows in data.items()]
            self._client.log_inputs(self._run, datasets=inputs)

    def _tag_end(self, outcome: JobEnd) -> None:
        tags = {"gridflow.restarts": str(outcome.report.generation)}
        if outcome.error is not None:
            tags[_ERROR] = type(outcome.error).__name__
        for failure in getattr(outcome.error, "failures", ())[:1]:
            tags[_FAILURE] = _words(failure)
        for name, value in tags.items():
            self._client.set_tag(self._run, name, value)

    def _log_files(self, result: Result | None) -> None:
        """Log the job's record: result, report, and the ledger of its rows."""
        folder = self._job.folder
        if (folder / RESULT).is_file():  # a full disk may have refused it
            self._client.log_artifact(self._run, str(folder / RESULT))
        with contextlib.suppress(InvalidArgument):  # or the journal
            self._client.log_text(self._run, report.page(report.read(folder)), "report.html")
        if result is not None:
            self._client.log_dict(self._run, result.ledger.to_dict(), "ledger.json")

    def _log_model(self, result: Result) -> None:
        from gridflow.ml import pyfunc

        with temporary_folder("gridflow-mlflow-") as folder:
            pyfunc.save(result.model, folder / "model", self._job.data, self._run)
            self._client.log_artifacts(self._run, str(folder / "model"), "model")
        if self._register is not None:
            self._register_model(self._register)

    def _register_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        place = self._client.get_run(self._run).info.artifact_uri
        self._client.create_model_version(name, f"{place}/model", self._run)


def _dataset(name: str, rows: Any) -> Any:
    """Describe a dataset, with a digest of Spark's plan or of what lies in memory."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    digest, schema = hashlib.sha256(), None
    if hasattr(rows, "semanticHash"):
        schema = json.dumps(dict(rows.dtypes))
        digest.update(f"{rows.semanticHash()} {schema}".encode())
    else:
        file: Any = SimpleNamespace(write=digest.update)  # no copy of it all is made
        pickle.Pickler(file, 5).dump(rows)
    about = Dataset(name, digest.hexdigest()[:16], "code", "{}", schema)
    return DatasetInput(about, [InputTag("mlflow.data.context", name)])


def _words(failure: TaskFailure) -> str:
    where = f" on {failure.host}" if failure.host else ""
    return f"{failure.task}{where}: {failure.kind}: {failure.summary}"
