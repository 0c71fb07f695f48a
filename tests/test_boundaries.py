"""What must stay in one place: names of strategies and backends, and Keras's private parts."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gridflow
from gridflow._spec import backends, strategies
from gridflow._training.modes.base import Mode
from gridflow.deploy import TARGETS, get_target

ROOT = Path(gridflow.__file__).parent
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
}

#: Beside the package itself; all else has a folder.
MOST_AT_THE_TOP = 8

NAMES = {*strategies.STRATEGIES, *backends.BACKENDS}
#: Where they may be compared, or be the keys of a table, and why.
NAMED = {
    "_agent/environment.py": "versions of packages, by their names",
    "_agent/forkserver/client.py": "'command' is a field of a request",
    "_coordinator/console.py": "'none' is a value of logs=",
    "_feed/ingest/files/tfrecords.py": "'none' is a compression",
    "_keras/patches/private_parts.py": "packages with private parts",
    "_keras/group/own_steps.py": "the package that a class is from",
    "_keras/patches/registry.py": "the table of the patches of each backend",
    "_keras/results.py": "'none' is a kind of value",
    "ml/exporting.py": "'torch' is a format to which Keras exports",
    "ml/serving.py": "which backend Keras has in a worker of Spark",
    "_spec/backends.py": "that KERAS_BACKEND doesn't contradict backend=",
    "_training/modes/synchronous.py": "what makes each of its strategies",
    "_training/pulling.py": "'none' is a compression",
}
#: The description of a job, and what users' tests are made of, have names of their own.
NOT_THE_RUNTIME = ("deploy/", "testing/")

PRIVATE_MODULE = re.compile(
    r"\b(keras|tf_keras)[./]src\b|\btensorflow[./]python\b|\bjax[./]_src\b|\b__internal__\b"
)
DOOR = (
    *("_keras/group/", "_keras/patches/bugs/", "_keras/patches/hooks/"),
    "_keras/patches/private_parts.py",
)
#: Private attributes of others that are no part of Keras or TensorFlow, and why they are used.
PRIVATE = {
    "_SubParsersAction": "argparse has no public name for it",
    "_actions": "argparse has no public name for the arguments of a parser",
    "_asdict": "public, of a named tuple",
    "_conf": "Spark's: the public way copies all settings to tell one",
    "_current_frames": "public, of sys",
    "_dummy": "Spark's, for the Params of a class",
    "_exit": "public, of os",
    "_initializing": "of a module's spec: importlib says nowhere else that an import goes on",
    "_java_resource_profile": "Spark's",
    "_jc": "Spark's",
    "_jdf": "Spark's",
    "_jsc": "Spark's",
    "_jsparkSession": "Spark's",
    "_jvm": "Spark's",
    "_options": "Spark's",
    "_paramMap": "Spark's: the Params that are set",
    "_python_includes": "Spark's: the Python files that it has sent",
    "_repr_html_": "public, IPython's",
    "_resetUid": "Spark's: a model has the uid of its estimator",
    "_run_exitfuncs": "atexit's: the only way before os._exit",
    "_register_atexit": "threading's: the only way before the pools of concurrent.futures end",
    "_sc": "Spark's",
    "_set": "Spark's: sets Params by name",
    "_wait": "gridflow's own, of a handle",
}
#: Which target it is, is asked only here beside the targets' own modules, and why.
TARGETS_NAMED = {
    "deploy/capabilities.py": "'tensorboard' is a section of a job",
    "deploy/description/loading.py": "'tensorboard' is a section of a job",
    "deploy/distributed.py": "the table of those whose jobs run in this process",
    "deploy/drivers/in_process.py": "which launcher those have",
}
READS_BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}


def strings(node):
    """Yield a text, or those in a literal tuple, list or set."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for each in node.elts:
            yield from strings(each)


def compared(tree):
    """Yield the line and the texts of each comparison, case and key of a table."""
    for node in ast.walk(tree):
        sides = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Dict):
            sides = [key for key in node.keys if key is not None]
        for side in sides:
            for text in strings(side):
                yield node.lineno, text


def compares_names(tree):
    """Return the comparisons with a name of a strategy or backend, and those of one with anything.

    The latter find names behind constants; ``in`` is left to the tables, which hold them.
    """
    found = [f"line {line}: {text!r}" for line, text in compared(tree) if text in NAMES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = (ast.unparse(each) for each in (node.left, *node.comparators))
            if any(re.fullmatch(r"(.*[._])?(strategy|backend)(_name)?", side) for side in sides):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def docstrings(tree):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node) is not None:
            yield node.body[0].value


