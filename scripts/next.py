"""What the coming releases change: ``make next``, which prints one table.

Each component is tried alone, in an environment that differs from what the tests run with by
nothing else, and then all of them together. The environments lie in ``.cache/next``, and share
their files by hard links. What the registry doesn't have, or what can't be installed, is a row
that says so.

``python scripts/next.py keras jax`` tries these alone. With ``--inside`` it is what runs in an
environment, and writes what it found.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from commands import ROOT, CommandFailed, uv

PLACE = ROOT / ".cache" / "next"
#: The oldest that the newest JAX runs on.
PYTHON = "3.12"
EXTRAS = "spark,tensorflow,tf-keras,tensorboard,jax,torch"
SHOWN = 3  # names of a kind in a cell of the table
SECONDS = 1200  # for a component's tests, and for each of its columns of the conformance table

GROUP, SERVERS = "multi_worker_mirrored", "parameter_server"
#: Strategy, flavour and whether it is on Spark: columns of the conformance table.
KERAS = ((GROUP, "keras", False), ("mirrored", "keras", False), (SERVERS, "keras", False))
TF_KERAS = ((GROUP, "tf_keras", False),)
JAX, TORCH = ((GROUP, "jax", False),), ((GROUP, "torch", False),)
SPARK = ((GROUP, "keras", True),)
#: Lets a Keras be probed that can't be patched (`UNSAFE_VARIABLE` of the registry).
UNSAFE = "GRIDFLOW_UNSAFE_KERAS"
CURES = tuple(
    f"tests/keras/test_{name}.py" for name in ("bug_patches", "patched_training", "private_parts")
)


@dataclass(frozen=True)
class Component:
    """What is to come, and what it may change.

    Attributes
    ----------
    installs : tuple of str
        Requirements.
    columns : tuple
        Of the conformance table.
    tests : tuple of str
        Beside those of the patches.
    removes : tuple of str
        Packages whose place it takes.
    without : tuple of str
        Packages that it would bring, which are components of their own.
    """

    installs: tuple[str, ...]
    columns: tuple
    tests: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


_PANDAS = ("tests/ml/test_adapt.py", "tests/feed/test_local.py", "tests/feed/test_ledger.py")
_PYSPARK = ("tests/feed/test_spark_data.py",)
COMPONENTS = {
    "now": Component((), (*KERAS, *TF_KERAS, *JAX, *TORCH, *SPARK), (*_PANDAS, *_PYSPARK)),
    "keras": Component(("keras-nightly>=3.16.0.dev0",), (*KERAS, *JAX, *TORCH), removes=("keras",)),
    "tensorflow": Component(
        ("tf-nightly-cpu>=2.22.0.dev0",),
        (*KERAS, *TF_KERAS),
        removes=("tensorflow",),
        without=("keras-nightly",),
    ),
    "jax": Component(("jax>=0.12",), JAX),
    "pandas": Component(("pandas>=3",), SPARK, (*_PANDAS, *_PYSPARK)),
    "pyspark": Component(("pyspark>=4.3",), SPARK, _PYSPARK),
}
COMPONENTS["together"] = Component(
    tuple(each for component in COMPONENTS.values() for each in component.installs),
    COMPONENTS["now"].columns,
    COMPONENTS["now"].tests,
    removes=("keras", "tensorflow"),
)
PACKAGES = (
    *("keras", "keras-nightly", "tensorflow", "tf-nightly-cpu", "tf-keras", "jax", "torch"),
    *("pandas", "pyspark"),
)


# Environments ------------------------------------------------------------------------------------


def install(folder, *words):
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", *words, cwd=ROOT)


def environment(name):
    """Return the interpreter of a component's environment, made where it isn't there yet."""
    folder, component = PLACE / name, COMPONENTS[name]
    done, wanted = folder / ".done", repr(component)
    if done.exists() and done.read_text() == wanted:
        return folder / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)
    if name == "now":
        make_first(folder)
    else:
        environment("now")
        # Packages are never written into: what uv replaces it unlinks.
        shutil.copytree(PLACE / "now", folder, symlinks=True, copy_function=os.link)
        (folder / ".done").unlink()
        replace(folder, component)
    done.write_text(wanted)
    return folder / "bin" / "python"


def make_first(folder):
    """Make the environment of what the tests run with."""
    sys.path.insert(0, str(ROOT / "tests"))
    from suite.pythons import find

    uv("venv", "--quiet", "--python", find(PYTHON) or PYTHON, folder)
    pinned = ("--constraint", "requirements/constraints.txt")
    # pyspark comes as source. Its build is not found again in uv's cache.
    install(folder, "--no-cache", *pinned, "pyspark")
    install(folder, *pinned, "--compile-bytecode", "--editable", f".[{EXTRAS}]", "--group", "test")


def replace(folder, component):
    """Put a component's packages in the place of others."""
    overrides = folder / "without.txt"
    overrides.write_text("".join(f'{each}; python_version < "0"\n' for each in component.without))
    if component.removes:
        python = folder / "bin" / "python"
        uv("pip", "uninstall", "--quiet", "--python", python, *component.removes)
    for built in (True, False):
        these = [each for each in component.installs if each.startswith("pyspark") == built]
        cache = ["--no-cache"] if built else ["--override", overrides]
        if these:
            install(folder, "--compile-bytecode", *cache, *these)


