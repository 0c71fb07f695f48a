"""Jobs whose driver and tasks are on hosts of their own: network namespaces, joined by a switch.

Each has several interfaces, of which one leads to the others, and resolves names in its own way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: A job of two: ranks that speak to one another by TensorFlow, or by the driver alone.
SCRIPT = """
import json, sys
real, sys.executable = sys.executable, {python!r}
from gridflow import LaunchOptions, LocalLauncher, Network, TensorflowDistributor

def together(ctx):
    import json, os
    import tensorflow as tf
    each = ctx.strategy.run(lambda: tf.constant(float(ctx.rank + 1)))
    total = float(ctx.strategy.reduce("SUM", each, axis=None))
    return total, json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]

def alone(ctx):
    import json, os
    total = float(sum(ctx.all_gather(ctx.rank + 1)))
    return total, json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]

options = {{"logs": "none", "progress": False, "start_timeout": 120}}
network = Network(**{network!r})
options["launch_options"] = LaunchOptions(warm_seconds=0)
options["strategy"] = "none" if {train} is alone else "multi_worker_mirrored"
distributor = TensorflowDistributor(2, launcher=LocalLauncher(), network=network, **options)
print("SAID", json.dumps(list(distributor.run({train}).values)))
"""
#: Starts the first agent on one host, the second on the other.
PYTHON = """#!/bin/sh
if mkdir {turn} 2>/dev/null; then host={first}; else host={second}; fi
exec ip netns exec $host {python} "$@"
"""
#: Forwards connections, as a container's host or a router does.
GATE = """
import asyncio

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()

async def forward(reader, writer):
    there, back = await asyncio.open_connection("{to}", {port})
    await asyncio.gather(pump(reader, back), pump(there, writer))

async def main():
    async with await asyncio.start_server(forward, "{address}", {port}) as server:
        print("open", flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


class Hosts:
    """A driver and two others, each a namespace with an address on the switch.

    The driver has another interface, which leads nowhere.
    """

    def __init__(self, stack):
        mark = f"gf{os.getpid() % 100000}"
        self.driver, self.first, self.second = (f"{mark}{name}" for name in "abc")
        self.switch, self._stack = f"{mark}s", stack
        for name in (self.switch, self.driver, self.first, self.second):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        for number, name in enumerate((self.driver, self.first, self.second), start=1):
            ip("-n", name, "link", "add", "cluster", "type", "veth", "peer", f"port{number}")
            ip("-n", name, "link", "set", f"port{number}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{number}", "master", "switch", "up")
            ip("-n", name, "link", "set", "cluster", "up")
            ip("-n", name, "address", "add", f"10.77.1.{number}/24", "dev", "cluster")
            # Without looking for others of the same address, which takes two seconds.
            ip("-n", name, "address", "add", f"fd77::{number}/64", "dev", "cluster", "nodad")
            ip("-n", name, "link", "add", "office", "type", "veth", "peer", "nowhere")
            ip("-n", name, "address", "add", f"192.168.77.{number}/24", "dev", "office")
            ip("-n", name, "link", "set", "office", "up")

    def resolve(self, host, lines):
        """Let names mean on one host what the lines of its own ``/etc/hosts`` say."""
        folder = Path("/etc/netns") / host
        folder.mkdir(parents=True)
        self._stack.callback(shutil.rmtree, folder)
        (folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + lines)

    @contextlib.contextmanager
    def gate(self, address, to, port):
        """Forward a port of an address between the hosts to one of them."""
        ip("-n", self.switch, "address", "add", f"{address}/24", "dev", "switch")
        code = GATE.format(address=address, to=to, port=port)
        words = ["ip", "netns", "exec", self.switch, sys.executable, "-c", code]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as forwarder:
            try:
                assert forwarder.stdout.readline() == "open\n"
                yield
            finally:
                forwarder.kill()


@pytest.fixture
def hosts():
    """Make them, where this machine's kernel and rights allow."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    with contextlib.ExitStack() as stack:
        try:
            made = Hosts(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces can't be made here: {error.stderr}")
        yield made


def run_on(hosts, tmp_path, train="together", **network):
    """Run a job of two whose driver is on one host; return what the ranks returned."""
    python = tmp_path / "python"
    turn = tmp_path / "turn"
    names = {"first": hosts.first, "second": hosts.second}
    python.write_text(PYTHON.format(turn=turn, python=sys.executable, **names))
    python.chmod(0o755)
    script = SCRIPT.format(python=str(python), network=network, train=train)
    words = ["ip", "netns", "exec", hosts.driver, sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert said, done.stdout[-4000:] + done.stderr[-6000:]
    return json.loads(said[0].removeprefix("SAID "))


def test_a_driver_behind_a_gate_that_each_side_names_in_its_own_way(hosts, tmp_path, no_leaks):
    # As Debian does it: a host's own name is its loopback interface. The others know the gate's.
    hosts.resolve(hosts.driver, "127.0.1.1 the-driver\n")
    for host in (hosts.first, hosts.second):
        hosts.resolve(host, "10.77.1.9 the-driver\n")
    with hosts.gate("10.77.1.9", "10.77.1.1", 40000):
        values = run_on(
            hosts, tmp_path, interface="cluster", advertise="the-driver", port="40000-40000"
        )
    for total, workers in values:
        assert total == 3.0
        assert hosts_of(workers) == ["10.77.1.2", "10.77.1.3"]


@pytest.mark.parametrize("train", ["alone", "together"])
def test_hosts_that_speak_ipv6(hosts, tmp_path, train, no_leaks):
    for total, workers in run_on(hosts, tmp_path, train, host="fd77::1", port=(40000, 40010)):
        assert total == 3.0
        assert hosts_of(workers) == ["[fd77::2]", "[fd77::3]"]


def hosts_of(addresses):
    return sorted(address.rpartition(":")[0] for address in addresses)
