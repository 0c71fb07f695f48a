"""A broker of Kafka on this machine, in a process of its own: KRaft, one node, on the loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from suite import maven, sparks, stores
from suite.ports import free_ports

_FOLDER = Path(__file__).parents[2] / ".cache" / "kafka"
_JARS = {"broker": "kafka_2.13-4.1.1.jar", "spark": "spark-sql-kafka-*-4.1.3.jar"}
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/topics
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_CLUSTER = "4L6g3nShT-eMCtK--X86sw"


def fetch(folder=_FOLDER):
    """Copy the broker's jars, and those of Spark's source, each into a folder; by Maven."""
    pom = Path(__file__).parent / "kafka_jars" / "pom.xml"
    return maven.fetch(pom, folder, _JARS)


def environment():
    """Return that of a driver which reads topics: its Spark, and the jars of the source."""
    jars = ",".join(str(jar) for jar in sorted((fetch() / "spark").glob("*.jar")))
    return {**sparks.with_connectors(), "JARS": jars}


@contextlib.contextmanager
def broker(folder):
    """Run a broker that keeps its topics in a folder; give its address."""
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=folder))
    classes = str(fetch() / "broker" / "*")
    words = [shutil.which("java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    words += ["-cp", classes]
    subprocess.run(
        [*words, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)],
        check=True,
        capture_output=True,
    )
    log = folder / "broker.log"
    with stores.running([*words, "kafka.Kafka", str(settings)], log, {}) as process:

        def is_there():
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True

        stores.wait(is_there, "Kafka", process, log)
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """Give the address of a broker."""
    with broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address


if __name__ == "__main__":
    fetch()
