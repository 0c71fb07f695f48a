"""Stand-ins for what can't run in a test: a Kubernetes API, a Marathon and Docker's Compose.

That of a swarm is in swarm_engine.py.

The clients are real: kubectl talks to the first over HTTP, gridflow's own client to the second.
They answer what these clients ask for in the tests, and keep what they are given; no controller
runs behind them, so the tests set the states themselves.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import gmtime, strftime
from urllib.parse import parse_qs, urlsplit

from gridflow.deploy.drivers.kubectl import KubectlDriver

#: Resource, kind and group version of what the API serves.
RESOURCES = {
    ("v1", "services", "Service"),
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "pods", "Pod"),
    ("v1", "events", "Event"),
    ("batch/v1", "jobs", "Job"),
    ("batch.volcano.sh/v1alpha1", "jobs", "Job"),
    ("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet"),
    ("apps/v1", "deployments", "Deployment"),
    ("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
}


VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Print nothing."""

    def _answer(self, body, status=200, kind="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self):
        return json.loads(self.data or b"{}")

    def _serve(self):
        # Read in any case: on a kept connection the rest would look like the next request.
        self.data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.calls.append((self.command, self.path))
        self.server.handle_call(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 (theirs)


class Server(ThreadingHTTPServer):
    """Holds what it is given."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls = []
        self.objects = {}
        self.logs = {}
        #: How many lines a broken stream has, for each that is to break.
        self.cuts = []
        #: While it is set, the server is being started again.
        self.away = threading.Event()
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)
        self.closing = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Kubernetes(Server):
    """Discovery, and create, get, list, patch, watch, delete of objects."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.uids = itertools.count(1)
        #: What the user may not do: verb and resource, such as ("list", "pods").
        self.denied = set()
        #: Whether the user's token has expired.
        self.is_stranger = False

    def put(self, key, body):
        """Keep an object, and tell those who watch."""
        with self.news:
            kind = "MODIFIED" if key in self.objects else "ADDED"
            about = body["metadata"]
            about.setdefault("uid", f"uid-{next(self.uids)}")
            about.setdefault("creationTimestamp", now())
            about["resourceVersion"] = str(len(self.events) + 1)
            self.objects[key] = body
            self.events.append((kind, key, json.dumps(body)))
            self.news.notify_all()

    def remove(self, key):
        """Drop an object, and tell those who watch."""
        with self.news:
            body = self.objects.pop(key)
            self.events.append(("DELETED", key, json.dumps(body)))
            self.news.notify_all()

    def _watch(self, handler, key, since):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while not self.closing.is_set():
            with self.news:
                if len(self.events) == since:
                    self.news.wait(timeout=0.1)
                fresh, since = self.events[since:], len(self.events)
            for kind, of, body in fresh:
                if of == key:
                    line = f'{{"type": "{kind}", "object": {body}}}\n'.encode()
                    handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    handler.wfile.flush()
        handler.close_connection = True

    def handle_call(self, handler):
        url = urlsplit(handler.path)
        parts = url.path.strip("/").split("/")
        if self.away.is_set():
            handler._answer({"kind": "Status", "status": "Failure", "code": 503}, 503)
        elif self.is_stranger:
            handler._answer(failure("Unauthorized", "Unauthorized", 401), 401)
        elif parts[0] not in {"api", "apis"}:
            handler._answer(not_found(), 404)
        elif len(parts) < (3 if parts[0] == "api" else 4):
            handler._answer(self._discovery(parts))
        elif parts[-1] == "selfsubjectaccessreviews":
            handler._answer(self._review(handler._body()), 201)
        else:
            self._object(handler, parts, parse_qs(url.query))

    def _discovery(self, parts):
        if parts == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        groups = sorted({v for v, _, _ in RESOURCES if "/" in v})
        if parts == ["apis"]:
            listed = [
                {
                    "name": v.split("/")[0],
                    "versions": [{"groupVersion": v, "version": v.split("/")[1]}],
                    "preferredVersion": {"groupVersion": v, "version": v.split("/")[1]},
                }
                for v in groups
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        version = "/".join(parts[1:])
        resources = [
            {
                "name": name,
                "singularName": kind.lower(),
                "namespaced": kind != "SelfSubjectAccessReview",
                "kind": kind,
                "verbs": ["create", "delete", "get", "list", "patch"],
            }
            for v, name, kind in sorted(RESOURCES)
            if v == version
        ]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": resources,
        }

    def _review(self, body):
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return {**body, "status": {"allowed": (asked["verb"], resource) not in self.denied}}

    def _object(self, handler, parts, query):
        version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[parts.index("namespaces") + 2 :]
        verb = VERBS.get(handler.command, "get" if len(rest) > 1 else "list")
        resource = "/".join((rest[0], *rest[2:]))
        if (verb, resource) in self.denied:
            handler._answer(failure("Forbidden", f"{resource} is forbidden", 403), 403)
            return
        kind = next(k for v, name, k in RESOURCES if (v, name) == (version, rest[0]))
        key = (version, kind, rest[1]) if len(rest) > 1 else None
        if key is None and query.get("watch"):
            named = query["fieldSelector"][0].partition("=")[2]
            self._watch(handler, (version, kind, named), int(query["resourceVersion"][0]))
            return
        with self.lock:
            if handler.command == "POST":
                body = handler._body()
                self.put((version, kind, body["metadata"]["name"]), body)
                handler._answer(body, 201)
            elif key is None:
                handler._answer(self._list(version, kind, query))
            elif rest[2:] == ["log"]:
                handler._answer(self._log(rest[1], query), kind="text/plain")
            elif key not in self.objects:
                handler._answer(not_found(), 404)
            elif handler.command == "DELETE":
                self.remove(key)
                handler._answer({"kind": "Status", "status": "Success"})
            elif handler.command == "PATCH":
                self.put(key, merge(self.objects[key], handler._body()))
                handler._answer(self.objects[key])
            else:
                handler._answer(self.objects[key])

    def _log(self, name, query):
        """Play the kubelet: lines have their times if asked for; ``sinceTime`` is in seconds."""
        lines = self.logs.get(name, "").splitlines(keepends=True)
        cut = self.cuts.pop(0) if self.cuts else len(lines)
        if query.get("timestamps", [""])[0] == "true":
            # Three lines a second, two at the same moment.
            times = [f"2026-01-01T00:00:{i // 3:02}.{i % 3 // 2}5Z" for i in range(len(lines))]
            since = query.get("sinceTime", [""])[0].removesuffix("Z")
            lines = [f"{t} {line}" for t, line in zip(times, lines, strict=True)][:cut]
            lines = [line for line in lines if line[:19] >= since]
        return "".join(lines[:cut])

    def set_status(self, kind, name, status):
        """Play the controller."""
        key = ("batch/v1" if kind == "Job" else "apps/v1", kind, name)
        with self.lock:
            self.put(key, {**self.objects[key], "status": status})

    def _list(self, version, kind, query):
        field, _, value = query.get("fieldSelector", [""])[0].partition("=")
        wanted = query.get("labelSelector", [""])[0]
        items = [
            item
            for (v, k, name), item in self.objects.items()
            if (v, k) == (version, kind)
            and value in {"", name if field == "metadata.name" else item.get(field)}
            and selected(item["metadata"].get("labels", {}), wanted)
        ]
        about = {"resourceVersion": str(len(self.events))}
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": about, "items": items}

    def add_event(self, kind, name, reason, message, *, last=None):
        """Play a controller that can't do what it should."""
        about = {"name": f"{name}.{next(self.uids)}", "namespace": "default"}
        self.put(
            ("v1", "Event", about["name"]),
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": about,
                "involvedObject": {"kind": kind, "name": name, "namespace": "default"},
                "type": "Warning",
                "reason": reason,
                "message": message,
                "lastTimestamp": last or now(),
            },
        )

    def add_pod(self, name, job, phase, log, component="worker", **status):
        """Play the kubelet."""
        labels = {"app.kubernetes.io/name": job, "app.kubernetes.io/component": component}
        about = {"name": name, "namespace": "default", "labels": labels}
        box = {"name": "tensorflow", "image": "a"}
        self.logs[name] = log
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [box]}}
        self.put(("v1", "Pod", name), {**pod, "status": {"phase": phase, **status}})


