"""Run an operation on the parameter server that TF_CONFIG names."""

import json
import os

import tensorflow as tf

ps = json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"][0]
tf.config.experimental_connect_to_host(ps, job_name="ps")
with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
    answer = tf.constant(21) * 2
print("answer", int(answer), answer.device)