def dotted(node):
    """Return the names of a chain of attributes, joined by dots; what it begins with may be any."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(names))


def private_modules(tree):
    """Return the imports, and texts but docstrings, that name a private module."""
    said = {id(node) for node in docstrings(tree)}
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [] if id(node) in said else [node.value]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        found += [f"line {node.lineno}: {name}" for name in names if PRIVATE_MODULE.search(name)]
    return found


def private_attributes(tree):
    """Return the private attributes of others that are used, by a dot or by name."""
    found = []
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Attribute) and dotted(node.value) not in {"self", "cls"}:
            name = node.attr
        elif isinstance(node, ast.Call) and dotted(node.func) in READS_BY_NAME:
            given = node.args[1]
            first = given.values[0] if isinstance(given, ast.JoinedStr) else given
            name = next(strings(first), "")
        ours = ("__", "_gridflow")
        if name.startswith("_") and not name.startswith(ours) and name not in PRIVATE:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_few_modules_stand_at_the_top():
    top = sorted(name for name in TREES if "/" not in name and name != "__init__.py")
    assert len(top) <= MOST_AT_THE_TOP, top


def imported(node, *, types):
    """Return what of gridflow is imported, wherever that is; for types alone, or not only."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
        return set()
    found = set()
    if isinstance(node, ast.ImportFrom) and node.module:
        found = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    below = (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
    return found.union(*(imported(each, types=types) for each in below))


@pytest.mark.parametrize("types", [False, True])
def test_no_modules_import_one_another_in_a_circle_not_even_late(types):
    # Packages are no more than names here: `gridflow` itself imports all that it offers.
    trees = {
        f"gridflow.{place.removesuffix('.py').replace('/', '.')}": tree
        for place, tree in TREES.items()
        if not place.endswith("__init__.py")
    }
    needs = {
        name: imported(tree, types=types) & (trees.keys() - {name}) for name, tree in trees.items()
    }
    TopologicalSorter(needs).prepare()


def test_a_public_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for place, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_strategy_or_backend_is_asked_and_not_compared():
    # Ask gridflow._spec.strategies or gridflow._spec.backends, or the mode.
    found = {
        path: compares_names(tree)
        for path, tree in TREES.items()
        if path not in NAMED and not path.startswith(NOT_THE_RUNTIME)
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_places_that_may_name_strategies_and_backends_do():
    assert [path for path in NAMED if not compares_names(TREES[path])] == []


def test_a_target_is_asked_and_not_compared():
    # Ask gridflow.deploy.Target: what differs between targets is in its subclass.
    names = {*TARGETS, *(get_target(name).form for name in TARGETS)}
    found = {
        path: [f"line {line}: {text!r}" for line, text in compared(tree) if text in names]
        for path, tree in TREES.items()
        if path.startswith("deploy/") and not path.startswith("deploy/targets/")
    }
    assert {path for path, lines in found.items() if lines} == TARGETS_NAMED.keys()


def test_a_targets_files_are_few():
    # The class of its section and the table of targets have the name, its own file has the rest.
    found = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if re.search(r"\bmarathon\b", path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert sorted(found) == [
        "deploy/__init__.py",
        "deploy/description/description.py",
        "deploy/targets/marathon.py",
        "deploy/targets/registry.py",
    ]


#: What opens a way between processes, by the name of the call or of the base class.
OPENS = {"listen", "create_server", "socketpair", "get_server", "FlightServerBase", "JobServer"}
#: They call something else of that name, or hold or look for a port that others use.
OPENS_NOTHING = {
    "_coordinator/loop.py",  # the coordinator's, of _wire/server.py
    "_keras/patches/hooks/fits.py",
    "_training/groups/cpu.py",
    "_training/groups/torch.py",  # torch's own
    "_training/process.py",
    "_training/runtime.py",
    "_wire/arrow_flight.py",  # what _wire/server.py and _wire/receiver.py inherit
    "_wire/mutual_tls.py",  # what the others call
}


def test_every_way_between_processes_is_in_the_table_of_the_architecture():
    found = set()
    for path in ROOT.rglob("*.py"):
        names = {
            ast.unparse(each).rpartition(".")[2]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for each in (
                [node.func]
                if isinstance(node, ast.Call)
                else node.bases
                if isinstance(node, ast.ClassDef)
                else []
            )
        }
        if names & OPENS:
            found.add(path.relative_to(ROOT).as_posix())
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Connections")[2].partition("\n## ")[0]
    told = {name for name in re.findall(r"`([\w/]+\.py)`", section) if (ROOT / name).exists()}
    assert found >= OPENS_NOTHING
    assert found - OPENS_NOTHING <= told
    assert len(re.findall(r"^\| .* \| .* \| `.* \|", section, re.MULTILINE)) <= 10
    ports = re.findall(r"^\| [^|]* \| port of", section, re.MULTILINE)
    assert len(ports) <= 5
    assert told == set(re.findall(r"`([\w/]+\.py)`", section))


def test_each_strategy_and_backend_has_its_facts_and_its_mode():
    asked = {"begin", "make_strategy", "dataset", "trainer", "end"}
    assert asked == Mode.__abstractmethods__
    modes = {strategies.of(name).mode for name in strategies.STRATEGIES}
    modes |= {backends.of(name).mode for name in backends.BACKENDS} - {None}
    folder = ROOT / "_training" / "modes"
    there = {path.stem for path in folder.glob("*.py")} - {"__init__", "base"}
    assert modes == there
    for name in modes:
        mode = importlib.import_module(f"gridflow._training.modes.{name}").MODE
        assert issubclass(mode, Mode)
        assert not inspect.isabstract(mode)
        for function in asked:
            own, common = (inspect.signature(getattr(each, function)) for each in (mode, Mode))
            assert list(own.parameters) == list(common.parameters), (name, function)


def test_the_context_has_what_users_need_and_no_more():
    public = {name for name in dir(gridflow.TrainingContext) if not name.startswith("_")}
    assert public == {
        "absolute_path",
        "adapt_dataset",
        "all_gather",
        "alone",
        "backend",
        "barrier",
        "broadcast",
        "callbacks",
        "coordinator",
        "data_service",
        "dataset",
        "evaluate",
        "evaluate_checkpoints",
        "files",
        "fit",
        "is_chief",
        "is_evaluator",
        "loop",
        "members",
        "parquet_dataset",
        "report",
        "results",
        "seed",
        "server",
        "should_stop",
        "steps_per_epoch",
        "stop_feeding",
        "strategy",
        "stream",
        "tfrecord_dataset",
    }


def test_each_group_has_the_same_functions():
    for name in backends.BACKENDS:
        if backends.of(name).mode == "neutral":
            group = importlib.import_module(f"gridflow._training.groups.{name}")
            assert group.__all__ == ["equal_parts", "join", "leave", "spread"]


def test_private_parts_of_keras_are_touched_behind_one_door():
    # They belong into gridflow._keras.group, or the bugs and hooks of its patches, with a test.
    found = {
        path: [*private_modules(tree), *private_attributes(tree)]
        for path, tree in TREES.items()
        if not path.startswith(DOOR)
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        'if name == "jax": pass',
        'if name in {"torch", "x"}: pass',
        'match name:\n  case "server": pass',
        'by = {"mirrored": 1}',
        "if setup.strategy == CONSTANT: pass",
        "if self._strategy_name != CONSTANT: pass",
    ],
)
def test_each_way_to_compare_a_name_is_seen(code):
    assert compares_names(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "from keras.src import backend",
        "from keras import src",
        "import tensorflow.python.eager.context",
        "import keras\nkeras.src.backend",
        'sys.modules["jax._src.xla_bridge"]',
        "model._symbolic_build()",
        'getattr(model, "_loss_tracker", None)',
        'getattr(model, f"_{kind}s_struct")',
    ],
)
def test_each_way_to_a_private_part_is_seen(code):
    assert [*private_modules(ast.parse(code)), *private_attributes(ast.parse(code))]


def test_hooks_of_tf_keras_load_no_keras_3():
    """Its import would load the hooks of Keras 3 while those of tf_keras are half loaded."""
    hooks = ROOT / "_keras" / "patches" / "hooks"
    seen, left = set(), ["one_replica_tf_keras"]
    while left:
        name = left.pop()
        if name in seen or not (hooks / f"{name}.py").exists():
            continue
        seen.add(name)
        tree = ast.parse((hooks / f"{name}.py").read_text(encoding="utf-8"))
        for node in tree.body:  # at the top: what a function imports comes later
            if isinstance(node, ast.ImportFrom) and node.module == "gridflow._keras.patches.hooks":
                left += [alias.name for alias in node.names]
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(each.partition(".")[0] == "keras" for each in modules), name
