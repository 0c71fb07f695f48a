"""A cluster's roles, and the environment of a node's main function: arguments, ``TF_CONFIG``."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.cluster import CHIEF, EVALUATOR, PS, TF_CONFIG, WORKER
from gridflow._spec.job import Role
from gridflow._spec.network import past_proxies
from gridflow.compat.tfos import util
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: The variable that selects the Keras version behind ``tf.keras``.
KERAS: Final = "TF_USE_LEGACY_KERAS"
_STEPS: Final = ("steps_per_epoch", "validation_steps")


class InputMode:
    """The source of the rows: the program reads its own input, or Spark feeds RDDs."""

    TENSORFLOW = 0
    SPARK = 1


def template(
    num_executors: int, num_ps: int, master_node: str | None, *, eval_node: bool
) -> dict[str, list[int]]:
    """Return the node numbers by job: parameter servers first, workers last."""
    numbers = list(range(num_executors))
    counts = {PS: num_ps, master_node or "": bool(master_node), EVALUATOR: eval_node}
    found: dict[str, list[int]] = {}
    for job, count in counts.items():
        if count:
            found[job], numbers = numbers[: int(count)], numbers[int(count) :]
    if numbers:
        found[WORKER] = numbers
    return found


def check(
    num_executors: int,
    num_ps: int,
    input_mode: int,
    master_node: str | None,
    driver_ps_nodes: bool,
    eval_node: bool,
    map_fun: Any,
) -> None:
    """Check a cluster's arguments before anything starts.

    Raises `InvalidArgument`: If they don't describe a valid cluster; says what was given and what
        is allowed.
    """
    if not callable(map_fun):
        raise InvalidArgument(f"map_fun must be a function of (args, ctx); got {map_fun!r}.")
    if input_mode not in {InputMode.TENSORFLOW, InputMode.SPARK}:
        raise InvalidArgument(
            f"input_mode must be InputMode.TENSORFLOW or InputMode.SPARK; got {input_mode!r}."
        )
    for name, value in {"num_executors": num_executors, "num_ps": num_ps}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidArgument(f"{name} must be a whole number of at least 0; got {value!r}.")
    if input_mode == InputMode.SPARK:
        given = {"driver_ps_nodes": driver_ps_nodes, "eval_node": eval_node}
        for name in (name for name, value in given.items() if value):
            raise InvalidArgument(f"{name}=True needs InputMode.TENSORFLOW.")
    if master_node in {PS, WORKER, EVALUATOR}:
        raise InvalidArgument(
            f"master_node must be 'chief', 'master' or another name that isn't a role; got "
            f"{master_node!r}."
        )
    beside = num_ps + bool(eval_node)
    if num_executors <= beside:
        raise InvalidArgument(
            f"{beside} of {num_executors} nodes are parameter servers or evaluators, but a cluster "
            "also needs at least one worker or master_node. num_executors counts all nodes."
        )


def roles_of(
    roles: dict[str, list[int]], master_node: str | None, gpus: float | None
) -> list[Role]:
    """Return the cluster's nodes as gridflow roles."""
    names = {master_node: CHIEF}
    return [
        Role(names.get(job, job), len(numbers), None if job in {PS, EVALUATOR} else gpus)
        for job, numbers in roles.items()
    ]


def place(cluster_template: Mapping[str, Sequence[int]], executor_id: int) -> tuple[str, int]:
    """Return a node's job, and its index within the job."""
    for job, numbers in cluster_template.items():
        if executor_id in numbers:
            return job, list(numbers).index(executor_id)
    return "default", -1


def addresses(nodes: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the addresses by job, for nodes sorted by number.

    Raises `GridflowError`: If two nodes have the same number.
    """
    found: dict[str, list[str]] = {}
    last = None
    for node in nodes:
        if node["executor_id"] == last:
            raise GridflowError(f"two nodes of the cluster have the same number: {last}.")
        last = node["executor_id"]
        found.setdefault(node["job_name"], []).append(f"{node['host']}:{node['port']}")
    return found


def single_node_env(argv: list[str] | None, num_gpus: float | None) -> None:
    """Set ``sys.argv`` and the GPUs of a process that runs TensorFlow on its own."""
    if argv:
        sys.argv = argv
    util.single_node_env(1 if num_gpus is None else int(num_gpus))


def num_gpus(tf_args: Any) -> float | None:
    """Return ``num_gpus`` from a program's arguments, or None."""
    if isinstance(tf_args, dict):
        found = tf_args.get("num_gpus")
    else:
        found = None if isinstance(tf_args, list) else getattr(tf_args, "num_gpus", None)
    return None if found is None else float(found)


def set_tf_config(spec: Mapping[str, Sequence[str]], job_name: str, task_index: int) -> None:
    """Set ``TF_CONFIG`` if there is a ``chief`` or ``master``, as the original does."""
    everyone = (each for addresses in spec.values() for each in addresses)
    os.environ.update(past_proxies(os.environ, everyone))
    if "chief" in spec or "master" in spec:
        task = {"type": job_name, "index": task_index}
        value = {"cluster": spec, "task": task, "environment": "cloud"}
        os.environ[TF_CONFIG] = json.dumps(value)
    else:
        os.environ.pop(TF_CONFIG, None)


def let_old_calls_work() -> None:
    """Make Keras accept arguments that old programs use.

    Keras 3 rejects ``steps_per_epoch=90.0``, the usual result of computing nine tenths of the rows.
    It also rejects ``Adam(lr=0.2)``, which tf_keras ignores.
    """
    is_old = os.environ.get(KERAS, "").lower() in {"1", "true"}
    keras = importlib.import_module("tf_keras" if is_old else "keras")
    for each in list(vars(keras.optimizers).values()):
        if isinstance(each, type) and issubclass(each, keras.optimizers.Optimizer):
            _rename(each, "lr", "learning_rate")
    if not is_old:
        _make_whole(keras.Model)


def _rename(kind: Any, old: str, new: str) -> None:
    begin = kind.__init__

    @functools.wraps(begin)
    def begin_renamed(self: Any, *args: Any, **kwargs: Any) -> None:
        if old in kwargs:
            kwargs[new] = kwargs.pop(old)
        begin(self, *args, **kwargs)

    kind.__init__ = begin_renamed


def _make_whole(model: Any) -> None:
    fit = model.fit

    @functools.wraps(fit)
    def with_whole_steps(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps = {name: kwargs[name] for name in _STEPS if isinstance(kwargs.get(name), float)}
        kwargs |= {name: int(value) for name, value in steps.items()}
        return fit(self, *args, **kwargs)

    model.fit = with_whole_steps


def call(fn: Callable[[Any, Any], Any], tf_args: Any, ctx: Any) -> None:
    """Call a main function; a list of arguments also becomes ``sys.argv``."""
    if isinstance(tf_args, list):
        sys.argv = tf_args
    fn(tf_args, ctx)