def now():
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())


def selected(labels, words):
    """Whether a label selector takes labels: equality and sets."""
    for word in re.split(r",(?![^(]*\))", words) if words else ():
        name, _, values = word.partition(" in ")
        if values:
            if labels.get(name) not in values.strip("()").split(","):
                return False
        elif labels.get(word.partition("=")[0]) != word.partition("=")[2]:
            return False
    return True


def merge(base, change):
    """What a merge patch does: null takes a key away."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    merged = {**base, **{k: merge(base.get(k), v) for k, v in change.items() if v is not None}}
    return {k: v for k, v in merged.items() if k not in change or change[k] is not None}


def failure(reason, message, code):
    about = {"reason": reason, "message": message, "code": code}
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", **about}


def not_found():
    return failure("NotFound", "not found", 404)


class MarathonServer(Server):
    """PUT, GET and DELETE of groups."""

    def __init__(self):
        super().__init__()
        #: Why no app runs, as two kinds of answers have it.
        self.waits = {}

    def handle_call(self, handler):
        path = urlsplit(handler.path).path
        if handler.command == "PUT":
            group = handler._body()
            if not group.get("apps"):
                handler._answer({"message": "Object is not valid"}, 422)
                return
            self.objects[f"/v2/groups{group['id']}"] = group
            handler._answer({"deploymentId": "d-1", "version": "1"})
        elif path == "/v2/queue":
            handler._answer({"queue": self.waits.get("queue", [])})
        elif path not in self.objects:
            handler._answer({"message": f"{path} does not exist"}, 404)
        elif handler.command == "DELETE":
            del self.objects[path]
            handler._answer({"deploymentId": "d-2"})
        else:
            group = self.objects[path]
            more = self.waits.get("app", {}) if self.waits else {"tasksRunning": 1}
            apps = [{**app, **more} for app in group["apps"]]
            handler._answer({"id": group["id"], "apps": apps})


@contextmanager
def serving(server):
    """Run a stand-in for the length of a block."""
    thread = threading.Thread(target=server.serve_forever, name="stand-in")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def configured(server, folder, monkeypatch):
    """Let kubectl talk to a stand-in."""
    cluster = {"name": "c", "cluster": {"server": server.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("HOME", str(folder))
    looking_often(KubectlDriver, monkeypatch)


def looking_often(driver, monkeypatch):
    """Let ``gridflow run`` look often: nothing takes long here."""
    monkeypatch.setitem(driver.__init__.__kwdefaults__, "poll", 0.1)


#: Plays ``docker compose``, as Docker's daemon can't run in a test. It keeps its state in a folder:
#: containers are there after ``up``, and have ended once their output was read. They don't start
#: while there is a file "stuck"; with "removed", they are removed then.
DOCKER = """\
import json, pathlib, sys

