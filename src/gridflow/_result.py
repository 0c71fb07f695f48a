"""What a run returns: the function's value, the model, the record of the run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from gridflow._coordinator import folders
from gridflow._coordinator.progress import histories, last_history
from gridflow._coordinator.record import AWAY
from gridflow._files.local import check_own, refusal
from gridflow._spec.cluster import Task
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from gridflow._coordinator.record import Outcome
    from gridflow._feed.ledger import Ledger
    from gridflow._wire.failures import Attempt
    from gridflow.ml.model import TrainedModel


#: A disk in memory, where Linux has one.
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 (a folder of random name is made in it)


class RankValues(Sequence[Any]):
    """What each rank's function returned: ``Result.values``.

    A value is read from its file when it is first asked for; ``list(result.values)`` reads all.

    * Models are `TrainedModel`, histories dicts of lists, all else is what was returned.
    * Under ``multi_worker_mirrored`` all ranks train one model: where another rank returned it,
      it is the chief's `TrainedModel` here. With ``strategy="none"`` each rank's is its own.
    * None for the workers of ``parameter_server``, which run no function, and for a worker without
      which the others have finished (``num_workers=(2, 8)``). Servers and evaluators have no rank.
    * Each rank but the chief may send 256 MiB. To ask for a value that is larger, or that can't
      be pickled, is a `GridflowError` that says so; the others can be read all the same.
    """

    def __init__(
        self,
        headers: Sequence[Mapping[str, Any]],
        job_dir: Path,
        keeper: object = None,
        in_memory: Mapping[int, Mapping[str, bytes]] | None = None,
    ) -> None:
        self._headers, self._job_dir = headers, job_dir
        self._in_memory = in_memory or {}
        self._keeper = keeper  # while it lives, the folder stays
        self._read: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._headers)

    @overload
    def __getitem__(self, rank: int) -> Any: ...

    @overload
    def __getitem__(self, rank: slice) -> list[Any]: ...

    def __getitem__(self, rank: int | slice) -> Any:
        """Return the value of a rank, or those of a slice of ranks."""
        if isinstance(rank, slice):
            return [self[each] for each in range(len(self))[rank]]
        try:
            place = range(len(self))[rank]
        except IndexError:
            msg = f"there are the ranks 0 to {len(self) - 1}; got {rank!r}."
            raise IndexError(msg) from None
        if place not in self._read:
            self._read[place] = self._value(place)
        return self._read[place]

    def __eq__(self, other: object) -> bool:
        """Compare like a list."""
        if not isinstance(other, RankValues | list | tuple):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kinds = ", ".join(header["kind"] for header in self._headers)
        return f"RankValues({kinds})"

    def _value(self, rank: int) -> Any:
        from gridflow._coordinator.job_files import value_folder
        from gridflow._keras import results
        from gridflow.ml.keras_file import MODEL_KINDS
        from gridflow.ml.model import TrainedModel

        header = self._headers[rank]
        if header["kind"] == "missing":
            raise GridflowError(f"what rank {rank} returned was not sent: {header['why']}")
        if header["kind"] == "shared":
            return self._shared(rank)
        if header["kind"] == AWAY:
            return None
        if rank in self._in_memory:
            return self._value_in_memory(header, self._in_memory[rank])
        folder = value_folder(self._job_dir, rank)
        for name in header["files"]:  # what another user may have written could be code
            with contextlib.suppress(FileNotFoundError):  # whoever reads it will say so
                check_own(self._job_dir, (folder / name).relative_to(self._job_dir).parts)
        if header["kind"] in MODEL_KINDS:
            model = TrainedModel(header, folder)
            folders.note_user(model, self._job_dir)
            return model
        return results.unpack(header, folder)

    @staticmethod
    def _value_in_memory(header: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
        """Return a value that the disk of the job's folder refused, by way of another disk."""
        from gridflow._keras import results
        from gridflow.ml.keras_file import MODEL_KINDS
        from gridflow.ml.model import TrainedModel

        folder = _laid_out(files)
        if header["kind"] in MODEL_KINDS:
            model = TrainedModel(header, folder)
            weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
            return model
        try:
            return results.unpack(header, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def chief(self) -> int:
        """The rank whose value is the result: the first that was there at the end."""
        there = (rank for rank, each in enumerate(self._headers) if each["kind"] != AWAY)
        return next(there, 0)

    def _shared(self, rank: int) -> Any:
        chief, header = self._headers[self.chief], self._headers[rank]
        if _form(chief) != _form(header):
            raise GridflowError(
                f"rank {rank} returned a model ({header['class']}) that all ranks trained "
                f"together, and the chief did not return the same: such a model comes from the "
                "chief alone. Let the function return it on all ranks."
            )
        return self[self.chief]


def _laid_out(files: Mapping[str, bytes]) -> Path:
    """Write files into a new folder on a disk that takes them, if need be in the memory's."""
    problems = []
    for root in dict.fromkeys([None, _SHARED_MEMORY]):  # None: the temporary folder
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="gridflow-value-", dir=root))
            for name, content in files.items():
                (folder / name).write_bytes(content)
        except OSError as error:
            problems.append(refusal(root or "the temporary folder", error))
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    raise GridflowError(
        f"the value is in memory, as the disk of the job's folder refused it, and can't be read "
        f"from there: {'; '.join(problems)}. Make room, and ask for it again."
    )


