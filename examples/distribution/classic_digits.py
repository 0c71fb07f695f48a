"""A program of TensorFlow's classic guide: handwritten digits, asynchronously, on tf.compat.v1.

It knows nothing of gridflow: it asks for the classic flags, and ``run_classic_digits.py`` has them
filled in. Every worker builds the same graph; its variables lie on the parameter servers.
"""

import argparse
import itertools

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

tf.disable_v2_behavior()


def network(images):
    """Return the logits of a network with one hidden layer."""
    sizes = [64, 100, 10]
    values = images
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        deviation = 1.0 / np.sqrt(inputs)
        start = tf.truncated_normal_initializer(stddev=deviation, seed=number)
        weights = tf.get_variable(f"weights_{number}", [inputs, outputs], initializer=start)
        biases = tf.get_variable(f"biases_{number}", [outputs], initializer=tf.zeros_initializer())
        values = tf.matmul(values if number == 0 else tf.nn.relu(values), weights) + biases
    return values


def main():
    """Be a parameter server, or train as a worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job_name")
    parser.add_argument("--task_index", type=int)
    parser.add_argument("--ps_hosts")
    parser.add_argument("--worker_hosts")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=50)
    flags = parser.parse_args()
    cluster = tf.train.ClusterSpec(
        {"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")}
    )
    server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        server.join()

    digits = load_digits()
    pictures, kinds = digits.data.astype("float32") / 16, digits.target
    seen, held = slice(0, 1500), slice(1500, None)
    device = f"/job:worker/task:{flags.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        images = tf.placeholder(tf.float32, [None, 64])
        labels = tf.placeholder(tf.int64, [None])
        logits = network(images)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))

    rng = np.random.default_rng(flags.task_index)
    is_chief = flags.task_index == 0
    with tf.train.MonitoredTrainingSession(server.target, is_chief=is_chief) as session:
        done = 0
        while done < flags.steps:
            rows = rng.choice(1500, flags.batch_size, replace=False)
            batch = {images: pictures[seen][rows], labels: kinds[seen][rows]}
            _, done, now = session.run([train, step, loss], batch)
            if done % 500 == 0:
                print(f"step {done}: loss {now:.3f}", flush=True)
        score = session.run(right, {images: pictures[held], labels: kinds[held]})
    print(f"accuracy on digits held back: {score:.3f}", flush=True)


if __name__ == "__main__":
    main()
