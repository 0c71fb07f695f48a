"""Who gets which GPU of a host, and what its process is told; without any job around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gridflow import errors
from gridflow._gpu import devices, grant
from gridflow._gpu.grant import SparkGpus, check_host
from gridflow._spec.gpus import VISIBLE, GpuNeed, GpuOptions
from gridflow._training.groups import base

NOTHING = SparkGpus()


def take(host, gpus, *, spark=NOTHING, patience=0, **options):
    """Take GPUs as an agent does."""
    need = GpuNeed.parse("gpus", gpus)
    return grant.take(
        need, GpuOptions(**options), spark, "a test", locks=host.locks, patience=patience
    )


@pytest.mark.parametrize("gpus", [1, 2, 0.5, 0.1])
def test_no_gpu_is_given_to_more_tasks_than_may_share_it(host, gpus):
    host.has(2)
    places = round(2 / gpus)
    grants = [take(host, gpus) for _ in range(places)]
    addresses = [address for each in grants for address in each.addresses]
    most = max(1, round(1 / gpus))
    assert {address: addresses.count(address) for address in "01"} == {"0": most, "1": most}
    with pytest.raises(errors.NotEnoughGpus, match="only 0 of 2 are free. Taken: GPU 0 by a test"):
        take(host, gpus)
    grants[0].close()
    again = take(host, gpus)
    assert again.addresses == grants[0].addresses
    for each in [*grants, again]:
        each.close()


@pytest.mark.parametrize(
    ("masks", "shared"),
    [
        (("0", "1"), False),
        (("0", "0"), True),
        (("0,1", "1"), True),
        (("GPU-0aaa-bbb", "0"), True),  # the same one by another name
        ((None, "1"), True),
        (("-1", "-1"), False),
    ],
)
def test_ranks_know_whether_they_have_the_same_gpu(host, monkeypatch, masks, shared):
    host.has(2)
    ranks = []
    for mask in masks:
        monkeypatch.delenv(VISIBLE, raising=False)
        if mask is not None:
            monkeypatch.setenv(VISIBLE, mask)
        ranks.append(base.own_gpus(len(devices.visible(host.devices, mask))))
    assert base.share_gpus(ranks) is shared


def test_gpus_have_names_without_a_driver_that_answers(host, monkeypatch):
    monkeypatch.setenv("PATH", str(host.folder))
    first, second = devices.names("0,1", 2)
    assert first.endswith("/0")
    assert second.endswith("/1")
    assert devices.names("MIG-1,MIG-2", 2)[0].endswith("/MIG-1")


def test_parts_fill_up_a_gpu_before_the_next_is_begun(host):
    host.has(2)
    parts = [take(host, 0.5) for _ in range(2)]
    whole = take(host, 1)
    assert [each.addresses for each in [*parts, whole]] == [("0",), ("0",), ("1",)]
    for each in [*parts, whole]:
        each.close()


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.25), (0.25, 0.5), (0.5, 1), (1, 0.1)])
def test_a_gpu_is_not_cut_up_in_two_ways(host, first, second):
    host.has(1)
    held = take(host, first)
    with pytest.raises(errors.NotEnoughGpus) as caught:
        take(host, second)
    assert caught.value.available == 0
    held.close()
    take(host, second).close()


def test_gpus_on_which_others_compute_are_left_alone(host):
    host.has(3)
    host.computes_on(0, 2)
    held = take(host, 1)
    assert held.addresses == ("1",)
    with pytest.raises(errors.NotEnoughGpus, match="GPU 0 by other processes; GPU 2 by other"):
        take(host, 1)
    held.close()


def test_a_gpu_is_waited_for_while_its_last_task_dies(host):
    host.has(1)
    script = (
        "import sys, fcntl; f = open(sys.argv[1]); fcntl.flock(f, 2); print(); sys.stdin.read()"
    )
    take(host, 1).close()
    (lock,) = host.folder.glob("locks/GPU*")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as other:
        other.stdout.readline()
        with pytest.raises(errors.NotEnoughGpus):
            take(host, 1)
        other.stdin.close()  # it ends; its lock is free a moment later
        held = take(host, 1, patience=30)
    assert held.addresses == ("0",)
    held.close()


HOLDER = """
import subprocess, sys
from gridflow._gpu.grant import SparkGpus, take
from gridflow._spec.gpus import GpuNeed, GpuOptions
grant = take(GpuNeed(1), GpuOptions(), SparkGpus(), "the dead")
child = subprocess.Popen(["sleep", "1000"], pass_fds=grant.files)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_lock_lives_as_long_as_agent_or_training_process(host):
    host.has(1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    child = int(holder.stdout.readline())
    for pid in (None, holder.pid):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            holder.wait()
        with pytest.raises(errors.NotEnoughGpus, match="by the dead"):
            take(host, 1)
    os.kill(child, signal.SIGKILL)
    held = take(host, 1, patience=30)
    assert held.addresses == ("0",)
    held.close()
    holder.stdin.close()
    holder.stdout.close()


@pytest.mark.parametrize(
    ("mask", "left"), [(None, "012"), ("1,2", "12"), ("GPU-2", "2"), ("2,-1,0", "2"), ("", "")]
)
def test_the_hosts_own_choice_is_kept(host, mask, left):
    host.has(3)
    assert [str(each.index) for each in devices.visible(host.devices, mask)] == list(left)


@pytest.mark.parametrize(
    ("options", "limit", "fraction"),
    [
        ({"gpus": 1}, None, None),
        ({"gpus": 0.5}, 8192 - 819, "0.45"),
        ({"gpus": 0.1}, 1638 - 512, "0.068"),
        ({"gpus": 1, "memory": "4GiB"}, 4096, "0.25"),
        ({"gpus": 0.25, "memory": "4GiB"}, 4096, "0.25"),
    ],
)
def test_memory_is_limited_for_tensorflow_and_jax(host, options, limit, fraction):
    host.has(1, memory=16384)
    held = take(host, **options)
    assert held.memory_limit == limit
    assert held.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == fraction
    assert held.environment["CUDA_VISIBLE_DEVICES"] == "0"
    held.close()


def test_memory_grows_instead_where_that_is_asked_for(host):
    host.has(1)
    held = take(host, 0.5, allow_growth=True)
    assert held.memory_limit is None
    assert held.environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert held.environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    held.close()


def test_more_memory_than_the_part_has_is_an_error(host):
    host.has(1, memory=16384)
    with pytest.raises(errors.NotEnoughGpus, match="4,096 MiB, but a part .1/8. of GPU 0 has 2,0"):
        take(host, 0.125, memory="4GiB")
    take(host, 1).close()  # nothing is held after the error


@pytest.mark.parametrize(
    ("gpus", "given", "seen"),
    [
        (None, (), "-1"),
        (None, ("3", "1"), "3,1"),
        (0, ("3",), "-1"),
        (1, ("3", "1"), "3"),
        (2, ("GPU-x", "GPU-y"), "GPU-x,GPU-y"),
    ],
)
def test_sparks_addresses_are_taken_as_they_are(host, gpus, given, seen):
    held = take(host, gpus, spark=SparkGpus(given))
    assert held.environment["CUDA_VISIBLE_DEVICES"] == seen
    assert held.files == ()


def test_a_gpu_that_spark_gives_to_several_tasks_is_limited(host):
    host.has(2, memory=16384)
    assert take(host, None, spark=SparkGpus(("1",), 2)).memory_limit == 8192 - 819
    with pytest.raises(errors.NotEnoughGpus, match="shares GPU 7, .* Give GpuOptions.memory="):
        take(host, None, spark=SparkGpus(("7",), 2))
    held = take(host, None, spark=SparkGpus(("7",), 2), memory="2GiB")
    assert held.memory_limit == 2048


def test_fewer_than_needed_from_spark_is_an_error(host):
    with pytest.raises(errors.NotEnoughGpus, match="needs 2 GPUs, but Spark assigned it 5"):
        take(host, 2, spark=SparkGpus(("5",)))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "#!/bin/sh\necho NVIDIA-SMI has failed >&2; exit 9\n",
            "exited with code 9: NVIDIA-SMI has",
        ),
        ("no program\n", "doesn't work"),
    ],
)
def test_a_driver_that_fails_is_named(host, script, words):
    (host.folder / "bin" / "nvidia-smi").write_text(script)
    with pytest.raises(errors.NotEnoughGpus, match=words):
        take(host, 1)


