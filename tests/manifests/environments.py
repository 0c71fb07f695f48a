"""Each target's processes, as its documents and its platform's variables would start them."""

from __future__ import annotations

import json
import re
import shlex

from gridflow.deploy import render
from gridflow.deploy.task_start import tasks
from suite.ports import free_ports

_ADDRESS = re.compile(r"[a-z0-9][a-z0-9.-]*:\d+")
#: The variables that hold addresses.
TELLING = ("GRIDFLOW_CLUSTER", "GRIDFLOW_FINISH", "GRIDFLOW_GIVE_UP", "GRIDFLOW_MEET", "TF_CONFIG")


class Expansion:
    """Kubernetes' expansion of $(NAME) in commands, arguments and variables."""

    def __init__(self, env):
        self.env = env

    def __call__(self, text):
        return re.sub(
            r"\$(\$|\(([^()]*)\)|$)?",
            lambda m: "$" if m.group(1) == "$" else self._read(m),
            text,
        )

    def _read(self, match):
        name = match.group(2)
        return self.env.get(name, match.group(0)) if name else match.group(0)


def _kubernetes_env(box, fields):
    env = {}
    for item in box.get("env", []):
        if "value" in item:
            env[item["name"]] = Expansion(env)(item["value"])
        elif "fieldRef" in item["valueFrom"]:
            path = item["valueFrom"]["fieldRef"]["fieldPath"]
            # An annotation that isn't there is an empty text (kubelet, ExtractFieldPathAsString).
            env[item["name"]] = "" if "'gridflow/" in path else fields[path]
    words = [*box.get("command", []), *box.get("args", [])]
    return env, [Expansion(env)(word) for word in words]


#: What the Job controller writes on an index's first pod.
POD_FIELDS = {"metadata.annotations['batch.kubernetes.io/job-index-failure-count']": "0"}


def _jobs(documents):
    return {
        d["metadata"]["labels"]["app.kubernetes.io/component"]: d["spec"]["template"]
        for d in documents
        if d["kind"] == "Job"
    }


def kubernetes(job, documents):
    templates = _jobs(documents)
    for role, index in tasks(job):
        env, words = _kubernetes_env(templates[role]["spec"]["containers"][0], POD_FIELDS)
        yield role, index, {**env, "JOB_COMPLETION_INDEX": str(index)}, words


def _set_tasks(job, parts):
    for role, index in tasks(job):
        part = next(
            p
            for p in parts
            if p["template"]["spec"]["template"]["metadata"]["labels"][
                "app.kubernetes.io/component"
            ]
            == role
        )
        fields = {
            "metadata.labels['jobset.sigs.k8s.io/jobset-name']": job.name,
            "metadata.labels['jobset.sigs.k8s.io/replicatedjob-name']": part["name"],
        }
        box = part["template"]["spec"]["template"]["spec"]["containers"][0]
        env, words = _kubernetes_env(box, fields)
        yield role, index, {**env, "JOB_COMPLETION_INDEX": str(index)}, words


def jobset(job, documents):
    found = next(d for d in documents if d["kind"] == "JobSet")
    yield from _set_tasks(job, found["spec"]["replicatedJobs"])


def trainjob(job, documents):
    runtime = next(d for d in documents if d["kind"] == "TrainingRuntime")
    yield from _set_tasks(job, runtime["spec"]["template"]["spec"]["replicatedJobs"])


def tfjob(job, documents):
    specs = next(d for d in documents if d["kind"] == "TFJob")["spec"]["tfReplicaSpecs"]
    cluster = {
        role.lower(): [
            f"{job.name}-{role.lower()}-{i}.{job.namespace}.svc:{job.port}"
            for i in range(spec["replicas"])
        ]
        for role, spec in specs.items()
    }
    names = {role.lower(): role for role in specs}
    for role, index in tasks(job):
        box = specs[names[role]]["template"]["spec"]["containers"][0]
        env, words = _kubernetes_env(box, {})
        if job.tasks > 1:  # the operator's, evaluator included
            task = {"type": role, "index": index}
            operators = {"cluster": cluster, "task": task, "environment": "cloud"}
            env["TF_CONFIG"] = json.dumps(operators)
        yield role, index, env, words


def volcano(job, documents):
    parts = next(d for d in documents if d["kind"] == "Job")["spec"]["tasks"]
    for role, index in tasks(job):
        part = next(p for p in parts if p["name"] == role)
        env, words = _kubernetes_env(part["template"]["spec"]["containers"][0], {})
        yield role, index, {**env, "VC_TASK_INDEX": str(index), "VK_TASK_INDEX": str(index)}, words


def compose(job, documents):
    for role, index in tasks(job):
        service = documents[0]["services"][f"{role}-{index}"]
        env = {
            name: value.replace("$$", "$")
            for name, value in service["environment"].items()
            if value is not None and not value.startswith("${")
        }
        words = [*service["entrypoint"], *service["command"]]
        yield role, index, env, [word.replace("$$", "$") for word in words]


