"""Model parallelism in one graph: the layers of a network lie on different tasks.

``python examples/distribution/model_parallel.py``: the first layer on worker 0, the second on
worker 1. Activations and gradients travel directly between the two.
"""

from __future__ import annotations

from gridflow import LocalLauncher, Role, TensorflowDistributor


def train(ctx, steps):
    """Serve, or, as the chief, build the graph and train it; return losses and devices."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    server = ctx.server()
    if not ctx.is_chief:
        server.join()

    def layer(name, values, size, device):
        with tf.device(device):
            shape = [int(values.shape[-1]), size]
            start = tf.glorot_uniform_initializer(seed=1)
            weights = tf.get_variable(name, shape, initializer=start)
            return tf.matmul(values, weights)

    x, y = tf.placeholder(tf.float32, [None, 8]), tf.placeholder(tf.float32, [None, 1])
    hidden = tf.nn.relu(layer("first", x, 32, "/job:worker/task:0"))
    output = layer("second", hidden, 1, "/job:worker/task:1")
    loss = tf.reduce_mean((output - y) ** 2)
    update = tf.train.AdamOptimizer(0.01).minimize(loss, colocate_gradients_with_ops=True)

    rng = np.random.default_rng(0)
    losses = []
    metadata = tf.RunMetadata()
    trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer())
        for step in range(steps):
            values = rng.normal(size=(64, 8))
            batch = {x: values, y: np.abs(values).sum(axis=1, keepdims=True)}
            traced = {"options": trace, "run_metadata": metadata} if step == 0 else {}
            losses.append(float(session.run([loss, update], batch, **traced)[0]))
    where = {
        node.node_name: stats.device
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
        if node.node_name.startswith("MatMul")
    }
    return losses, where


def main():
    """Run it on this machine."""
    distributor = TensorflowDistributor(
        roles=[Role("chief"), Role("worker", 2)], strategy="server", launcher=LocalLauncher()
    )
    losses, where = distributor.run(train, 500).value
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    for operation, device in sorted(where.items()):
        print(f"{operation}: {device}")


if __name__ == "__main__":
    main()
