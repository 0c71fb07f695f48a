"""A standard TensorFlow server: a parameter server, or a worker of ParameterServerStrategy."""

from __future__ import annotations

import os


def main() -> None:
    """Serve the task in TF_CONFIG until the process is stopped."""
    # A server only holds variables and runs what the chief sends; it must not take a whole GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    server.join()


if __name__ == "__main__":
    main()
