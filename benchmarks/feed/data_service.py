"""Images through the data service: decoded by the trainer, by one data worker, and by two.

JPEG files of some 300 KB, decoded, cut at random, their colours changed. Where all processes share
the cores of one machine, more data workers are no more CPU: so each process gets the same part of
a core, by a cgroup of its own (``--cores``), as if it had a host of its own. Needs root.

Without such limits: what an element costs beside local tf.data.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path

from gridflow import LocalLauncher, Role, TensorflowDistributor

BATCH = 8
PERIOD = 100_000  # microseconds


def write_images(folder, count):
    """Write JPEG files; return their paths and mean size in bytes."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    for number in range(count):
        coarse = random.integers(0, 256, (128, 128, 3)).astype("float32")
        pixels = tf.image.resize(coarse, (1024, 1024), "bicubic") + random.normal(
            0, 6, (1024, 1024, 3)
        )
        image = tf.cast(tf.clip_by_value(pixels, 0, 255), tf.uint8)
        (folder / f"{number}.jpeg").write_bytes(tf.io.encode_jpeg(image, quality=82).numpy())
    paths = sorted(map(str, folder.glob("*.jpeg")))
    return paths, sum(map(os.path.getsize, paths)) / count


def limited(name, pids, cores):
    """Let processes share a part of a core; return the folders of the cgroups made."""
    base = Path("/sys/fs/cgroup")
    group = (base / "cpu" if (base / "cpu").is_dir() else base) / name
    group.mkdir()
    quota = int(cores * PERIOD)
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {PERIOD}")
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    return group


def pid_of(ctx, task):
    """Return the process of a task on this machine."""
    import psutil

    from gridflow._agent.folder import task_prefix
    from gridflow._agent.process import TRAINING_PROGRAM
    from gridflow._spec.cluster import Task

    prefix = task_prefix(ctx.job, Task.parse(task))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:] == TRAINING_PROGRAM and prefix in process.cwd():
                return process.pid
    raise ProcessLookupError(task)


def images_per_second(ctx, paths, workers, cores, seconds):
    """Return how many images a trainer gets in a second, its own and the workers' cores limited."""
    import tensorflow as tf

    def prepared(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.random_crop(image, (224, 224, 3))
        image = tf.image.random_hue(tf.cast(image, tf.float32) / 255, 0.1)
        return tf.image.random_saturation(image, 0.8, 1.2)

    images = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    images = images.map(prepared, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    if workers:
        images = ctx.data_service(images, sharding="off")
    tasks = [f"data:{index}" for index in range(workers)]
    pids = {"trainer": os.getpid(), **{task: pid_of(ctx, task) for task in tasks}}
    groups = [
        limited(f"gridflow-{os.getpid()}-{name.replace(':', '-')}", [pid], cores)
        for name, pid in pids.items()
    ]
    try:
        batches = iter(images)
        for _ in range(4 * max(1, workers)):
            next(batches)
        began, count = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            next(batches)
            count += BATCH
        return count / (time.monotonic() - began)
    finally:
        everyone = groups[0].parent / "cgroup.procs"
        for group in groups:
            for pid in (group / "cgroup.procs").read_text().split():
                everyone.write_text(pid)
            group.rmdir()


def microseconds_per_element(ctx, size, count, through):
    """Return what an element of so many bytes costs."""
    import tensorflow as tf

    elements = tf.data.Dataset.from_tensors(tf.zeros([size], tf.uint8)).repeat(count)
    if through:
        elements = ctx.data_service(elements, sharding="off", compression=None)
    began = time.perf_counter()
    found = int(elements.reduce(0, lambda so_far, _: so_far + 1))
    assert found == count
    return (time.perf_counter() - began) / count * 1e6


def run(function, *args, workers):
    """Run a function in a job of one trainer."""
    roles = [Role("worker"), *([Role("data", workers)] if workers else [])]
    distributor = TensorflowDistributor(
        roles=roles, strategy="none", launcher=LocalLauncher(), logs="none", progress=False
    )
    return distributor.run(function, *args).value


def main():
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--cores", type=float, default=0.4, help="of each process")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths, size = write_images(Path(folder), options.images)
        print(f"{len(paths)} JPEG files of {size / 1000:.0f} KB, {options.cores:g} cores a process")
        alone = None
        for workers in (0, 1, 2):
            rate = run(
                images_per_second, paths, workers, options.cores, options.seconds, workers=workers
            )
            alone = alone or rate
            print(f"{workers} data workers: {rate:6.1f} images/s, {rate / alone:.2f} x", flush=True)
    for size, count in ((8, 20_000), (1 << 20, 1_000)):
        local = run(microseconds_per_element, size, count, False, workers=0)
        served = run(microseconds_per_element, size, count, True, workers=1)
        print(
            f"an element of {size:,} bytes: {local:.0f} µs local, {served:.0f} µs by the service",
            flush=True,
        )


if __name__ == "__main__":
    main()