def _form(header: Mapping[str, Any]) -> list[Any]:
    """Return what two ranks' headers of one model have in common.

    Keras counts names up in each process, so those of inputs and outputs may differ.
    """
    shapes = [list(header.get(name, {}).values()) for name in ("inputs", "outputs")]
    return [header.get("class"), *shapes]


class Result:
    """What `TensorflowDistributor.run` returns.

    Attributes
    ----------
    job_dir : Path
        The run's folder on the driver: logs, results, TensorBoard's event files.
    ledger : Ledger
        Row counts per dataset, rank and epoch.
    attempts : tuple of Attempt
        All generations; the last one succeeded.
    tensorboard_url : str or None
        Where TensorBoard was served during the run.
    not_finite : str or None
        What was NaN or infinite when training ended: a variable of the model or its optimizers, or
        the last epoch's loss. The last checkpoints from before that are kept. None if all is well,
        or if the last ``fit`` had no ``ctx.callbacks()``.
    warnings : tuple of str
        What went wrong without failing the run: checkpoints, logs, event files or results that a
        disk refused, with its folder and host, and what was kept. Each is also a
        ``RuntimeWarning``.
    """

    def __init__(self, outcome: Outcome, job_dir: Path) -> None:
        self._outcome = outcome
        self.job_dir = job_dir
        folders.note_user(self, job_dir)
        self.ledger: Ledger = outcome.ledger
        self.attempts: tuple[Attempt, ...] = outcome.attempts
        self.tensorboard_url: str | None = outcome.tensorboard_url
        self.not_finite: str | None = outcome.not_finite
        self.warnings: tuple[str, ...] = outcome.warnings

    @property
    def preemptions(self) -> int:
        """How often the job moved away from executors that were taken back with notice."""
        return sum(attempt.is_preempted for attempt in self.attempts)

    @property
    def value(self) -> Any:
        """The return value of the chief's function; a model is a `TrainedModel`.

        Unpickled on first access. If the chief was away at the end, that of the next rank.
        """
        return self.values[self.values.chief]

    @cached_property
    def values(self) -> RankValues:
        """The return value of each rank's function; ``values[0]`` is the chief's, `value`."""
        return RankValues(self._outcome.results, self.job_dir, self, self._outcome.in_memory)

    @property
    def has_model(self) -> bool:
        """Whether the function returned a Keras model, which `model` then is."""
        from gridflow.ml.keras_file import MODEL_KINDS

        return self._outcome.results[self.values.chief]["kind"] in MODEL_KINDS

    @property
    def model(self) -> TrainedModel:
        """The model that the function returned.

        Raises
        ------
        GridflowError
            The function returned something else.
        """
        from gridflow.ml.model import TrainedModel

        if not isinstance(self.value, TrainedModel):
            raise GridflowError(
                f"the training function returned {type(self.value).__name__}, not a Keras model: "
                "end it with 'return model' to have result.model."
            )
        return self.value

    def export(self, path: str | Path, **options: Any) -> Path | str:
        """Export the model: see `TrainedModel.export`.

        Raises
        ------
        GridflowError
            The function returned no model, or what `TrainedModel.export` raises.
        """
        return self.model.export(path, **options)

    @property
    def history(self) -> dict[str, list[float]]:
        """Losses and metrics by epoch, as in Keras's ``History.history``.

        Those of the last ``fit``, if the function calls it several times; `histories` has all.
        After a restart, also of the driver, the epochs before it are included.
        """
        return last_history(self._outcome.history)

    @property
    def histories(self) -> list[dict[str, list[float]]]:
        """The same for each ``fit`` that had ``ctx.callbacks()`` and came to an epoch's end."""
        return histories(self._outcome.history)

    def plot(self, fit: int = -1) -> Figure:
        """Draw the learning curve: a panel for the loss and for each metric, by epoch.

        Parameters
        ----------
        fit : int, default -1
            Index into `histories`. Default: the one in `history`.

        Returns
        -------
        matplotlib.figure.Figure
            Shown by notebooks; ``plot().savefig("curve.png")`` saves it.

        Raises
        ------
        MissingDependency
            matplotlib isn't installed.
        InvalidArgument
            No ``fit`` had ``ctx.callbacks()``, or the index doesn't exist.
        """
        from gridflow.ml.plotting import learning_curve

        found = self.histories
        if found and not -len(found) <= fit < len(found):
            raise InvalidArgument(f"the run has {len(found)} fit(s); got fit={fit!r}.")
        return learning_curve(found[fit] if found else {})

    @property
    def evaluation(self) -> list[dict[str, float]]:
        """The evaluator's results for each checkpoint that it evaluated, in order.

        ``fit``, ``epoch`` and ``step`` say when the checkpoint was made: in which call of ``fit``
        (from 0), after how many complete epochs of it, and steps of the next. The rest are losses
        and metrics by name.
        """
        found = sorted(self._outcome.evaluation.items())
        return [{**place.to_dict(), **logs} for place, logs in found]

    @property
    def tensorboard_dir(self) -> Path:
        """Folder of TensorBoard's event files: ``tensorboard --logdir`` takes it."""
        return self.job_dir / "tensorboard"

    def logs(self, rank: int) -> str:
        """Return everything that a rank printed, in all generations.

        Raises
        ------
        InvalidArgument
            There is no such rank.
        """
        paths = list(self._outcome.log_paths.values())
        if not 0 <= rank < len(paths):
            raise InvalidArgument(f"rank must be between 0 and {len(paths) - 1}; got {rank!r}.")
        return paths[rank].read_text(encoding="utf-8")

    def log_path(self, task: str) -> Path:
        """Return the log file of a task such as ``worker:1``."""
        return self._outcome.log_paths[Task.parse(task)]

    def __repr__(self) -> str:
        kind = self._outcome.results[self.values.chief]["kind"]
        return f"Result({kind}, {len(self.attempts)} attempt(s), job_dir={str(self.job_dir)!r})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from gridflow._coordinator.views import attempts_view
        from gridflow._spec import markup

        kind = self._outcome.results[self.values.chief]
        about = {
            "returned": str(kind.get("class", kind["kind"])),
            "ranks": str(len(self.values)),
            "attempts": str(len(self.attempts)),
            "job_dir": str(self.job_dir),
        }
        wrong = self.ledger.check()
        about["ledger"] = " ".join(wrong) if wrong else "balanced"
        if self.not_finite:
            about["not finite"] = self.not_finite
        if self.warnings:
            about["warnings"] = " ".join(self.warnings)
        if self.tensorboard_url:
            about["tensorboard"] = str(self.tensorboard_dir)
        shown = markup.facts(about) + attempts_view(self.attempts)
        return shown + (markup.history_view(self.history) if self.history else "")
