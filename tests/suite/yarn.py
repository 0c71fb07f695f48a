"""A real YARN on this machine, beside the HDFS: a ResourceManager and two NodeManagers.

NodeManagers start containers, and containers outlive them. So a keeper, a process of its own,
holds all of it: what loses its parent becomes its child, and nothing of that outlives the run,
however the run ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pyspark
import pytest

from suite.commands import words_of
from suite.ports import free_ports
from suite.stores import fetch_hadoop, running, wait
from suite.waiting import patience

#: Room in each for an application master of the tests and two executors.
_NODE_MEGABYTES = 6144
#: And the address of each: YARN and Spark drain hosts by the names that they find for these.
_NODES = {"node-0": "127.0.0.1", "node-1": "127.0.0.2"}
#: A drained node may keep its containers for so long.
_DRAIN_SECONDS = 3600
#: As YARN counts them; what nodes have are stand-ins.
_GPU, _NODE_GPUS = "yarn.io/gpu", 2
_PR_SET_CHILD_SUBREAPER = 36
_OPENED = ("lang", "util", "util.concurrent", "net")
_JAVA = ["-Xmx192m", "-Djava.net.preferIPv4Stack=true"]
_JAVA += [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
_ADMIN = "org.apache.hadoop.yarn.client.cli.RMAdminCLI"
_SERVER = "org.apache.hadoop.yarn.server"
_RESOURCE = "org.apache.hadoop.yarn.util.resource"
#: What YARN's isolation would leave of a node's GPUs for a container to see: the first that none
#: other has which is there. Its folder ends with a container.
_SMI = """#!{python}
import fcntl, os, pathlib, sys

