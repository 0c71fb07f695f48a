"""A stand-in for the Docker Engine of a swarm's manager; the docker command is the real one.

It has the calls of the API that ``docker stack``, ``service``, ``node`` and ``info`` make, and runs
the tasks as processes of this host. Their states, slots, restarts and placeholders follow
moby/swarmkit: manager/orchestrator/replicated and restart/restart.go (``ShouldRestart``),
template/expand.go, agent/exec/controller.go; their output moby/moby, daemon/cluster/services.go. Of
the overlay network it plays the names: each address is a port of this host.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs, unquote, urlsplit

from environments import TELLING, moved, stack_text
from standin import Server

NODE = "node1id"
ENDED = ("complete", "shutdown", "failed", "rejected")


def now():
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


@dataclass
class Task:
    """A task, its process and what it has printed."""

    id: str
    service: dict
    slot: int
    state: str = "pending"
    desired: str = "running"
    error: str = ""
    is_lost: bool = False
    created: str = field(default_factory=now)
    changed: str = field(default_factory=now)
    process: subprocess.Popen | None = None
    lines: list = field(default_factory=list)

    def shown(self):
        spec = self.service["Spec"]
        return {
            "ID": self.id,
            "Version": {"Index": 1},
            "CreatedAt": self.created,
            "UpdatedAt": self.changed,
            "Spec": spec["TaskTemplate"],
            "ServiceID": self.service["ID"],
            "Slot": self.slot,
            "NodeID": "" if self.state == "pending" else NODE,
            "Status": {"Timestamp": self.changed, "State": self.state, "Err": self.error},
            "DesiredState": self.desired,
        }


class SwarmEngine(Server):
    """The API, and the tasks.

    Parameters
    ----------
    folder : Path
        For the mounts of secrets and configs, and commands that only images have.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.secrets = {}
        self.configs = {}
        self.networks = {}
        self.services = {}
        self.tasks = []
        self.ids = map("id{:023d}".format, itertools.count(1))
        self.ports = {}
        self.is_manager = True
        self.history = 5
        self.version = "28.2.2"
        #: Slots that find no node, by service, with the reason.
        self.unplaced = {}
        self.bin = folder / "image-bin"
        self.bin.mkdir()
        self._command("gridflow", f'exec {sys.executable} -m gridflow.cli "$@"')
        for name in ("tensorboard", "tensorflow_model_server"):
            self._command(name, 'echo "$0 $@"; exec sleep 300')

    def _command(self, name, line):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def add_secret(self, name, value):
        """Do what ``docker secret create`` does."""
        self.secrets[name] = value

    # The orchestrator and the agent.

    def _new_task(self, service, slot):
        task = Task(next(self.ids), service, slot)
        self.tasks.append(task)
        reason = self.unplaced.get((service["Spec"]["Name"], slot))
        if reason:
            task.error = reason
        else:
            threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def _run(self, task):
        spec = task.service["Spec"]["TaskTemplate"]["ContainerSpec"]
        try:
            env = dict(entry.split("=", 1) for entry in spec.get("Env") or ())
            env = {name: stack_text(value, task.slot) for name, value in env.items()}
        except KeyError as error:
            self._to(task, "rejected", f"expanding env failed: template: {error}")
            return
        with self.lock:
            moved(" ".join(env[name] for name in TELLING if name in env), self.ports)
            env |= {k: moved(v, self.ports) for k, v in env.items() if k in TELLING}
        words = [*(spec.get("Command") or ()), *(spec.get("Args") or ())]
        secrets = self._mounted(task, spec)
        words = [word.replace("/run/secrets", str(secrets)) for word in words]
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GRIDFLOW_C")}
        try:
            task.process = subprocess.Popen(
                words,
                env={**kept, "PYTHONUNBUFFERED": "1", **env, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            self._to(task, "failed", f"starting container failed: {error}")
            return
        self._to(task, "running")
        readers = [
            threading.Thread(target=self._read, args=(task, number, pipe), daemon=True)
            for number, pipe in ((1, task.process.stdout), (2, task.process.stderr))
        ]
        for reader in readers:
            reader.start()
        code = task.process.wait()
        for reader in readers:
            reader.join()
        code = 128 - code if code < 0 else code
        with self.lock:
            if task.desired == "remove":
                self.tasks.remove(task)
                return
            if task.is_lost:
                return
            error = f"task: non-zero exit ({code})" if code else ""
            self._to(task, "failed" if code else "complete", error)
            task.desired = "shutdown"
            if self._restarts(task):
                self._new_task(task.service, task.slot)

    def _restarts(self, task):
        policy = task.service["Spec"]["TaskTemplate"].get("RestartPolicy") or {}
        condition = policy.get("Condition") or "any"
        if condition != "any" and (condition != "on-failure" or task.state == "complete"):
            return False
        before = sum(t.service is task.service and t.slot == task.slot for t in self.tasks) - 1
        return not policy.get("MaxAttempts") or before < policy["MaxAttempts"]

    def _mounted(self, task, spec):
        place = self.folder / task.id
        place.mkdir()
        for reference in spec.get("Secrets") or ():
            name = reference["File"]["Name"]
            if not name.startswith("/"):
                (place / name).write_text(self.secrets[reference["SecretName"]])
        return place

    def _read(self, task, number, pipe):
        with pipe:
            for line in pipe:
                with self.news:
                    task.lines.append((now(), number, line))
                    self.news.notify_all()

    def _to(self, task, state, error=""):
        with self.news:
            task.state, task.error, task.changed = state, error, now()
            self.news.notify_all()

    def task(self, name):
        """Return the newest task of a slot, like ``flights_worker.1``."""
        with self.lock:
            found = [t for t in self.tasks if f"{t.service['Spec']['Name']}.{t.slot}" == name]
            return found[-1] if found else None

    def lose(self, name):
        """Play a node that is down: its task is to end, and nothing is heard of it."""
        with self.lock:
            task = self.task(name)
            task.is_lost, task.desired = True, "shutdown"
            task.process.kill()

    def end(self):
        """End all processes."""
        self.closing.set()
        with self.lock:
            left = [task.process for task in self.tasks if task.process]
            self.services.clear()
        for process in left:
            process.kill()
            process.wait()

    # The API.

    def handle_call(self, handler):
        url = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[0].startswith("v1."):
            parts.pop(0)
        if parts == ["_ping"]:
            handler.send_response(200)
            for name, value in {"Api-Version": "1.44", "Content-Length": "0"}.items():
                handler.send_header(name, value)
            handler.end_headers()
            return
        kind, *rest = parts
        with self.lock:
            answer = getattr(self, f"_{handler.command.lower()}_{kind}")(handler, rest, query)
        if answer is not None:
            handler._answer(*answer if isinstance(answer, tuple) else (answer,))

    def _get_info(self, handler, rest, query):
        swarm = {"LocalNodeState": "inactive", "ControlAvailable": False}
        if self.is_manager:
            orchestration = {"TaskHistoryRetentionLimit": self.history}
            cluster = {"ID": "cluster", "Spec": {"Orchestration": orchestration}}
            swarm = {"LocalNodeState": "active", "ControlAvailable": True, "NodeID": NODE}
            swarm["Cluster"] = cluster
        return {"ID": "engine", "ServerVersion": self.version, "Swarm": swarm}

    def _get_distribution(self, handler, rest, query):
        return missing("no registry here")

    def _get_nodes(self, handler, rest, query):
        node = {
            "ID": NODE,
            "Version": {"Index": 1},
            "Spec": {"Role": "manager", "Availability": "active"},
            "Description": {"Hostname": "node1", "Engine": {"EngineVersion": self.version}},
            "Status": {"State": "ready"},
        }
        return node if rest else [node]

    def _get_networks(self, handler, rest, query):
        if rest:
            return self.networks.get(rest[0]) or missing(f"network {rest[0]} not found")
        return [each for each in self.networks.values() if fits(each, query)]

    def _post_networks(self, handler, rest, query):
        body = handler._body()
        self.networks[body["Name"]] = {**body, "Id": body["Name"], "Scope": "swarm"}
        return {"Id": body["Name"]}, 201

    def _delete_networks(self, handler, rest, query):
        del self.networks[rest[0]]
        handler._answer("", 204)

    def _get_secrets(self, handler, rest, query):
        return [
            each
            for name in self.secrets
            if fits(each := {"ID": f"secret-{name}", "Spec": {"Name": name}}, query)
        ]

    def _get_configs(self, handler, rest, query):
        if rest:
            return self.configs.get(rest[0]) or missing(f"config {rest[0]} not found")
        return [each for each in self.configs.values() if fits(each, query)]

    def _post_configs(self, handler, rest, query):
        body = handler._body()
        self.configs[body["Name"]] = {"ID": body["Name"], "Spec": body}
        return {"ID": body["Name"]}, 201

    def _delete_configs(self, handler, rest, query):
        del self.configs[rest[0]]
        handler._answer("", 204)

    def _get_services(self, handler, rest, query):
        if not rest:
            return [each for each in self.services.values() if fits(each, query)]
        found = [s for s in self.services.values() if rest[0] in {s["ID"], s["Spec"]["Name"]}]
        if not found:
            return missing(f"service {rest[0]} not found")
        if rest[1:] == ["logs"]:
            self._logs(handler, [t for t in self.tasks if t.service is found[0]], query)
            return None
        return found[0]

    def _post_services(self, handler, rest, query):
        spec = handler._body()
        service = {
            "ID": next(self.ids),
            "Version": {"Index": 1},
            "CreatedAt": now(),
            "UpdatedAt": now(),
            "Spec": spec,
            "Endpoint": {"Spec": spec.get("EndpointSpec") or {}},
        }
        self.services[service["ID"]] = service
        self.calls.append(("auth", handler.headers.get("X-Registry-Auth")))
        for slot in range(1, spec["Mode"]["Replicated"].setdefault("Replicas", 1) + 1):
            self._new_task(service, slot)
        return {"ID": service["ID"]}, 201

    def _delete_services(self, handler, rest, query):
        service = self.services.pop(rest[0])
        for task in [task for task in self.tasks if task.service is service]:
            if task.state in ENDED or task.process is None:
                self.tasks.remove(task)
            else:
                task.desired = "remove"
                task.process.terminate()
        handler._answer("", 200)

    def _get_tasks(self, handler, rest, query):
        if not rest:
            return [t.shown() for t in self.tasks if fits(t.service, query)]
        found = [task for task in self.tasks if task.id == rest[0]]
        if not found:
            return missing(f"task {rest[0]} not found")
        if rest[1:] == ["logs"]:
            self._logs(handler, found, query)
            return None
        return found[0].shown()

    def _logs(self, handler, tasks, query):
        """Send what tasks have printed; followed, it has no end but the client's."""
        handler.send_response(200)
        handler.send_header("Content-Type", "application/vnd.docker.multiplexed-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        seconds, _, part = query.get("since", "0").partition(".")
        since = int(seconds) * 10**9 + int(part or 0)
        sent = dict.fromkeys((task.id for task in tasks), 0)
        while True:
            for task in tasks:
                for line in task.lines[sent[task.id] :]:
                    sent[task.id] += 1
                    if nanoseconds(line[0]) >= since:
                        handler.wfile.write(frame(task, line, query))
            try:
                handler.wfile.flush()
            except OSError:
                return
            if query.get("follow") != "1" or self.closing.is_set() or left(handler):
                return
            # The lock is that of the call: it is given back while this waits.
            self.news.wait(timeout=0.05)


def left(handler):
    """Whether the client has closed its connection."""
    handler.connection.setblocking(False)
    try:
        return handler.connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        handler.connection.setblocking(True)


def nanoseconds(text):
    whole, _, part = text.removesuffix("Z").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return int(seconds) * 10**9 + int(part)


def frame(task, line, query):
    """A line as pkg/stdcopy of moby/moby writes it, with the details that name the task."""
    when, number, text = line
    details = {"node": NODE, "service": task.service["ID"], "task": task.id}
    words = [",".join(f"com.docker.swarm.{name}.id={each}" for name, each in details.items()), text]
    if query.get("timestamps") == "1":
        words.insert(0, when)
    data = " ".join(words).encode()
    return bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def fits(item, query):
    """Whether the filters of a listing take something."""
    filters = json.loads(query.get("filters", "{}"))
    spec = item.get("Spec", item)
    labels = {f"{key}={value}" for key, value in (spec.get("Labels") or {}).items()}
    names = set(filters.get("name", ()))
    wanted = set(filters.get("label", ()))
    return wanted <= labels and (not names or spec["Name"] in names)


def missing(text):
    return {"message": text}, 404


def has_docker(verb):
    """Whether there is a docker command with a verb for stacks."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "stack", verb, "--help"], capture_output=True, check=False)
    return f"docker stack {verb}".encode() in done.stdout
