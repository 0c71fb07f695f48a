"""What the file of a model may contain in safe mode.

Keras 3 creates only its own classes from a file. tf_keras imports any module that a file names and
calls what it finds there, and a graph of TensorFlow can read and write files, so both are checked
before they are loaded.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches import private_parts
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"not loaded in safe mode: the model {why}. If you trust whoever made it, use "
        "safe_mode=False (in Spark ML: setSafeMode(False))."
    )


# Files of tf_keras --------------------------------------------------------------------------------

#: Dicts with these class names are plain values.
_VALUES: Final = frozenset({"__tensor__", "__numpy__", "__bytes__"})
#: Layers that load a SavedModel, or call a method of anything.
_REFUSED_LAYERS: Final = frozenset({"ReloadedLayer", "ModuleWrapper"})
#: Classes whose methods a file may call.
_COMPOSITES: Final = frozenset({"RaggedTensor", "SparseTensor", "sparse.SparseTensor"})
#: Functions in these modules that create objects.
_REVIVE: Final = frozenset({"deserialize", "get"})
#: Modules of TensorFlow whose functions neither call Python nor read or write files.
_OPERATIONS: Final = frozenset(
    f"{private_parts.TENSORFLOW_MODULES}{name}"
    for name in (
        *("framework.constant_op", "framework.tensor_conversion", "ops.array_ops"),
        *("ops.array_ops_stack", "ops.bincount_ops", "ops.check_ops", "ops.clip_ops"),
        *("ops.confusion_matrix", "ops.gen_array_ops", "ops.gen_bitwise_ops", "ops.gen_image_ops"),
        *("ops.gen_linalg_ops", "ops.gen_math_ops", "ops.gen_nn_ops", "ops.gen_random_ops"),
        *("ops.gen_special_math_ops", "ops.gen_spectral_ops", "ops.gen_string_ops"),
        *("ops.histogram_ops", "ops.image_ops_impl", "ops.linalg.linalg_impl", "ops.linalg_ops"),
        *("ops.manip_ops", "ops.math_ops", "ops.nn_impl", "ops.nn_ops", "ops.numerics"),
        *("ops.ragged.ragged_array_ops", "ops.ragged.ragged_concat_ops"),
        *("ops.ragged.ragged_getitem", "ops.ragged.ragged_math_ops"),
        *("ops.ragged.ragged_string_ops", "ops.ragged.segment_id_ops", "ops.random_crop_ops"),
        *("ops.random_ops", "ops.sets_impl", "ops.signal.dct_ops", "ops.signal.fft_ops"),
        *("ops.signal.mel_ops", "ops.signal.mfcc_ops", "ops.signal.reconstruction_ops"),
        *("ops.signal.shape_ops", "ops.signal.spectral_ops", "ops.signal.window_ops"),
        *("ops.sort_ops", "ops.sparse_ops", "ops.special_math_ops", "ops.stateless_random_ops"),
        *("ops.string_ops", "ops.tensor_getitem_override"),
    )
)


def check_file(path: Path, custom_objects: Mapping[str, Any], *, compiles: bool) -> None:
    """Refuse a ``.keras`` file of tf_keras that could do more than compute.

    `custom_objects`: What the caller has given, and so trusts.
    `compiles`: Whether the optimizer, loss and metrics will be loaded, too.
    Raises `InvalidArgument`: The message says what is in it.
    Raises `GridflowError`: It isn't a ``.keras`` file. tf_keras would take it for an older format,
        which has no safe mode.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
            weights = [name for name in archive.namelist() if name.endswith(".h5")]
            if not compiles and isinstance(config, dict):
                config.pop("compile_config", None)
            check_config(config, custom_objects)
            for name in weights:
                with archive.open(name) as file:
                    _check_weights(file)
    except InvalidArgument:
        raise
    except (KeyError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise GridflowError(f"{path.name} is not a .keras file: {error}") from error


def check_config(config: Any, custom_objects: Mapping[str, Any]) -> None:
    """Refuse a configuration of tf_keras objects that could do more than compute.

    Raises `InvalidArgument`: The message says what is in it.
    """
    for each in _dicts(config):
        for key, value in each.items():
            if key.endswith("_type") and value == "lambda":
                raise _refused("contains Python code (a Lambda layer)")
            if key == "vocabulary" and isinstance(value, str):
                raise _refused(f"reads the file {value!r} as a vocabulary")
        if "class_name" in each:
            _check_object(each, custom_objects)


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _dicts(each)


def _check_object(told: dict[str, Any], custom_objects: Mapping[str, Any]) -> None:
    kind, module, config = str(told["class_name"]), told.get("module"), told.get("config")
    if kind in _VALUES:
        return
    if kind == "__lambda__":
        raise _refused("contains Python code (a lambda)")
    is_function = kind == "function"
    name = config if is_function else told.get("spec_name") if kind == "__typespec__" else kind
    registered = told.get("registered_name", kind)
    if private_parts.is_registered(name if is_function else registered, custom_objects):
        return
    found = private_parts.tf_keras_object(name, registered, module, is_function=is_function)
    if not (_is_numeric(found) if is_function else _is_part(found, kind)):
        home = f" of the module {module!r}" if module else ""
        raise _refused(
            f"uses {name!r}{home}, which isn't a part of tf_keras that only computes. Pass classes "
            "and functions of your own by name, custom_objects={'Mine': Mine}"
        )
    if not is_function:
        _check_calls(found, config)


def _is_part(found: Any, kind: str) -> bool:
    """Return whether this is a class of layers, losses … that does nothing else."""
    import tensorflow as tf
    import tf_keras

    if not isinstance(found, type):
        return False
    if kind == "__typespec__":
        return issubclass(found, tf.TypeSpec)
    kinds = (
        *(tf_keras.layers.Layer, tf_keras.losses.Loss, tf_keras.initializers.Initializer),
        *(tf_keras.regularizers.Regularizer, tf_keras.constraints.Constraint),
        *(tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer),
        tf_keras.optimizers.schedules.LearningRateSchedule,
        *(tf_keras.mixed_precision.Policy, tf_keras.mixed_precision.LossScaleOptimizer),
    )
    is_own = found.__module__.startswith("tf_keras.")
    return is_own and issubclass(found, kinds) and found.__name__ not in _REFUSED_LAYERS


def _is_numeric(function: Any) -> bool:
    home, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    return home in _OPERATIONS or (
        home.startswith(private_parts.NUMERIC_MODULES) and name not in _REVIVE
    )


def _check_calls(layer: type, config: Any) -> None:
    """Check the layers that call a function, a method or an operation by its name."""
    config = config if isinstance(config, dict) else {}
    names = {each.__name__ for each in layer.__mro__}
    called = str(config.get("function"))
    if "TFOpLambda" in names and not _is_numeric(private_parts.tensorflow_symbol(called)):
        raise _refused(f"calls tf.{called}")
    method = str(config.get("method_name", config.get("attr_name", "")))
    if "ClassMethod" in names and config.get("cls_symbol") not in _COMPOSITES:
        raise _refused(f"calls tf.{config.get('cls_symbol')}.{method}")
    if names & {"ClassMethod", "InstanceProperty"} and method.startswith("_"):
        raise _refused(f"calls {method}")
    if "TensorFlowOpLayer" in names:
        node = config.get("node_def")
        operation = str(node.get("op") if isinstance(node, dict) else node)
        if not is_harmless_operation(operation):
            raise _refused(f"runs the operation {operation}")


def _check_weights(file: Any) -> None:
    """Refuse weights that HDF5 would read from another file."""
    h5py = private_parts.module("h5py")

    # h5py gives back the first answer; it takes no exception from a function that it calls.
    def of_link(_name: str, link: Any) -> str | None:
        return None if isinstance(link, h5py.HardLink) else f"link to {link.path!r}"

    def of_object(_name: str, found: Any) -> str | None:
        is_elsewhere = isinstance(found, h5py.Dataset) and (found.external or found.is_virtual)
        return "are in another file" if is_elsewhere else None

    with h5py.File(file, "r") as content:
        # Each once, also where they form a circle.
        found = content.visititems_links(of_link) or content.visititems(of_object)
    if found:
        raise _refused(f"has weights that {found}")


# Operations of graphs -----------------------------------------------------------------------------

#: Operations without state that use files, the network or other code, or end the process.
_REACH_OUT: Final = frozenset(
    {
        *("Abort", "Copy", "CopyHost", "DebugIdentity", "DebugNanCount", "DebugNumericSummary"),
        *("DecodeProtoV2", "EncodeProto", "GenerateVocabRemapping", "InitializeTableFromTextFile"),
        *("MatchingFiles", "PyFuncStateless", "ReadFile", "XlaCustomCall", "XlaCustomCallV2"),
    }
)
#: Fill a table from a file, which may be one of the model's own.
_FILL_TABLES: Final = frozenset({"InitializeTableFromTextFile", "InitializeTableFromTextFileV2"})
#: Operations with state that only compute: variables, tables, control flow, random numbers.
_COMPUTE: Final = re.compile(
    r"_?(Arg|Retval|DeviceArg|DeviceRetval|If|While|ReadVariablesOp|VarHandlesOp)|Case|"
    r"StatefulPartitionedCall|PartitionedCall|XlaCallModule|XlaLaunch|Assert|CheckNumerics(V2)?|"
    r"Print|GuaranteeConst|Empty|DeepCopy|"
    r"(Auto)?(VarHandleOp|VariableV2|Variable|VariableShape|TemporaryVariable)|VarIsInitializedOp|"
    r"(Read|Assign|AssignAdd|AssignSub)VariableOp|DestroyResourceOp|DisableCopyOnRead|"
    r"Resource(Gather|GatherNd|CountUpTo|StridedSliceAssign|Scatter\w+|(Sparse)?Apply\w+)|"
    r"(Anonymous)?(Mutable)?(Dense)?HashTable(OfTensors)?(V2)?|LookupTable\w+|InitializeTableV2|"
    r"TensorArray\w*|Stack(Push|Pop|Close)?(V2)?|"
    r"Random\w+|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Stateful(Uniform|Standard|"
    r"Truncated|Random)\w*|StatelessRandomGetAlg|NonDeterministicInts|Rng(Skip|ReadAndSkip)|"
    r"(Uniform|LogUniform|All|LearnedUnigram|ThreadUnsafeUnigram)CandidateSampler|"
    r"SampleDistortedBoundingBox(V2)?|CudnnRNN\w*|AddSparseToTensorsMap|"
    r"(AddMany|TakeMany)Sparse(To|From)TensorsMap"
)


def is_harmless_operation(name: str) -> bool:
    """Return whether an operation of TensorFlow only computes."""
    told = private_parts.operation(name)
    if told is None or name in _REACH_OUT or "Dataset" in name:
        return False
    return not told.is_stateful or _COMPUTE.fullmatch(name) is not None


# SavedModels --------------------------------------------------------------------------------------


def load_saved_model(folder: str, tags: Sequence[str] | None = None, *, is_safe: bool) -> Any:
    """Load a SavedModel; in safe mode only if its graphs do nothing but compute.

    Raises `InvalidArgument`: The message says what is in it.
    """
    import tensorflow as tf

    if is_safe:
        check_saved_model(folder)
    return tf.saved_model.load(folder, tags=tags)


def check_saved_model(folder: str) -> None:
    """Refuse a SavedModel that could do more than compute.

    Its graphs may contain operations that read and write files, use the network or call Python,
    and it may name files outside its folder.

    Raises `InvalidArgument`: The message says what is in it.
    """
    graphs = private_parts.parsed_saved_model(folder).meta_graphs
    for graph in graphs:
        for asset in graph.asset_file_def:
            path = PurePosixPath(asset.filename)
            if path.is_absolute() or ".." in path.parts:
                raise _refused(f"reads the file {asset.filename!r}, which isn't in its folder")
    is_of_objects = len(graphs) == 1 and graphs[0].HasField("object_graph_def")
    for graph in graphs:
        _Graph(graph).check(is_of_objects=is_of_objects)


class _Graph:
    """The operations of a SavedModel that run when it is loaded, or predicts."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._functions = {each.signature.name: each for each in graph.graph_def.library.function}
        self._called = {
            name
            for function in self._functions.values()
            for node in function.node_def
            for name in self._calls(node)
        }
        self._checked: set[str] = set()

    def check(self, *, is_of_objects: bool) -> None:
        """Refuse what does more than compute.

        `is_of_objects`: Whether TensorFlow restores Python objects, as TensorFlow 2 has saved them,
            and so runs only their functions. Otherwise it runs the main graph.
        """
        if is_of_objects:
            names = set(self._graph.object_graph_def.concrete_functions)
        else:
            names = set()
            for node in self._running():
                self._check(node, self._is_of_checkpoint(node) or self._is_of_asset(node))
                names |= self._calls(node)
        while names:
            name = names.pop()
            if name in self._functions and name not in self._checked:
                self._checked.add(name)
                for node in self._functions[name].node_def:
                    self._check(node, self._is_captured_asset(name, node))
                    names |= self._calls(node)

    def _check(self, node: Any, is_own_file: bool) -> None:
        # tf.print can print into a file.
        is_print = node.op == "PrintV2" and not node.attr["output_stream"].s.startswith(b"file")
        if node.op in self._functions or is_own_file or is_print or is_harmless_operation(node.op):
            return
        raise _refused(f"runs the operation {node.op}, which can do more than compute")

    def _calls(self, node: Any) -> set[str]:
        called = {node.op} if node.op in self._functions else set()
        for each in node.attr.values():
            called |= {each.func.name, *(function.name for function in each.list.func)} - {""}
        return called

    def _running(self) -> list[Any]:
        """Return the nodes of the main graph that a signature, or loading, runs."""
        nodes = {node.name: node for node in self._graph.graph_def.node}
        wanted = [self._graph.saver_def.restore_op_name]
        for signature in self._graph.signature_def.values():
            for tensor in signature.outputs.values():
                parts = [part.name for part in tensor.composite_tensor.components]
                sparse = tensor.coo_sparse
                wanted += [
                    *(tensor.name, *parts),
                    *(sparse.values_tensor_name, sparse.indices_tensor_name),
                    sparse.dense_shape_tensor_name,
                ]
        for key in ("saved_model_main_op", "legacy_init_op", "table_initializer"):
            wanted += self._graph.collection_def[key].node_list.value
        found: dict[str, Any] = {}
        while wanted:
            name = _node(wanted.pop())
            if name in nodes and name not in found:
                found[name] = nodes[name]
                wanted += nodes[name].input
        return list(found.values())

    def _is_of_checkpoint(self, node: Any) -> bool:
        """Return whether a node reads the variables' own files."""
        own = _node(self._graph.saver_def.filename_tensor_name)
        return node.op == "RestoreV2" and _node(node.input[0]) == own

    def _is_of_asset(self, node: Any) -> bool:
        """Return whether a node fills a table from a file in the folder, in the main graph."""
        own = {_node(each.tensor_info.name) for each in self._graph.asset_file_def}
        return node.op in _FILL_TABLES and _node(node.input[1]) in own

    def _is_captured_asset(self, name: str, node: Any) -> bool:
        """Return whether a node fills a table from a file that its function has captured."""
        if node.op not in _FILL_TABLES or name in self._called:
            return False
        objects = self._graph.object_graph_def
        if name not in objects.concrete_functions:
            return False
        captured = [objects.nodes[i] for i in objects.concrete_functions[name].bound_inputs]
        arguments = {each.name for each in self._functions[name].signature.input_arg}
        has_constant = any(each.HasField("constant") for each in captured)
        return node.input[1] in arguments and not has_constant


def _node(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
