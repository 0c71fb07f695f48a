"""Programs of TensorFlow's classic guides on tf.compat.v1, each checked by its values."""

from __future__ import annotations

import json

import pytest

from gridflow import Programs, errors
from gridflow._spec.cluster import ClusterSpec, Task
from gridflow._spec.program import ScriptProgram
from gridflow._training.tensorflow_server import with_flags


def between_graph(ctx, steps):
    """Train y = 2x + 1 asynchronously, each worker with a graph of its own."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    cluster = tf.train.ClusterSpec(ctx.cluster_spec.as_dict())
    server = ctx.server()
    if ctx.task.role == "ps":
        server.join()
        return None
    device = f"/job:worker/task:{ctx.task.index}"
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=device)):
        x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean((weight * x + bias - y) ** 2)
        global_step = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=global_step)
    assert "/job:ps" in weight.device
    assert device in loss.device
    rng = np.random.default_rng(ctx.rank)
    hooks = [tf.train.StopAtStepHook(last_step=steps)]
    own = 0
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=ctx.is_chief, hooks=hooks
    ) as session:
        while not session.should_stop():
            values = rng.uniform(-1, 1, 32)
            found = session.run([train, weight, bias, global_step], {x: values, y: 2 * values + 1})
            own += 1
    print(f"STEPS {own}", flush=True)
    return [float(value) for value in found[1:]]


def steps_of(result, rank):
    """Return how many steps a rank printed that it had made."""
    (line,) = [line for line in result.logs(rank).splitlines() if line.startswith("STEPS ")]
    return int(line.split()[1])


def test_between_graph_replicas_train_asynchronously_and_the_framework_ends_the_servers(distribute):
    result = distribute("server", ps=2, worker=2).run(between_graph, 400)
    weight, bias, step = result.value
    assert (weight, bias) == (pytest.approx(2, abs=0.05), pytest.approx(1, abs=0.05))
    # Those that were on their way when the last step was made are still made.
    assert step > 390
    assert 400 <= steps_of(result, 0) + steps_of(result, 1) <= 402
    assert min(steps_of(result, 0), steps_of(result, 1)) > 0


def test_between_graph_replicas_train_on_spark(distribute, spark):
    from gridflow import SparkLauncher

    launcher = SparkLauncher(spark)
    result = distribute("server", launcher=launcher, ps=1, worker=1).run(between_graph, 300)
    assert result.value[:2] == [pytest.approx(2, abs=0.1), pytest.approx(1, abs=0.1)]


def sum_in_graph(ctx):
    """Sum 0 to 999 on two workers from one graph, through a grpc:// target."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    server = ctx.server()
    if not ctx.is_chief:
        server.join()
    parts = []
    numbers = tf.placeholder(tf.int32, [1000])  # a constant would be summed before it is run
    for task in range(2):
        with tf.device(f"/job:worker/task:{task}"):
            parts.append(tf.reduce_sum(numbers[task * 500 : (task + 1) * 500]))
    total = tf.add_n(parts)
    assert server.target.startswith("grpc://")
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    config = tf.ConfigProto(log_device_placement=True)
    with tf.Session(server.target, config=config) as session:
        found = session.run(
            [total, *parts], {numbers: list(range(1000))}, options=options, run_metadata=metadata
        )
    devices = {stats.device for stats in metadata.step_stats.dev_stats}
    return [int(value) for value in found], sorted(devices), _timeline(metadata)


def _timeline(metadata):
    from tensorflow.python.client import timeline

    return timeline.Timeline(metadata.step_stats).generate_chrome_trace_format()


def test_in_graph_replicas_sum_a_thousand_numbers_on_two_workers_and_trace_it(distribute):
    result = distribute("server", chief=1, worker=2).run(sum_in_graph)
    (total, first, second), devices, trace = result.value
    assert (total, first, second) == (499500, 124750, 374750)
    for task in (0, 1):
        assert any(f"/job:worker/replica:0/task:{task}" in device for device in devices)
    events = json.loads(trace)["traceEvents"]
    assert any(event.get("name") == "Sum" and event["ph"] == "X" for event in events)
    log = result.log_path("chief:0").read_text() + result.log_path("worker:0").read_text()
    assert "/job:worker/replica:0/task:1" in log  # log_device_placement


def pin_and_read(ctx):
    """Pin variables, read one that another task made, and turn one into a proto and back."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    server = ctx.server()
    if ctx.task.role == "ps":
        server.join()
    with tf.device("/job:ps/task:0/cpu:0"):
        shared = tf.get_variable("shared", initializer=tf.constant([1.0, 2.0]))
        remote = tf.get_variable("remote", initializer=tf.constant(0))
        ready = tf.is_variable_initialized(remote)
    with tf.device("/job:worker/task:0"):
        own = tf.get_variable("own", initializer=tf.constant(10.0))
    with tf.device("/device:GPU:7"):  # there is none: soft placement finds another
        doubled = shared * 2
    proto = shared.to_proto()
    again = tf.Variable.from_proto(type(proto).FromString(proto.SerializeToString()))
    config = tf.ConfigProto(allow_soft_placement=True)
    with tf.Session(server.target, config=config) as session:
        if ctx.rank == 1:
            session.run(remote.initializer)
            session.run(tf.assign(remote, 42))
            return None
        session.run([shared.initializer, own.initializer])
        found = session.run({"shared": again, "doubled": doubled, "own": own})
        while not session.run(ready) or session.run(remote) != 42:
            pass
        return {
            **{key: value.tolist() for key, value in found.items()},
            "remote": int(session.run(remote)),
            "devices": [shared.device, own.device],
            "names": [proto.variable_name, again.name],
        }


def test_variables_are_pinned_placed_softly_read_from_afar_and_survive_as_protos(distribute):
    found = distribute("server", ps=1, worker=2).run(pin_and_read).value
    assert found["shared"] == [1.0, 2.0]
    assert found["doubled"] == [2.0, 4.0]
    assert found["own"] == 10.0
    assert found["remote"] == 42  # which the other worker assigned
    assert found["devices"] == ["/job:ps/task:0/device:CPU:0", "/job:worker/task:0"]
    assert found["names"] == ["shared:0", "shared:0"]


def test_a_script_gets_the_flags_of_its_task_before_its_own():
    # That TensorFlow's servers come up by them is what the example of the digits shows.
    program = ScriptProgram("classic.py", "", ("--steps=20",))
    hosts = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"], "evaluator": ["d:1"]}
    flagged = with_flags(program, ClusterSpec(hosts), Task("worker", 1))
    assert flagged.args == (
        "--job_name=worker",
        "--task_index=1",
        "--ps_hosts=c:1",
        "--worker_hosts=b:1,b:2",
        "--chief_hosts=a:1",
        "--steps=20",
    )


def test_the_flags_are_refused_for_a_function(distribute):
    distributor = distribute("server", worker=1, options={"programs": Programs(classic_flags=True)})
    with pytest.raises(errors.InvalidArgument, match="ctx.cluster_spec"):
        distributor.run(lambda: None)


def test_a_server_is_refused_where_there_is_none(distribute):
    def ask(ctx):
        ctx.server()

    with pytest.raises(errors.TrainingFailed, match=r"for the cluster's tasks under .*'server'"):
        distribute("none", worker=1).run(ask)