def test_numbers_are_compared_before_a_launch(host):
    host.has(2)
    environment = dict(os.environ)
    check_host([GpuNeed(1), GpuNeed(1), GpuNeed(0)], environment)
    check_host([GpuNeed(1), *[GpuNeed(1, 4)] * 4], environment)
    check_host([GpuNeed()] * 5, {"PATH": ""})  # no GPU is asked for, nothing is looked at
    for needs, required in (([GpuNeed(1)] * 3, 3), ([GpuNeed(1), *[GpuNeed(1, 4)] * 5], 3)):
        with pytest.raises(errors.NotEnoughGpus, match="need 3 GPUs, but .* has 2") as caught:
            check_host(needs, environment)
        assert (caught.value.required, caught.value.available) == (required, 2)
    with pytest.raises(errors.NotEnoughGpus, match="need 2 GPUs, but .* has 1"):
        check_host([GpuNeed(2)], {**environment, "CUDA_VISIBLE_DEVICES": "1"})
    held = take(host, 0.5)
    with pytest.raises(errors.NotEnoughGpus, match="need 2 GPUs, but only 1 are free"):
        check_host([GpuNeed(2)], environment)
    check_host([GpuNeed(1, 2)] * 3, environment)
    with pytest.raises(errors.NotEnoughGpus, match=r"4 parts .1/2. of GPUs, but only 3 are free"):
        check_host([GpuNeed(1, 2)] * 4, environment)
    held.close()


def test_a_file_that_is_linked_into_the_folder_of_locks_keeps_its_words(host, tmp_path):
    host.has(1)
    take(host, 1).close()
    (lock,) = (tmp_path / "locks").glob("*.1.0")
    lock.unlink()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    lock.hardlink_to(precious)
    take(host, 1).close()
    assert precious.read_text() == "precious"


def test_a_folder_of_locks_that_is_a_link_is_refused(host, tmp_path):
    host.has(1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.NotEnoughGpus, match="is not a folder"):
        take(host, 1)