# Inside of one -----------------------------------------------------------------------------------


def states(flavour):
    """Return what has become of each patch in this process; it must be allowed to be unpatched."""
    from gridflow._keras.patches import registry

    try:
        applied = {fix.name for fix in registry.apply() if fix.flavour == flavour}
        known = registry.known(flavour)
    except Exception as error:
        return {"all": f"can't be loaded: {line(error)}"}
    found = {}
    for fix in known:
        try:
            if fix.name in applied:
                found[fix.name] = "needed"
            elif not fix.concerns():
                found[fix.name] = "does not matter here"
            else:
                found[fix.name] = "can't be applied" if fix.seen() else "not needed"
        except Exception as error:
            found[fix.name] = f"probe fails: {line(error)}"
    return found


def line(error):
    """Return an error as one short line."""
    text = str(error).strip()
    said = re.findall(r"^(?:[\w.]*(?:Error|Exception)|E)\s*:\s.*$", text, re.MULTILINE)
    return f"{type(error).__name__}: {(said or text.splitlines() or [''])[-1 if said else 0]}"


def states_of_rank(ctx, flavour):  # noqa: ARG001 (run() passes it by this name)
    import keras  # noqa: F401

    return states(flavour)


def patches():
    """Return the states of the patches of each flavour and backend."""
    from gridflow import LocalLauncher, TensorflowDistributor

    os.environ[UNSAFE] = "1"
    found = {}
    for flavour in ("keras", "tf_keras"):
        source = (
            f"import sys, json; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
            f"import next, {flavour}; print(json.dumps(next.states({flavour!r})))"
        )
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=False
        )
        last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
        found[flavour] = {"all": last} if done.returncode else json.loads(last)
    for backend in ("jax", "torch"):
        try:
            distributor = TensorflowDistributor(
                2,
                GROUP,
                backend=backend,
                launcher=LocalLauncher(),
                env={UNSAFE: "1"},
                logs="none",
                progress=False,
            )
            found[backend] = distributor.run(states_of_rank, "keras").values[0]
        except Exception as error:
            found[backend] = {"all": f"no process group: {line(error)}"}
    return found


def columns(name, folder):
    """Return for each column of the conformance table the cells that pass and fail."""
    sys.path.insert(0, str(ROOT / "tests"))
    from conformance import table

    plain, found = {}, {}
    for strategy, flavour, on_spark in COMPONENTS[name].columns:
        title = f"{strategy} {flavour}{' on Spark' if on_spark else ''}"
        place = folder / title.replace(" ", "-")
        try:
            if flavour not in plain:
                plain[flavour] = table.run_plain(flavour, folder, models=1, steps=False)
            options = {"models": 1, "steps": False}
            if on_spark:
                outcomes = on_cluster(table, strategy, flavour, plain[flavour], place, options)
            else:
                outcomes = table.run_column(strategy, flavour, plain[flavour], place, **options)
        except Exception as error:
            traceback.print_exc()
            found[title] = {"error": line(error)}
            continue
        failed = [", ".join(cell) for cell, outcome in outcomes.items() if not outcome.passed]
        found[title] = {"passed": len(outcomes) - len(failed), "failed": failed}
    return found


def on_cluster(table, strategy, flavour, plain, place, options):
    from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

    with StandaloneCluster(workers=2, cores=1) as cluster:
        spark = cluster.session()
        try:
            spark.sparkContext.setLogLevel("ERROR")
            wait_for_slots(spark, 2)
            return table.run_column(strategy, flavour, plain, place, spark, **options)
        finally:
            spark.stop()


def tests(name):
    """Return how many tests pass, and the names of those that don't."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    # What trains in full is in the conformance table.
    words += ["-k", "not trains_as_one", *CURES, *COMPONENTS[name].tests]
    # Tests set for themselves what they dare.
    environment = {key: value for key, value in os.environ.items() if key != UNSAFE}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"passed": 0, "failed": [f"not done in {SECONDS} s"]}
    print(done.stdout, flush=True)
    passed = re.findall(r"(\d+) passed", done.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?([^/\s]+\.py\S*)", done.stdout, re.MULTILINE)
    if not passed and not failed:
        failed = [(done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]]
    return {"passed": int(passed[-1]) if passed else 0, "failed": failed}


def inside(name, place):
    """Be a component: write what works as JSON."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found = {"versions": versions, "patches": patches()}
    with tempfile.TemporaryDirectory(prefix="gridflow-next-") as folder:
        found |= {"columns": columns(name, Path(folder)), "tests": tests(name)}
    Path(place).write_text(json.dumps(found, indent=1))


