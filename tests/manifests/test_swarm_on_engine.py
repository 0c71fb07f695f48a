"""A stack on a real Engine: a swarm of one node in namespaces of its own, where dockerd is there.

Debian's packages docker.io, tini and iptables have what it needs. The containers have this host's
/usr and Python, read-only, so that no image is to be fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest
from jobs import ROOT

from gridflow._spec.exits import Exit
from gridflow.cli import main
from suite.waiting import wait_for

NEEDED = ("dockerd", "containerd", "runc", "docker", "docker-init", "iptables", "unshare", "ip")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts an Engine"),
]
IMAGE = "local/gridflow:1"
ADDRESS = "10.99.0.1"
#: Everything ends with the first process of its process namespace, and so do its mounts.
ENGINE = """
set -e
ip link set lo up
ip addr add {address}/24 dev lo
mount -t tmpfs tmpfs /run
containerd --root {folder}/c --state /run/containerd --address /run/c.sock &
exec dockerd --containerd /run/c.sock --data-root {folder}/d --exec-root /run/docker \\
  --host unix://{folder}/d.sock --pidfile /run/dockerd.pid \\
  --iptables=false --ip6tables=false --storage-driver=vfs
"""


def docker(*words):
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """A swarm of one node, and its image without anything of its own."""
    folder = tmp_path_factory.mktemp("engine")
    words = ["unshare", "-m", "-n", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c"]
    script = ENGINE.format(folder=folder, address=ADDRESS)
    before = os.environ.get("DOCKER_HOST")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*words, script], stdout=log, stderr=log)
    os.environ["DOCKER_HOST"] = f"unix://{folder}/d.sock"
    try:
        wait_for(
            lambda: process.poll() is not None or (folder / "d.sock").exists(),
            "Docker's engine",
            seen=(folder / "log").read_text,
        )
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        address = f"{ADDRESS}:2377"
        docker("swarm", "init", f"--advertise-addr={ADDRESS}", f"--listen-addr={address}")
        docker("import", str(image(folder)), IMAGE)
        yield folder
    finally:
        # The first process of the namespace, with all others of it; its parent takes its end.
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.wait()
        del os.environ["DOCKER_HOST"]
        if before is not None:
            os.environ["DOCKER_HOST"] = before


def image(folder):
    """Write the root of a container as a tar file: links into /usr, and places for mounts."""
    root = folder / "root"
    for name in ("tmp", "usr", "etc", "sbin", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    with tarfile.open(folder / "image.tar", "w") as tar:
        tar.add(root, "/")
    return folder / "image.tar"


@pytest.fixture
def run(swarm, tmp_path, capfd):
    """Run a job to its end, and remove it."""
    places = {"/usr", str(ROOT), sys.base_prefix, sys.prefix}
    tops = [p for p in sorted(places) if not any(Path(q) in Path(p).parents for q in places)]
    volumes = [
        {"name": f"host-{i}", "path": place, "host": place, "read_only": True}
        for i, place in enumerate(tops)
    ]
    job = {
        "name": "flights",
        "image": IMAGE,
        "env": {"PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin"},
        "volumes": volumes,
        "run_as_user": 0,
        "start_timeout": 60,
    }
    path = tmp_path / "job.yaml"

    def call(program, **changes):
        command = {"command": ["sh", "-c", program], "roles": {"worker": {"replicas": 2}}}
        path.write_text(json.dumps({**job, **command, **changes}))
        code = main(["run", "-t", "swarm", str(path), "--replace"])
        return (code, *capfd.readouterr())

    yield call
    main(["cancel", "-t", "swarm", str(path)])
    wait_for(lambda: not docker("ps", "--all", "--quiet").strip(), "the end of the containers")


def test_tasks_find_one_another_by_their_slots(run):
    program = 'echo "$TF_CONFIG"; getent hosts worker-1 worker-2'
    code, out, err = run(program)
    assert code == 0, out + err
    for slot in (1, 2):
        mine = [line for line in out.splitlines() if f"flights_worker.{slot}@" in line]
        assert any(f'"index": {slot - 1}' in line for line in mine), out
        assert all(any(line.endswith(f" worker-{i}") for line in mine) for i in (1, 2)), out


def test_secrets_texts_and_shared_memory_reach_the_program(run):
    docker("secret", "create", "api.token", str(ROOT / "pyproject.toml"))
    program = 'echo "${#API_TOKEN} letters of $TEXT"; df -k /dev/shm | tail -1'
    changes = {
        "secrets": {"env": {"API_TOKEN": {"secret": "api", "key": "token"}}},
        "shared_memory": "64Mi",
    }
    code, out, err = run(f"TEXT='$X' && {program}", **changes)
    assert code == 0, out + err
    letters = len((ROOT / "pyproject.toml").read_text().rstrip("\n"))
    assert out.count(f"{letters} letters of $X") == 2
    assert out.count(" 65536 ") >= 2


def test_a_chief_that_fails_for_good_ends_the_stack(run):
    roles = {
        "chief": {"command": ["sh", "-c", "exit 3"]},
        "worker": {"replicas": 2},
        "ps": {"command": ["sleep", "300"]},
    }
    code, out, err = run("exec sleep 300", roles=roles, restart_policy="never")
    assert code == Exit.PROGRAM, out + err
    assert "flights_chief.1 failed with exit code 3" in err
    assert err.count("was stopped because another task failed, with exit code 113") == 3


def test_a_task_that_no_node_takes_is_shown_and_given_up(run):
    code, _, err = run("true", roles={"worker": {}}, image="local/none:9")
    assert code == Exit.LOST
    assert "flights_worker.1 ended as rejected: No such image: local/none:9" in err