own = os.getcwd()
node = pathlib.Path(__file__).parent / os.environ["NM_PORT"]
node.mkdir(exist_ok=True)
with (node / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    owners = {{index: node / str(index) for index in range({gpus})}}
    there = {{i: path.read_text() for i, path in owners.items() if path.exists()}}
    mine = [i for i, owner in there.items() if owner == own]
    mine += [i for i in owners if not os.path.exists(there.get(i, "nobody's"))]
    if not mine:
        sys.exit("another container has each of the GPUs")
    owners[mine[0]].write_text(own)
    print(mine[0])
"""
_LOG = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n
"""


class Yarn:
    """A running YARN.

    Attributes
    ----------
    conf : Path
        Of its clients: what ``HADOOP_CONF_DIR`` names.
    user : str
        Who submits; the daemons run as another.
    binaries : Path
        What nodes have besides this machine's: an ``nvidia-smi``.
    """

    def __init__(self, folder, keeper):
        self.folder, self.conf, self.user = folder, folder / "conf", "tests"
        self.binaries = folder / "bin"
        self._keeper = keeper

    def start(self, node):
        """Start a NodeManager, if it doesn't run; return when the ResourceManager knows it."""
        self._keeper.stdin.write(f"{node}\n")
        self._keeper.stdin.flush()
        assert self._keeper.stdout.readline() == f"{node}\n", (self.folder / "log").read_text()

    def processes(self, node):
        """Return a NodeManager and all that runs in its containers."""
        manager = psutil.Process(int((self.folder / node / "pid").read_text()))
        return [manager, *manager.children(recursive=True)]

    def kill(self, node):
        """End a node as a machine ends that loses its power; only its files are swept away."""
        doomed = [each for each in self.processes(node) if "gridflow-janitor" not in words_of(each)]
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, 10)

    @contextlib.contextmanager
    def drained(self, node):
        """Drain a node as operators do: it gets no more containers, and applications hear it."""
        self._exclude(self._known(node)["nodeHostName"], "-g", str(_DRAIN_SECONDS), "-server")
        try:
            yield
        finally:
            self._exclude("")
            wait(lambda: self._is_back(node), node, self._keeper, self.folder / "log")

    def _is_back(self, node):
        self.start(node)  # it ends, if nothing was left that it had to wait for
        return self.state(node) == "RUNNING"

    def state(self, node):
        """Return the state of a node as the ResourceManager knows it."""
        return self._known(node)["state"]

    def logs(self, application):
        """Return what all containers of an application have printed."""
        found = sorted(self.folder.glob(f"node-*/logs/{application}/*/*"))
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in found)

    def gpus_in_use(self):
        """Return how many GPUs of each node YARN's scheduler has given away."""
        return [
            resource["value"]
            for node in self._all_known()
            if node["state"] == "RUNNING"
            for resource in node["usedResource"]["resourceInformations"]["resourceInformation"]
            if resource["name"] == _GPU
        ]

    def _known(self, node):
        """Return what the ResourceManager tells of a node; what it was before has another port."""
        site = (self.folder / node / "yarn-site.xml").read_text()
        port = re.search(r"yarn.nodemanager.address</name><value>[^<]+(:\d+)<", site)[1]
        (known,) = [each for each in self._all_known() if each["id"].endswith(port)]
        return known

    def _all_known(self):
        site = (self.conf / "yarn-site.xml").read_text()
        address = re.search(r"yarn.resourcemanager.webapp.address</name><value>([^<]+)", site)[1]
        with urllib.request.urlopen(
            f"http://{address}/ws/v1/cluster/nodes", timeout=patience()
        ) as answer:
            return json.load(answer)["nodes"]["node"]

    def _exclude(self, host, *words):
        """Let the ResourceManager read anew which host it shall do without."""
        (self.folder / "excluded").write_text(f"{host}\n")
        # Hadoop's own jars here are those of daemons; Spark brings the clients'.
        jars = Path(pyspark.__file__).parent / "jars"
        java = [shutil.which("java"), "-Xmx128m", "-cp", f"{self.conf}:{jars}/*", _ADMIN]
        command = [*java, "-refreshNodes", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def yarn(hdfs, tmp_path_factory):
    """Give a YARN of one ResourceManager and two NodeManagers, beside the HDFS."""
    folder = tmp_path_factory.mktemp("yarn")
    jars = fetch_hadoop()
    plain = {k: v for k, v in os.environ.items() if k != "GRIDFLOW_TEST_MARK"}
    with (folder / "log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "suite.yarn", str(folder), str(jars), hdfs],
            cwd=Path(__file__).parents[1],
            env=plain,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        made = Yarn(folder, keeper)
        for node in _NODES:
            made.start(node)
        yield made
    finally:
        keeper.stdin.close()  # so it hears, even of an owner that was killed
        keeper.wait(patience())
        keeper.stdout.close()


# The keeper ---------------------------------------------------------------------------------------


def _configuration(**properties):
    lines = [
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>\n"])


def _core(hdfs):
    """Let the file system have the name of a cluster, which only this configuration knows."""
    resolver = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    return {
        "fs.defaultFS": "hdfs://cluster",
        "dfs.nameservices": "cluster",
        "dfs.ha.namenodes.cluster": "only",
        "dfs.namenode.rpc-address.cluster.only": hdfs.removeprefix("hdfs://"),
        "dfs.client.failover.proxy.provider.cluster": resolver,
        "dfs.replication": "1",
    }


def _manager(ports):
    address = "yarn.resourcemanager.{}"
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    addresses = {
        address.format(name): f"127.0.0.1:{port}"
        for name, port in zip((*names, "webapp.address"), ports, strict=True)
    }
    return {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        **addresses,
        "yarn.resource-types": _GPU,
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.maximum-allocation-mb": str(_NODE_MEGABYTES),
        # A node that is gone is missed within seconds, not ten minutes.
        "yarn.nm.liveness-monitor.expiry-interval-ms": "4000",
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": "500",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
        "yarn.client.application-client-protocol.poll-interval-ms": "100",
        # Who has lost the ResourceManager has lost the run.
        "yarn.resourcemanager.connect.max-wait.ms": "5000",
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        "yarn.dispatcher.exit-on-error": "true",
    }


def _node(folder, host, ports):
    address = "yarn.nodemanager.{}.address"
    names = ("localizer", "webapp", "collector-service")
    addresses = {
        address.format(name): f"{host}:{port}" for name, port in zip(names, ports[1:], strict=True)
    }
    return {
        **addresses,
        "yarn.nodemanager.address": f"{host}:{ports[0]}",
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.bind-host": host,
        "yarn.nodemanager.resource.memory-mb": str(_NODE_MEGABYTES),
        "yarn.nodemanager.resource.cpu-vcores": "8",
        f"yarn.nodemanager.resource-type.{_GPU}": str(_NODE_GPUS),
        "yarn.nodemanager.local-dirs": f"{folder}/local",
        "yarn.nodemanager.log-dirs": f"{folder}/logs",
        # As most clusters have it: who takes more memory than was asked for is killed.
        "yarn.nodemanager.pmem-check-enabled": "true",
        "yarn.nodemanager.resource.memory.enforced": "false",  # by cgroups, that is
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.container-monitor.interval-ms": "500",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        # By default a disk of which a tenth is left counts as full, even where that is 25 GB.
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.nodemanager.env-whitelist": "JAVA_HOME,JDK_JAVA_OPTIONS,PATH,LANG",
        "yarn.nodemanager.delete.debug-delay-sec": "0",
    }


def _write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, properties in files.items():
        (folder / f"{name}-site.xml").write_text(_configuration(**properties))
    (folder / "log4j.properties").write_text(_LOG)
    return folder


def _make_smi(folder):
    """Make the stand-in of `nvidia-smi` in a folder."""
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(_SMI.format(python=sys.executable, gpus=_NODE_GPUS))
    script.chmod(0o755)


class _Keeper:
    def __init__(self, folder, jars, hdfs, stack):
        self._folder, self._jars, self._stack = folder, jars, stack
        self._core = _core(hdfs)
        self._manager = _manager(free_ports(5))
        _write(folder / "conf", core=self._core, yarn=self._manager)
        scheduler = "yarn.scheduler.capacity"
        queues = {
            f"{scheduler}.root.queues": "default",
            f"{scheduler}.root.default.capacity": "100",
            f"{scheduler}.maximum-am-resource-percent": "0.9",
            # The default one counts memory alone.
            f"{scheduler}.resource-calculator": f"{_RESOURCE}.DominantResourceCalculator",
        }
        excluded = folder / "excluded"
        excluded.touch()
        own = {"yarn.resourcemanager.nodes.exclude-path": str(excluded)}
        conf = _write(folder / "manager", core=self._core, yarn={**self._manager, **own})
        (conf / "capacity-scheduler.xml").write_text(_configuration(**queues))
        self._nodes, self._started = {}, []
        _make_smi(folder / "bin")
        manager = self._run(conf, "resourcemanager.ResourceManager")
        self._wait_for(manager, conf, "Transitioned to active state")
        for name in _NODES:
            self._begin(name)
        for name in _NODES:
            self._await(name)

    def start(self, name):
        if self._nodes[name].poll() is not None:
            self._begin(name)
            self._await(name)

    def _begin(self, name):
        conf = self._folder / name
        shutil.rmtree(conf, ignore_errors=True)
        own = _node(conf, _NODES[name], free_ports(4))
        _write(conf, core=self._core, yarn={**self._manager, **own})
        self._nodes[name] = self._run(conf, "nodemanager.NodeManager")

    def _await(self, name):
        conf = self._folder / name
        self._wait_for(self._nodes[name], conf, "Registered with ResourceManager")
        (conf / "pid").write_text(str(self._nodes[name].pid))

    def bury(self, *_):
        """Let nobody stay as a zombie, those that came here without a parent included."""
        own = {process.pid for process in self._started if process.poll() is None}
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if process.pid not in own and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def _run(self, conf, name):
        for each in ("cluster", "node"):
            (conf / "webapps" / each).mkdir(parents=True, exist_ok=True)
        java = shutil.which("java")
        words = [java, *_JAVA, f"-Dhadoop.log.dir={conf}", f"-Dyarn.log.dir={conf}"]
        words += ["-cp", f"{conf}:{self._jars}/*", f"{_SERVER}.{name}"]
        home = Path(java).resolve().parents[1]
        environment = {"HADOOP_CONF_DIR": str(conf), "JAVA_HOME": str(home)}
        process = self._stack.enter_context(running(words, conf / "log", environment))
        self._started.append(process)
        return process

    def _wait_for(self, process, conf, words):
        log = conf / "log"
        wait(lambda: words in log.read_text(errors="replace"), conf.name, process, log)


def _end_all():
    """Kill every process below this one, and those that come to it meanwhile."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 5)


def keep(folder, jars, hdfs):
    """Hold a YARN; each line of the input names a node to start, the end of the input ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with contextlib.ExitStack() as stack:
            keeper = _Keeper(folder, jars, hdfs, stack)
            signal.signal(signal.SIGCHLD, keeper.bury)
            for line in sys.stdin:
                keeper.start(line.strip())
                sys.stdout.write(line)
                sys.stdout.flush()
    finally:
        _end_all()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
