"""What ``steps.py`` measures beside gridflow: ``peers.py alone|ddp|by_hand CASE [RANK PORT]``.

Prints the milliseconds of a step in each epoch but the first. ``ddp`` is PyTorch's
DistributedDataParallel over gloo, one thread for each of two processes, as TorchDistributor starts
it; ``by_hand`` is tf_keras with MultiWorkerMirroredStrategy and TF_CONFIG.
"""

from __future__ import annotations

import json
import os
import sys
import time

from models import CASES, is_image, keras_model, rows, torch_model

WORKERS, EPOCHS = int(os.environ.get("WORKERS", "2")), 3


def timed(fit, case):
    """Return the milliseconds of a step, in each epoch but the first."""
    steps, found = CASES[case][1], []
    fit()
    for _ in range(EPOCHS):
        began = time.perf_counter()
        fit()
        found.append(1000 * (time.perf_counter() - began) / steps)
    return found


def alone(case):
    """Train in one process, with as many rows in a step as all workers have together."""
    import tensorflow as tf

    import keras

    data = tf.data.Dataset.from_tensor_slices(rows(case, WORKERS)).batch(WORKERS * CASES[case][0])
    model = keras_model(case, keras)
    return timed(lambda: model.fit(data, epochs=1, verbose=0), case)


def by_hand(case, rank, port):
    """Train as one of the workers that TF_CONFIG names."""
    workers = [f"127.0.0.1:{port + index}" for index in range(WORKERS)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )
    import tensorflow as tf
    import tf_keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras_model(case, tf_keras)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(rows(case, WORKERS))
    data = data.batch(WORKERS * CASES[case][0], drop_remainder=True).with_options(options)
    return timed(lambda: model.fit(data, epochs=1, verbose=0), case)


def ddp(case, rank, port):
    """Train as one of the processes of DistributedDataParallel."""
    import torch
    from torch import distributed

    os.environ["MASTER_PORT"] = str(port)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    distributed.init_process_group("gloo", rank=rank, world_size=WORKERS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = (torch.from_numpy(each[rank::WORKERS]) for each in rows(case, WORKERS))
    x = x.permute(0, 3, 1, 2).contiguous() if is_image(case) else x
    model = torch.nn.parallel.DistributedDataParallel(torch_model(case))
    optimizer = torch.optim.Adam(model.parameters())
    loss_of, batch = torch.nn.CrossEntropyLoss(), CASES[case][0]

    def fit():
        order = torch.randperm(len(x))
        for start in range(0, len(x), batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad()
            loss_of(model(x[chosen]), y[chosen]).backward()
            optimizer.step()

    found = timed(fit, case)
    distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    who, what, *place = sys.argv[1:]
    print(json.dumps({"alone": alone, "ddp": ddp, "by_hand": by_hand}[who](what, *map(int, place))))
