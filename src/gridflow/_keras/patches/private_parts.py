"""Private parts of Keras, TensorFlow and JAX that are used as they are: a function for each.

A patch changes what is broken; here is what only has no public name. Who finds a part missing
raises `MissingPart`, and ``tests/keras/test_parts.py`` tries each on what is installed. Imports
none of these packages by itself: agents and fork servers ask here, too.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Packages with private parts, and the extra that brings a version with those that are known.
_EXTRAS: Final = {
    "keras": "tensorflow",
    "tf_keras": "tf-keras",
    "tensorflow": "tensorflow",
    "jax": "jax",
}
#: Files in which the main thread of a rank stands that waits for a step, mostly for a peer.
WAITING_FILES: Final = (
    "tensorflow/python/eager/execute.py",
    "tensorflow/python/eager/context",
    "jax/_src/array.py",
    "jax/_src/interpreters/pxla.py",
    "torch/distributed/",
)

#: Below this one stands who waits in an operation of all ranks outside of a traced function.
COLLECTIVE_FILE: Final = "tensorflow/python/distribute/cross_device_ops.py"


class MissingPart(MissingDependency):
    """The installed version of a package lacks a part that gridflow uses."""


def part(owner: Any, name: str) -> Any:
    """Return a part of a module, a class or an object.

    Raises
    ------
    MissingPart
        It has none of that name.
    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise _missing(f"{_home(owner)}.{name}") from error


def module(name: str) -> Any:
    """Return a module, imported if need be.

    Raises
    ------
    MissingPart
        Its package is there without it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name.partition(".")[0]:
            raise
        raise _missing(name) from error


def _home(owner: Any) -> str:
    """Return the full name of a module, or of the class of a package that users inherit from."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    kinds = (owner if isinstance(owner, type) else type(owner)).__mro__
    known = [kind for kind in kinds if kind.__module__.partition(".")[0] in _EXTRAS]
    return f"{(known or kinds)[0].__module__}.{(known or kinds)[0].__qualname__}"


def _missing(name: str) -> MissingPart:
    package = name.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "of an unknown version")
    extra = _EXTRAS.get(package, package)
    return MissingPart(
        f"{package} {version} has no {name}, which gridflow uses. Install a version that it knows: "
        f"pip install 'gridflow[{extra}]'."
    )


# Models of both flavours of Keras --------------------------------------------------------------


def layers(model: Any) -> list[Any]:
    """Return a model and all of its layers, those of its submodels, too."""
    return list(part(model, "_flatten_layers")())


def structure(model: Any, kind: str) -> Any:
    """Return the ``input`` or ``output`` that a functional model was made with, None for others."""
    return getattr(model, f"_{kind}s_struct", getattr(model, f"_nested_{kind}s", None))


def is_optimizer_built(optimizer: Any) -> bool:
    """Return whether an optimizer has its variables."""
    return bool(getattr(optimizer, "built", getattr(optimizer, "_built", True)))


# Keras 3 ---------------------------------------------------------------------------------------


def own_statistics(layer: Any) -> list[Any]:
    """Return the variables that a layer updates by itself, without those of its sublayers."""
    return list(part(layer, "_non_trainable_variables"))


def build(model: Any, batch: Any) -> None:
    """Build a model with optimizer, losses and metrics for a batch of shapes and dtypes."""
    part(model, "_symbolic_build")(data_batch=batch)


def compute_output_spec(model: Any, inputs: Any) -> None:
    """Build a model, but for all else."""
    part(module("keras.src.backend"), "compute_output_spec")(model, inputs)


def trainer() -> Any:
    """Return the class by which models of Keras's backend are trained."""
    import keras

    return _base_of_models(f"keras.src.backend.{keras.backend.backend()}.trainer")


def base_trainer() -> Any:
    """Return the class that the trainers of all backends have in common."""
    return _base_of_models("keras.src.trainers.trainer")


def building() -> tuple[Any, str]:
    """Return by which method of which class a fit builds its model, on JAX and torch."""
    own = trainer()
    if "_maybe_symbolic_build" in vars(own):
        return own, "_maybe_symbolic_build"
    part(base_trainer(), "_symbolic_build")
    return base_trainer(), "_symbolic_build"


def _base_of_models(home: str) -> Any:
    import keras

    # Its name isn't the same in all versions.
    found = [each for each in keras.Model.__mro__ if each.__module__ == home]
    if not found:
        raise _missing(f"{home}, a base of keras.Model,")
    return found[0]


def global_seeds() -> list[Any]:
    """Return the state of ``keras.random``'s own seed, without making one where there is none."""
    state = module("keras.src.backend.common.global_state")
    key = part(module("keras.src.random.seed_generator"), "GLOBAL_SEED_GENERATOR")
    found = part(state, "get_global_attribute")(key)
    return [] if found is None else [part(found, "state")]


def set_random_seed(seed: int) -> None:
    """Do what ``keras.utils.set_random_seed`` does, without importing TensorFlow for it."""
    utils = module("keras.src.utils.rng_utils")
    tensorflow, utils.tf = part(utils, "tf"), SimpleNamespace(available=False)
    try:
        part(utils, "set_random_seed")(seed)
    finally:
        utils.tf = tensorflow


