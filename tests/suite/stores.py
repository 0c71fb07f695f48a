"""Real stores on this machine, in processes of their own: HDFS, and S3 by moto's server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from suite.ports import free_ports
from suite.waiting import wait_for

_ROOT = Path(__file__).parents[2]
_JARS = _ROOT / ".cache" / "hadoop"
_PR_SET_PDEATHSIG = 1
_OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.net")
_JAVA = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_JAVA += ["-Djava.net.preferIPv4Stack=true", *(f"--add-opens={p}=ALL-UNNAMED" for p in _OPENED)]
_HDFS = """<configuration>
<property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:{0}</value></property>
<property><name>hadoop.tmp.dir</name><value>{folder}/tmp</value></property>
<property><name>dfs.replication</name><value>1</value></property>
<property><name>dfs.namenode.name.dir</name><value>file://{folder}/names</value></property>
<property><name>dfs.datanode.data.dir</name><value>file://{folder}/blocks</value></property>
<property><name>dfs.namenode.http-address</name><value>127.0.0.1:{1}</value></property>
<property><name>dfs.datanode.address</name><value>127.0.0.1:{2}</value></property>
<property><name>dfs.datanode.http.address</name><value>127.0.0.1:{3}</value></property>
<property><name>dfs.datanode.ipc.address</name><value>127.0.0.1:{4}</value></property>
<property><name>dfs.datanode.hostname</name><value>127.0.0.1</value></property>
<property><name>dfs.namenode.datanode.registration.ip-hostname-check</name><value>false</value>
</property>
<property><name>dfs.namenode.safemode.extension</name><value>0</value></property>
<property><name>dfs.permissions.enabled</name><value>false</value></property>
<property><name>dfs.datanode.du.reserved</name><value>0</value></property>
</configuration>
"""


def fetch_hadoop(folder=_JARS):
    """Copy Hadoop's jars there, by Maven."""
    if any(folder.glob("hadoop-yarn-server-nodemanager-3*.jar")):
        return folder
    pom = Path(__file__).parent / "hadoop" / "pom.xml"
    words = ["mvn", "-q", "-f", str(pom), "dependency:copy-dependencies"]
    subprocess.run([*words, f"-DoutputDirectory={folder}"], check=True)
    return folder


#: Becomes a program that ends with its parent. Not by `preexec_fn`: Python's code after the fork of
#: a process with threads has hung.
_END_WITH_PARENT: Final = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGKILL:d}); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@contextlib.contextmanager
def running(words, log, environment):
    """Run a process as long as this one, and the block, live."""
    # A test's leaks are found by a mark: a store is nobody's.
    plain = {k: v for k, v in os.environ.items() if k != "GRIDFLOW_TEST_MARK"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _END_WITH_PARENT, *map(str, words)],
            env={**plain, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait(is_there, what, process, log):
    """Wait until a daemon is there; show the end of its log if it never is."""

    def is_there_now():
        assert process.poll() is None, f"{what} ended: {log.read_text()[-3000:]}"
        return is_there()

    wait_for(
        is_there_now,
        what,
        seen=lambda: log.read_text(errors="replace")[-3000:],
        ignoring=(OSError, RuntimeError),
    )


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """Give the environment of an S3 that has a bucket named ``bucket``."""
    from pyarrow import fs

    folder = tmp_path_factory.mktemp("s3")
    (port,) = free_ports(1)
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    log = folder / "log"
    with running(words, log, {}) as process:
        made = fs.S3FileSystem(
            access_key="tests",
            secret_key="tests",
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            allow_bucket_creation=True,
        )
        wait(lambda: made.create_dir("bucket") is None, "moto", process, log)
        yield environment


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """Give the address of an HDFS of one NameNode and one DataNode."""
    folder = tmp_path_factory.mktemp("hdfs")
    ports = free_ports(5)
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(_HDFS.format(*ports, folder=folder))
    (folder / "webapps" / "hdfs").mkdir(parents=True)
    (folder / "webapps" / "datanode").mkdir()
    jars = fetch_hadoop()
    java = shutil.which("java")
    words = [java, *_JAVA, f"-Dhadoop.log.dir={folder}", "-cp", f"{folder}:{jars}/*"]
    server = "org.apache.hadoop.hdfs.server"
    environment = {"HADOOP_CONF_DIR": str(folder), "HADOOP_USER_NAME": "tests"}
    formatting = [*words, f"{server}.namenode.NameNode", "-format", "-nonInteractive"]
    subprocess.run(formatting, env={**os.environ, **environment}, check=True, capture_output=True)
    names, nodes = folder / "namenode.log", folder / "datanode.log"
    with (
        running([*words, f"{server}.namenode.NameNode"], names, environment) as process,
        running([*words, f"{server}.datanode.DataNode"], nodes, environment),
    ):
        address = f"hdfs://127.0.0.1:{ports[0]}"
        wait(lambda: _takes_files(address), "HDFS", process, nodes)
        yield address


def _takes_files(address):
    from hdfs_native import Client, WriteOptions

    # A try before the DataNode was there has left the file open.
    with Client(address).create("/up", WriteOptions(overwrite=True)) as file:
        file.write(b"up")
    return Client(address).delete("/up", False)


if __name__ == "__main__":
    fetch_hadoop()
