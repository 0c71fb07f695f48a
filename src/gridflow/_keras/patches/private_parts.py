"""Private parts of Keras, TensorFlow and JAX that are used unchanged, one function each.

Patches change broken parts; these parts only lack a public name. A missing part raises
`MissingPart`, and ``tests/keras/test_private_parts.py`` tests each with the installed packages. The
module itself imports none of these packages, because agents and fork servers use it, too.
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: Packages with private parts, and the extra that installs a supported version.
_EXTRAS: Final = {
    "keras": "tensorflow",
    "tf_keras": "tf-keras",
    "tensorflow": "tensorflow",
    "jax": "jax",
}
#: Files in which a rank's main thread is while it waits for a step, mostly for a peer.
WAITING_FILES: Final = (
    "tensorflow/python/eager/execute.py",
    "tensorflow/python/eager/context",
    "jax/_src/array.py",
    "jax/_src/interpreters/pxla.py",
    "torch/distributed/",
    "gridflow/_collectives/",
)

#: The caller of this is waiting in a collective operation outside a traced function.
COLLECTIVE_FILE: Final = "tensorflow/python/distribute/cross_device_ops.py"


class MissingPart(MissingDependency):
    """The installed version of a package lacks a part that gridflow uses."""


def part(owner: Any, name: str) -> Any:
    """Return a part of a module, a class or an object.

    Raises `MissingPart`: It has no such part.
    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise _missing(f"{_home(owner)}.{name}") from error


def module(name: str) -> Any:
    """Return a module, imported if need be.

    Raises `MissingPart`: The package exists, but not the module.
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
    version = getattr(sys.modules.get(package), "__version__", "(unknown version)")
    extra = _EXTRAS.get(package, package)
    return MissingPart(
        f"{package} {version} has no {name}, which gridflow uses. Install a supported version: pip "
        f"install 'gridflow[{extra}]'."
    )


# Models of both flavours of Keras --------------------------------------------------------------


def layers(model: Any) -> list[Any]:
    """Return a model and all of its layers, including those of submodels."""
    return list(part(model, "_flatten_layers")())


def structure(model: Any, kind: str) -> Any:
    """Return the ``input`` or ``output`` of a functional model, or None."""
    return getattr(model, f"_{kind}s_struct", getattr(model, f"_nested_{kind}s", None))


def layer_of(tensor: Any) -> Any:
    """Return the layer or operation that a symbolic tensor comes from."""
    return part(tensor, "_keras_history")[0]


def is_optimizer_built(optimizer: Any) -> bool:
    known = getattr(optimizer, "built", getattr(optimizer, "_built", None))
    # Those of tf_keras don't say it before; legacy ones have no ``build``.
    return not hasattr(optimizer, "build") if known is None else bool(known)


def key_of(optimizer: Any, variable: Any) -> Any:
    return part(optimizer, "_var_key")(variable)


def keys_of(optimizer: Any) -> list[Any]:
    """Return the keys of the variables that an optimizer is built for, in order."""
    keys = getattr(optimizer, "_trainable_variables_indices", None)  # of Keras 3
    return list(part(optimizer, "_index_dict") if keys is None else keys)


# Keras 3 ---------------------------------------------------------------------------------------


def own_statistics(layer: Any) -> list[Any]:
    """Return the variables that a layer itself updates, without its sublayers'."""
    return list(part(layer, "_non_trainable_variables"))


def build(model: Any, batch: Any) -> None:
    """Build a model with optimizer, losses and metrics for a batch of shapes and dtypes."""
    part(model, "_symbolic_build")(data_batch=batch)


def compute_output_spec(model: Any, inputs: Any) -> None:
    """Build a model only."""
    part(module("keras.src.backend"), "compute_output_spec")(model, inputs)


def trainer() -> Any:
    """Return the trainer class of Keras's backend."""
    import keras

    return _base_of_models(f"keras.src.backend.{keras.backend.backend()}.trainer")


def base_trainer() -> Any:
    """Return the base class of all backends' trainers."""
    return _base_of_models("keras.src.trainers.trainer")


def building() -> tuple[Any, str]:
    """Return the class and method with which ``fit`` builds a model where not TensorFlow does."""
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
    """Return the state of ``keras.random``'s own seed, without creating one."""
    state = module("keras.src.backend.common.global_state")
    key = part(module("keras.src.random.seed_generator"), "GLOBAL_SEED_GENERATOR")
    found = part(state, "get_global_attribute")(key)
    return [] if found is None else [part(found, "state")]


