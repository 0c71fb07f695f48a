"""Train with a peer that is killed in its third step."""

import json
import os
import signal

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(3))

    return strategy.run(one)


for number in range(1_000_000):
    if index == 1 and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    step()