def stack_text(text, slot):
    """What a text of a stack file is in the container of a slot.

    First docker/cli replaces ``$$`` (cli/compose/template), then swarmkit its placeholders
    (template/expand.go); a text with any other placeholder would be refused.
    """
    text = text.replace("$$", "$")
    parts = re.split(r"(\{\{.*?\}\})", text)
    known = {"{{.Task.Slot}}": str(slot), '{{"{{"}}': "{{"}
    return "".join(known[part] if part.startswith("{{") else part for part in parts)


def swarm(job, documents):
    for role, index in tasks(job):
        service = documents[-1]["services"][role]
        assert index < service["deploy"]["replicas"]
        slot = index + 1
        env = {name: stack_text(text, slot) for name, text in service["environment"].items()}
        words = [*service["entrypoint"], *service.get("command", ())]
        # It is known to the others by its host name.
        host = stack_text(service["hostname"], slot)
        known = [
            address
            for name in TELLING
            if name in env
            for address in re.findall(_ADDRESS, env[name])
        ]
        assert not known or any(address.startswith(f"{host}:") for address in known)
        yield role, index, env, [word.replace("$$", "$") for word in words]


def docker(job, documents):
    script = documents[-1]
    commands = list(split_commands(script))
    for role, index in tasks(job):
        name = f"--name={job.name}-{role}-{index}"
        words = next(w for w in commands if w[:2] == ["docker", "run"] and name in w)
        place = words.index(job.image)
        options, rest = words[:place], words[place + 1 :]
        env = dict(w.removeprefix("--env=").split("=", 1) for w in options if _is_env(w))
        entry = next(w for w in options if w.startswith("--entrypoint="))
        yield role, index, env, [entry.removeprefix("--entrypoint="), *rest]


def _is_env(word):
    return word.startswith("--env=") and "=" in word.removeprefix("--env=")


def split_commands(script):
    """Split a script into commands, quoted newlines kept."""
    line = ""
    for part in script.split("\n"):
        line += part
        try:
            words = shlex.split(line)
        except ValueError as error:
            goes_on = "escaped" in str(error)  # a backslash at the end, which no quotes hold
            line = f"{line[:-1]} " if goes_on else f"{line}\n"
            continue
        yield words
        line = ""


#: Of the image that the target docker makes; others have none, or another.
ENTRYPOINT = ["gridflow", "launch"]


def mesos_words(app, entrypoint, default=()):
    """What Mesos' containerizer runs in an image with an entrypoint and a default command.

    By the table of docs/isolators/docker-runtime.md ("Determine the Launch Command") and
    src/slave/containerizer/mesos/isolators/docker/runtime.cpp of apache/mesos: a command for the
    shell (Marathon's ``cmd``) replaces both, ``args`` without one are appended.
    """
    if "cmd" in app:
        words = shlex.split(app["cmd"])
        assert words.pop(0) == "exec"
        return words
    if not entrypoint:
        return [*default, *app["args"]]
    return [*entrypoint, *app["args"]]


def marathon(job, documents):
    for role, index in tasks(job):
        name = f"/{job.name}/{role}-{index}"
        app = next(a for a in documents[0]["apps"] if a["id"] == name)
        env = {key: value for key, value in app["env"].items() if isinstance(value, str)}
        platform = {"MARATHON_APP_ID": name, "HOST": "127.0.0.1"}
        for place, definition in enumerate(app["portDefinitions"]):
            platform[f"PORT{place}"] = str(definition["port"])
        yield role, index, {**env, **platform}, mesos_words(app, ENTRYPOINT)


def local(job, documents):
    lines = [words for words in split_commands(documents[0]) if words[:1] == ["env"]]
    for (role, index), words in zip(tasks(job), lines, strict=True):
        place = words.index("gridflow")
        env = dict(word.split("=", 1) for word in words[1:place])
        yield role, index, env, words[place:-1]


ENVIRONMENTS = {
    "local": local,
    "docker": docker,
    "compose": compose,
    "swarm": swarm,
    "kubernetes": kubernetes,
    "jobset": jobset,
    "tfjob": tfjob,
    "trainjob": trainjob,
    "volcano": volcano,
    "marathon": marathon,
}


def processes(job, target, *, lossy=False):
    """Return role, index, variables and words of each process of a rendered job."""
    documents = [d.content for d in render(job, target, lossy=lossy).documents]
    return list(ENVIRONMENTS[target](job, documents))


def moved(text, ports):
    """A text with a port of this host in the place of each address; new ones are added."""
    new = [a for a in dict.fromkeys(_ADDRESS.findall(text)) if a not in ports]
    ports |= zip(new, free_ports(len(new)), strict=True)
    return _ADDRESS.sub(lambda match: f"127.0.0.1:{ports[match.group()]}", text)


def on_this_host(found):
    """Give every address of the targets' networks a port of this host instead."""
    ports = {}
    moved(" ".join(env[name] for _, _, env, _ in found for name in TELLING if name in env), ports)
    return [
        (role, index, {k: moved(v, ports) if k in TELLING else v for k, v in env.items()}, words)
        for role, index, env, words in found
    ]