# The table ---------------------------------------------------------------------------------------


def try_out(name):
    """Return what a component's environment finds, or why there is none."""
    say(f"{name}: making its environment")
    try:
        python = environment(name)
    except CommandFailed as error:
        return {"missing": short(error.said)}
    say(f"{name}: trying it")
    place = PLACE / f"{name}.json"
    place.unlink(missing_ok=True)
    with (PLACE / f"{name}.log").open("w") as log:
        subprocess.run(
            [python, __file__, "--inside", name, place],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            check=False,
        )
    if not place.exists():
        return {"missing": f"it can't be tried, see {(PLACE / f'{name}.log').relative_to(ROOT)}"}
    return json.loads(place.read_text())


def say(text):
    print(text, file=sys.stderr, flush=True)


def short(text):
    """Return a reason that fits into a table."""
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= 200 else f"{text[:200]}…"


def some(names):
    """Return names, the first of them where there are many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return short("; ".join(names[:SHOWN])) + more


def row(name, found, now):
    """Return a component's row: versions that differ from now, and what works with them."""
    if "missing" in found:
        return [name, "-", *["-"] * 4, found["missing"]]
    before = now.get("versions", {}) if name != "now" else {}
    versions = [f"{p} {v}" for p, v in found["versions"].items() if before.get(p) != v]
    needed, gone, broken = [], [], []
    for home, each in found["patches"].items():
        for patch, state in each.items():
            if state == "needed":
                needed.append(patch)
            elif state == "not needed":
                was = now.get("patches", {}).get(home, {}).get(patch)
                if was == "needed" or not was:
                    gone.append(f"{patch} ({home})")
            elif state != "does not matter here":
                broken.append(f"{patch} ({home}): {state}")
    passed = sum(each.get("passed", 0) for each in found["columns"].values())
    cells = passed + sum(len(each.get("failed", [])) for each in found["columns"].values())
    fails = [f"{t}: {each['error']}" for t, each in found["columns"].items() if "error" in each]
    fails += [
        f"{title}: {some(each['failed'])}"
        for title, each in found["columns"].items()
        if each.get("failed")
    ]
    known = set(now.get("tests", {}).get("failed", [])) if name != "now" else set()
    ran = found["tests"]["passed"] + len(found["tests"]["failed"])
    fails += [each for each in found["tests"]["failed"] if each not in known]
    new = sorted(
        {
            f"{patch} ({home})"
            for home, each in found["patches"].items()
            for patch, state in each.items()
            if state == "needed" and now.get("patches", {}).get(home, {}).get(patch) != "needed"
        }
    )
    return [
        name,
        "<br>".join(versions),
        f"{passed} of {cells} cells",
        f"{found['tests']['passed']} of {ran}",
        f"{len(needed)}" + (f", new: {some(new)}" if new and name != "now" else ""),
        some(gone) if name != "now" and gone else "-",
        "<br>".join([some(broken)] * bool(broken) + [short(each) for each in fails[:6]]) or "-",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=", ".join(COMPONENTS))
    parser.add_argument("--inside", nargs=2, metavar=("COMPONENT", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help="print the last table once more")
    options = parser.parse_args()
    if options.inside:
        return inside(*options.inside)
    unknown = set(options.components) - set(COMPONENTS)
    if unknown:
        parser.error(
            f"unknown component {', '.join(sorted(unknown))}; known: {', '.join(COMPONENTS)}"
        )
    PLACE.mkdir(parents=True, exist_ok=True)
    chosen = options.components or list(COMPONENTS)
    found = {}
    for name in dict.fromkeys(("now", *chosen)):  # what all others are compared with
        place = PLACE / f"{name}.json"
        if place.exists() and (options.again or (name == "now" and "now" not in chosen)):
            found[name] = json.loads(place.read_text())
        else:
            found[name] = try_out(name)
    heads = ["component", "version", "conformance", "tests", "patches needed", "no longer", "fails"]
    print(f"Tried on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, Python {PYTHON}.\n")
    print(f"| {' | '.join(heads)} |")
    print(f"|{'---|' * len(heads)}")
    for name, each in found.items():
        print(f"| {' | '.join(row(name, each, found['now']))} |")
    return None


if __name__ == "__main__":
    sys.exit(main())