def shards(variable: Any) -> list[Any] | None:
    """Return TensorFlow's variables of which a variable of Keras is made up; None for a whole."""
    value = part(variable, "_value")
    home = module("tensorflow.python.distribute.sharded_variable")
    return list(value.variables) if isinstance(value, part(home, "ShardedVariable")) else None


def takes_training(model: Any) -> bool:
    """Return whether a model's call has an argument ``training``."""
    return bool(part(model, "_call_has_training_arg"))


def compute_loss(model: Any, x: Any, y: Any, outputs: Any, weight: Any, *, training: bool) -> Any:
    """Return the loss of a batch, by a ``compute_loss`` of the user's with or without training."""
    return part(model, "_compute_loss")(x, y, outputs, weight, training=training)


@contextlib.contextmanager
def with_losses(model: Any, losses: Sequence[Any]) -> Iterator[None]:
    """Let these be the losses that a model adds to the one it was compiled with, in a block."""
    override = part(model, "_losses_override")
    override[:] = losses
    try:
        yield
    finally:
        override.clear()


def count_loss(model: Any, loss: Any, rows: Any) -> None:
    """Let the metric ``loss`` count the loss of some rows."""
    part(model, "_loss_tracker").update_state(loss, sample_weight=rows)


# tf_keras --------------------------------------------------------------------------------------


class Answers:
    """What tf_keras asks of each callback."""

    #: Logs are then handed over as tensors, without waiting for each step.
    _supports_tf_logs = True
    _chief_worker_only = False

    def _implements_train_batch_hooks(self) -> bool:
        return self.has_own("on_train_batch_begin", "on_train_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self.has_own("on_test_batch_begin", "on_test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self.has_own("on_predict_batch_begin", "on_predict_batch_end")

    def has_own(self, *names: str) -> bool:
        """Return whether the callback does anything in one of its methods."""
        raise NotImplementedError


def train_counter(model: Any) -> Any:
    """Return the variable that counts a model's steps."""
    return part(model, "_train_counter")


def random_states(model: Any) -> list[Any]:
    """Return the seeds of random layers, where tf_keras keeps them in variables at all."""
    makers = (getattr(layer, "_random_generator", None) for layer in layers(model))
    generators = (getattr(maker, "_generator", None) for maker in makers)
    return [generator.state for generator in generators if generator is not None]


def make_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Let an optimizer of the old kind, which has no ``build``, make its variables."""
    part(optimizer, "_create_all_weights")(variables)


# TensorFlow and JAX ----------------------------------------------------------------------------


def was_made(remote: Any) -> bool:
    """Return whether a value that a coordinator's worker was to make was made, if lost since."""
    return part(remote, "_values") is not None


def graph_of(dataset: Any) -> Any:
    """Return the graph of a dataset, with its functions."""
    import tensorflow as tf

    content = tf.raw_ops.DatasetToGraphV2(input_dataset=part(dataset, "_variant_tensor"))
    return tf.compat.v1.GraphDef.FromString(content.numpy())


@contextlib.contextmanager
def hearing_of_repeats(
    coordinator: Any, tell: Callable[[int, tuple[Any, ...]], None]
) -> Iterator[None]:
    """Tell of each step that a coordinator hands out again, as the worker that had it has died.

    What is told are that worker's number and the arguments that the step was scheduled with, the
    very tuple. The coordinator has a thread for each worker, which is named after it.
    """
    steps = part(part(coordinator, "_cluster"), "closure_queue")
    put_back = part(steps, "put_back")

    def heard(closure: Any) -> None:
        worker = threading.current_thread().name.rpartition("-")[2]
        tell(int(worker), part(closure, "_args"))
        put_back(closure)

    outer = vars(steps).get("put_back")
    steps.put_back = heard
    try:
        yield
    finally:
        if outer is None:
            del steps.put_back
        else:
            steps.put_back = outer


def is_started() -> str | None:
    """Return which of the imported packages has initialised devices already, None for none."""
    context = sys.modules.get("tensorflow.python.eager.context")
    if getattr(context, "_context", None) is not None:
        return "TensorFlow's context exists already"
    bridge = sys.modules.get("jax._src.xla_bridge")
    if getattr(bridge, "_backends", None):
        return "JAX's devices are initialised already"
    return None


def leave_jax_without_waiting() -> None:
    """Take out what JAX does at exit: it waits for all other processes, who may be gone."""
    atexit.unregister(part(module("jax._src.api"), "clean_up"))


def listen_as(host: str) -> None:
    """Let JAX's collectives on CPUs listen at an address.

    JAX lets gloo find its own by the name of the host, which on many machines is that of the
    loopback interface.
    """
    library = part(module("jax._src.xla_bridge"), "_jax")
    make = part(library, "make_gloo_tcp_collectives")
    library.make_gloo_tcp_collectives = functools.partial(make, hostname=host)