def set_random_seed(seed: int) -> None:
    """Work like ``keras.utils.set_random_seed``, without importing TensorFlow."""
    utils = module("keras.src.utils.rng_utils")
    tensorflow, utils.tf = part(utils, "tf"), SimpleNamespace(available=False)
    try:
        part(utils, "set_random_seed")(seed)
    finally:
        utils.tf = tensorflow


def shards(variable: Any) -> list[Any] | None:
    """Return the TensorFlow variables of a sharded Keras variable, or None."""
    value = part(variable, "_value")
    home = module("tensorflow.python.distribute.sharded_variable")
    return list(value.variables) if isinstance(value, part(home, "ShardedVariable")) else None


@contextlib.contextmanager
def with_losses(model: Any, losses: Sequence[Any]) -> Iterator[None]:
    """Replace a model's additional losses in a block."""
    override = part(model, "_losses_override")
    override[:] = losses
    try:
        yield
    finally:
        override.clear()


def count_loss(model: Any, loss: Any, rows: Any) -> None:
    """Update the metric ``loss`` with the loss of some rows."""
    part(model, "_loss_tracker").update_state(loss, sample_weight=rows)


# tf_keras --------------------------------------------------------------------------------------


class Answers:
    """The answers to what tf_keras asks of each callback."""

    #: Logs are then passed as tensors, without waiting for each step.
    _supports_tf_logs = True
    _chief_worker_only = False

    def _implements_train_batch_hooks(self) -> bool:
        return self.has_own("on_train_batch_begin", "on_train_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self.has_own("on_test_batch_begin", "on_test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self.has_own("on_predict_batch_begin", "on_predict_batch_end")

    def has_own(self, *names: str) -> bool:
        """Return whether the callback overrides one of these methods."""
        raise NotImplementedError


def forget_evaluation(model: Any) -> None:
    """Let a model's next validation begin anew: Keras 3 keeps the iterator of the last one."""
    vars(model).pop("_eval_epoch_iterator", None)


def model_of(callback: Any) -> Any:
    """Return the model of a callback or a list of them, or None.

    On JAX, Keras's property writes the whole state back to the model, which is slow in each step.
    """
    return getattr(callback, "_model", None) or getattr(callback, "model", None)


def train_counter(model: Any) -> Any:
    """Return the variable that counts a model's steps."""
    return part(model, "_train_counter")


def random_states(model: Any) -> list[Any]:
    """Return the seeds of random layers, if tf_keras keeps them in variables."""
    makers = (getattr(layer, "_random_generator", None) for layer in layers(model))
    generators = (getattr(maker, "_generator", None) for maker in makers)
    return [generator.state for generator in generators if generator is not None]


def make_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the variables of a legacy optimizer, which has no ``build``."""
    part(optimizer, "_create_all_weights")(variables)


# TensorFlow and JAX ----------------------------------------------------------------------------


def was_made(remote: Any) -> bool:
    """Return whether a coordinator's worker has created a value, even if it was lost since."""
    return part(remote, "_values") is not None


def graph_of(dataset: Any) -> Any:
    """Return the graph of a dataset, with its functions."""
    import tensorflow as tf

    content = tf.raw_ops.DatasetToGraphV2(input_dataset=part(dataset, "_variant_tensor"))
    return tf.compat.v1.GraphDef.FromString(content.numpy())


def inputs_of(dataset: Any) -> Iterator[Any]:
    yield dataset
    for each in part(dataset, "_inputs")():
        yield from inputs_of(each)


#: Operations that call Python functions, of which other processes know none.
_PYTHON: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def python_functions(graph: Any) -> list[str]:
    """Return the Python functions that the graph of a dataset calls, by name, each once."""
    script_ops = module("tensorflow.python.ops.script_ops")
    known = part(part(script_ops, "_py_funcs"), "_funcs")
    found = []
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if node.op in _PYTHON:
                function = known.get(node.attr["token"].s.decode())
                function = getattr(function, "_func", function)
                name = str(getattr(function, "__qualname__", "a Python function"))
                in_tensorflow = getattr(function, "__module__", "").startswith("tensorflow.")
                found.append("Dataset.from_generator" if in_tensorflow else name)
    return list(dict.fromkeys(found))


def parsed_saved_model(folder: str) -> Any:
    """Return the description of a SavedModel, from the same of its files as its loader."""
    return part(module("tensorflow.python.saved_model.loader_impl"), "parse_saved_model")(folder)


def operation(name: str) -> Any:
    """Return the definition of an operation, or None."""
    return module("tensorflow.python.framework.op_def_registry").get(name)


def tensorflow_symbol(name: str) -> Any:
    """Return what TensorFlow or tf_keras exports under a name, or None."""
    return part(module("tensorflow.python.util.tf_export"), "get_symbol_from_name")(name)


def is_registered(name: Any, custom_objects: Mapping[str, Any]) -> bool:
    """Return whether a class or function of this name is registered with tf_keras, or given."""
    registry = module("tf_keras.src.saving.object_registration")
    find = part(registry, "get_registered_object")
    return isinstance(name, str) and find(name, custom_objects=custom_objects) is not None


#: Where TensorFlow defines its operations.
TENSORFLOW_MODULES: Final = "tensorflow.python."
#: Where tf_keras defines its functions of numbers.
NUMERIC_MODULES: Final = (
    *("tf_keras.src.activations", "tf_keras.src.backend", "tf_keras.src.constraints"),
    *("tf_keras.src.initializers", "tf_keras.src.losses", "tf_keras.src.metrics"),
    "tf_keras.src.regularizers",
)
#: Where tf_keras looks for what a file names without a module.
_KINDS: Final = (
    *("layers", "activations", "constraints", "initializers", "losses", "metrics", "models"),
    *("optimizers", "optimizers.legacy", "optimizers.schedules", "regularizers"),
    "mixed_precision",
)


def tf_keras_object(name: Any, registered: Any, home: Any, *, is_function: bool) -> Any:
    """Return the class or function that tf_keras uses for names in a file, or None.

    Imports no module but tf_keras's own.
    """
    if not isinstance(name, str):
        return None
    if home is None:
        found = (tensorflow_symbol(f"keras.{kind}.{name}") for kind in _KINDS)
        return next((each for each in found if each is not None), None)
    root = str(home).partition(".")[0]
    if root not in {"keras", "tf_keras", "builtins"} and (
        root != "tensorflow" or home not in sys.modules
    ):
        return None
    find = part(module("tf_keras.src.saving.serialization_lib"), "_retrieve_class_or_fn")
    try:
        return find(name, registered, home, "function" if is_function else "class", None)
    except (AttributeError, ImportError, TypeError, ValueError):  # there is no such thing
        return None


@contextlib.contextmanager
def hearing_of_repeats(
    coordinator: Any, tell: Callable[[int, tuple[Any, ...]], None]
) -> Iterator[None]:
    """Report each step that a coordinator schedules again because its worker has died.

    The listener gets the worker's number and the arguments with which the step was scheduled, the
    same tuple. The coordinator has a thread for each worker, named after it.
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


def never_convert(package: str) -> None:
    """Keep AutoGraph from rewriting the functions of a package, but not those that they call."""
    config = module("tensorflow.python.autograph.core.config")
    rules = part(config, "CONVERSION_RULES")
    config.CONVERSION_RULES = (part(config, "DoNotConvert")(package), *rules)


def keep_server(strategy: Any) -> None:
    """Make later strategies of TensorFlow's share the server of this one.

    TensorFlow would set up its collective operations again for each. A peer may have announced
    itself to this process by then: that would be lost, and both would wait forever.
    """
    kind: Any = type(strategy.extended)
    for name in ("_std_server_started", "_enable_check_health"):
        setattr(kind, name, part(strategy.extended, name))


def is_started() -> str | None:
    """Return which imported package has already initialised devices, or None."""
    context = sys.modules.get("tensorflow.python.eager.context")
    if getattr(context, "_context", None) is not None:
        return "TensorFlow's context already exists"
    bridge = sys.modules.get("jax._src.xla_bridge")
    if getattr(bridge, "_backends", None):
        return "JAX's devices are already initialised"
    return None


def leave_jax_without_waiting() -> None:
    """Remove JAX's exit handler: it waits for all other processes, which may be gone."""
    atexit.unregister(part(module("jax._src.api"), "clean_up"))


def listen_as(host: str) -> None:
    """Make JAX's collectives on CPUs listen on an address.

    By default gloo looks up the host name, which on many machines resolves to the loopback
    interface.
    """
    library = part(module("jax._src.xla_bridge"), "_jax")
    make = part(library, "make_gloo_tcp_collectives")
    library.make_gloo_tcp_collectives = functools.partial(make, hostname=host)
