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

import pytest

from suite.hosts import Hosts
from suite.waiting import LONGEST

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
    script = SCRIPT.format(python=str(hosts.python(tmp_path)), network=network, train=train)
    words = ["ip", "netns", "exec", hosts.driver, sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONGEST)
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