folder = pathlib.Path(__file__).parent
state = folder / "services.json"
is_stuck = (folder / "stuck").exists()
words = sys.argv[1:]
with (folder / "calls").open("a") as file:
    print(*words, file=file)
assert words.pop(0) == "compose"
if words == ["version"]:
    print("Docker Compose version v2.27.0")
    sys.exit()
project, file, verb, *rest = words
assert file == "--file=-"
import yaml
document = yaml.safe_load(sys.stdin)
assert document["name"] == project.removeprefix("--project-name=")
if verb == "up":
    begun = "created" if is_stuck else "running"
    services = {
        name: {"Service": name, "State": begun, "ExitCode": 0} for name in document["services"]
    }
    state.write_text(json.dumps(services))
try:
    services = json.loads(state.read_text())
except FileNotFoundError:  # perhaps another call has just removed it
    services = {}
if verb == "ps":
    for service in services.values():
        print(json.dumps(service))
elif verb == "logs":
    shown = [word for word in rest if word != "--follow"] or services
    for name in () if is_stuck else shown:
        print(f"{name}-1  | epoch 1 done", flush=True)
        if name != "tensorboard":
            code = int(document["services"][name]["environment"].get("ENDS_WITH", "0"))
            services[name] |= {"State": "exited", "ExitCode": code}
    new = state.with_suffix(".new")
    new.write_text(json.dumps(services))
    new.replace(state)
    if (folder / "removed").exists():
        state.unlink()
elif verb == "down":
    state.unlink()
"""


def put_docker_into(folder):
    """Write the stand-in for docker as an executable; return the file that lists its calls."""
    path = folder / "docker"
    path.write_text(f"#!{sys.executable}\n{DOCKER}")
    path.chmod(0o755)
    return folder / "calls"
