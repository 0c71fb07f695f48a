"""The parts of `gridflow.compat.tfos` alone: TensorBoard, paths, GPUs, exports, aliases."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import random
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gridflow import (
    GridflowError,
    NotEnoughGpus,
)
from gridflow.compat.tfos import (
    TFCluster,
    TFSparkNode,
    _node,
    _setting,
    compat,
    gpu_info,
    reservation,
    util,
)
from gridflow.compat.tfos._params import Namespace
from suite.waiting import patience, wait_for


@pytest.mark.slow  # starts TensorBoard
def test_tensorboard_is_found_by_its_secret_path_alone(tmp_path, no_leaks):
    board = _node._Board("127.0.0.1", str(tmp_path))
    try:
        node = {"host": "127.0.0.1", "tb_port": board.port, "tb_path": board.path}
        url = TFCluster.TFCluster.tensorboard_url(SimpleNamespace(cluster_info=[node]))

        def status(address):
            try:
                with urllib.request.urlopen(address, timeout=patience()) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                return None

        assert wait_for(lambda: status(url), "TensorBoard") == 200
        for path in ("", "data/runs", "data/logdir", "index.html"):
            assert status(f"http://127.0.0.1:{board.port}/{path}") == 404
        assert len(board.path) >= 32
        assert not any(board.path in word for word in psutil.Process(board.pid).cmdline())
    finally:
        board.close()


# A node ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fs", ["file://", "hdfs://", "viewfs://", "s3a://bucket"])
def test_paths_get_the_scheme_of_the_default_file_system(fs):
    ctx = TFSparkNode.TFNodeContext(defaultFS=fs, working_dir="/here/dir")
    for path in ("hdfs://foo/bar", "file:///foo", "gs://foo/bar", "abfss://c@a/b"):
        assert ctx.absolute_path(path) == path
    assert ctx.absolute_path("/foo/bar") == f"{fs}/foo/bar"
    home = {"file://": "/here/dir", "s3a://bucket": ""}.get(fs, f"/user/{getpass.getuser()}")
    assert ctx.absolute_path("foo") == f"{fs}{home}/foo"


def test_numbers_of_nodes_go_to_servers_first_and_to_workers_last():
    assert _setting.template(6, 2, "chief", eval_node=True) == {
        "ps": [0, 1],
        "chief": [2],
        "evaluator": [3],
        "worker": [4, 5],
    }
    assert _setting.template(1, 0, "master", eval_node=False) == {"master": [0]}


@pytest.mark.parametrize("kind", [dict, argparse.Namespace, Namespace])
def test_gpus_may_be_parts_and_are_for_nodes_that_train(kind):
    def made(**words):
        return kind(words) if kind is Namespace else kind(**words)

    assert _setting.num_gpus(made()) is None
    assert _setting.num_gpus(["--num_gpus", "1"]) is None
    gpus = _setting.num_gpus(made(num_gpus=0.25))
    roles = _setting.roles_of({"ps": [0], "chief": [1], "worker": [2, 3]}, "chief", gpus)
    assert [(role.name, role.count, role.gpus) for role in roles] == [
        ("ps", 1, None),
        ("chief", 1, 0.25),
        ("worker", 2, 0.25),
    ]


@pytest.fixture
def meta(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    server = reservation.Server(1)
    yield {
        "id": random.getrandbits(62),
        "cluster_template": {"chief": [0]},
        "default_fs": "file://",
        "working_dir": ".",
        "server_addr": server.start(),
    }
    server.stop()


def test_a_node_can_be_run_in_this_process(meta):
    seen = []
    node = TFSparkNode.run(lambda a, c: seen.append((a, c)), {"x": 1}, meta, False, None, [], False)
    node([0])
    ((args, ctx),) = seen
    assert args == {"x": 1}
    with contextlib.closing(reservation.Client(meta["server_addr"])) as client:
        (known,) = client.get_reservations()
    assert [known[name] for name in ("tb_pid", "tb_port", "tb_path")] == [0, 0, ""]
    assert (ctx.job_name, ctx.task_index, ctx.num_workers) == ("chief", 0, 1)
    assert json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "chief", "index": 0}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("name", ["HADOOP_PREFIX", "HADOOP_HOME"])
def test_hadoops_jars_are_found_once(tmp_path, monkeypatch, name):
    for each in ("HADOOP_PREFIX", "HADOOP_HOME", "TFOS_CLASSPATH_UPDATED"):
        monkeypatch.setenv(each, "")
        monkeypatch.delenv(each)
    hadoop = tmp_path / "bin" / "hadoop"
    hadoop.parent.mkdir()
    hadoop.write_text('#!/bin/sh\necho "/jars/$1$2.jar"\n')
    hadoop.chmod(0o755)
    monkeypatch.setenv("CLASSPATH", "mine.jar")
    util.expand_hadoop_classpath()  # there is none
    assert os.environ["CLASSPATH"] == "mine.jar"
    monkeypatch.setenv(name, str(tmp_path))
    for _ in range(2):
        util.expand_hadoop_classpath()
        assert os.environ["CLASSPATH"] == "mine.jar:/jars/classpath--glob.jar"


@pytest.mark.parametrize(("args", "chosen"), [({}, "3,4"), ({"num_gpus": 1}, "3")])
def test_a_node_finds_the_gpus_that_spark_gave_to_its_task(meta, monkeypatch, args, chosen):
    import pyspark
    from pyspark.resource import ResourceInformation

    task = SimpleNamespace(resources=lambda: {"gpu": ResourceInformation("gpu", ["3", "4"])})
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: task)
    seen = []
    node = TFSparkNode.run(
        lambda *_: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]),
        *(argparse.Namespace(**args), meta, False, None, [], False),
    )
    node([0])
    assert seen == [chosen]


@pytest.mark.parametrize(
    ("asked", "given", "there", "in_pod", "chosen"),
    [
        (None, [], False, False, ""),
        (None, [], True, False, "0"),
        (None, ["3"], True, False, "3"),
        (None, [], True, True, ""),
        (1, [], True, False, "0"),
        (1, ["4", "5"], True, False, "4"),
        (0, [], True, False, ""),
        (1, [], True, True, NotEnoughGpus),
        (1, [], False, False, NotEnoughGpus),
        (3, ["4"], False, False, NotEnoughGpus),
    ],
)
def test_gpus_are_chosen_as_the_original_does(monkeypatch, asked, given, there, in_pod, chosen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    monkeypatch.setattr(gpu_info, "is_gpu_available", lambda: there)
    monkeypatch.setattr(gpu_info, "get_gpus", lambda *_, **__: ["0"])
    if in_pod:
        monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "1.2.3.4")
    args = argparse.Namespace() if asked is None else argparse.Namespace(num_gpus=asked)
    if chosen is NotEnoughGpus:
        with pytest.raises(NotEnoughGpus, match="num_gpus"):
            TFSparkNode.choose_gpus(args, given, 0)
    else:
        TFSparkNode.choose_gpus(args, given, 0)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen


def test_free_gpus_are_those_on_which_nothing_computes(monkeypatch):
    listed = "".join(f"GPU {n}: NVIDIA H100 (UUID: GPU-{n}{n})\n" for n in range(4))
    answers = {"--list-gpus": listed, "--format=csv,noheader,nounits": "GPU-11\n"}
    monkeypatch.setattr(gpu_info, "_ask", lambda *words: answers[words[0]])
    monkeypatch.setattr(gpu_info, "_PAUSES", (0, 0, 0))
    assert gpu_info.is_gpu_available()
    assert gpu_info.get_gpus(1, 0) == "0"
    assert gpu_info.get_gpus(1, 1, format=gpu_info.AS_LIST) == ["2"]
    assert gpu_info.get_gpus(2, 0) == "0,2"
    assert len(gpu_info.get_gpus(3).split(",")) == 3
    with pytest.raises(NotEnoughGpus):
        gpu_info.get_gpus(4)


def test_hosts_are_compared_whole():
    nodes = ["10.0.0.11:1", "10.0.0.1:1", "10.0.0.11:2", "10.0.0.1:2"]
    assert [util.rank_on_host(nodes, n) for n in range(4)] == [0, 0, 1, 1]


def test_a_program_runs_under_its_old_imports(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "program.py").write_text(
        "import sys, beside\n"
        "import tensorflowonspark\n"
        "import tensorflowonspark.util as u\n"
        "from tensorflowonspark import TFCluster, TFNode\n"
        "from tensorflowonspark.pipeline import Namespace\n"
        "import gridflow.compat.tfos.TFNode as new\n"
        "print(__name__, beside.WORD, sys.argv[1:], TFNode is new, tensorflowonspark.__version__)\n"
        "print(u.__name__, 'tensorflow' in sys.modules)\n"
    )
    command = [sys.executable, "-m", "gridflow.compat.tfos.run", "program.py", "--x", "1"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "__main__ beside ['--x', '1'] True 2.2.5",
        "gridflow.compat.tfos.util False",
    ], done.stderr
    script = [*command[:3], "--path"]
    path = subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()
    again = subprocess.run(
        [sys.executable, path, "program.py", "--x", "1"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert again.stdout == done.stdout, again.stderr


def test_what_an_earlier_cluster_failed_with_is_no_matter_of_the_next_one(monkeypatch):
    def result(timeout=None):
        raise GridflowError("late")

    earlier, last = SimpleNamespace(result=result), SimpleNamespace(result=result, is_last=True)
    monkeypatch.setattr(TFCluster, "_last", [last])
    monkeypatch.setattr(TFCluster, "tf_status", {})
    for handle, said in ((earlier, {}), (last, {"error": "late"})):
        with pytest.raises(GridflowError, match="late"):
            TFCluster._result(handle)
        assert TFCluster.tf_status == said


# Exports -----------------------------------------------------------------------------------------


class Exported:
    """Writes what Keras does, and fails where it is told to."""

    def __init__(self, text, error=None):
        self.text, self.error = text, error

    def export(self, folder, *, verbose):
        del verbose
        Path(folder, "variables").mkdir(parents=True)
        Path(folder, "variables", "data").write_text(self.text)
        if self.error:
            raise self.error
        Path(folder, "saved_model.pb").write_text(self.text)


def test_an_export_that_fails_leaves_the_one_that_was_there(tmp_path):
    folder = tmp_path / "export"
    compat.export_saved_model(Exported("good"), str(folder), True)
    (folder / "checkpoint").write_text("mine")
    with pytest.raises(OSError, match="full"):
        compat.export_saved_model(Exported("bad", OSError("full")), str(folder), True)
    found = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert found == {"checkpoint": "mine", "saved_model.pb": "good", "variables/data": "good"}
    compat.export_saved_model(Exported("better"), str(folder), True)
    assert (folder / "variables" / "data").read_text() == "better"
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint", "saved_model.pb", "variables"]
