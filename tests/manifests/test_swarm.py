"""Docker Swarm: the real docker command against a stand-in for its Engine, whose tasks are real."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import yaml
from environments import processes, stack_text
from jobs import ROOT, flights, full, matrix
from standin import serving
from swarm_engine import SwarmEngine, has_docker

from gridflow._spec.exits import Exit
from gridflow.deploy import (
    Credentials,
    JobError,
    Model,
    Resources,
    Role,
    S3Credentials,
    SecretKey,
    Secrets,
    Serve,
    TensorBoard,
    Validation,
    Volume,
    load_job,
    parse_job,
    render,
    validate,
)
from gridflow.deploy.inside.identity import identify
from gridflow.deploy.targets import swarm
from gridflow.errors import InvalidArgument
from suite.waiting import wait_for

JOB = """\
name: flights
image: registry.example/flights:1
command: [sh, -c, 'echo epoch 1 of $TF_CONFIG; echo a warning >&2']
roles: {worker: {replicas: 2}}
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    if not has_docker("deploy"):
        pytest.skip("no docker with 'stack deploy' is installed")
    with serving(SwarmEngine(tmp_path)) as stand_in:
        for name in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DOCKER_HOST", stand_in.url.replace("http", "tcp"))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))
        monkeypatch.setitem(swarm.SwarmDriver.__init__.__kwdefaults__, "poll", 0.1)
        yield stand_in
        stand_in.end()


def stack(**changes):
    changes = {"args": [], "roles": {"worker": Role(2)}, **changes}
    return render(flights(**changes), "swarm").documents[-1].content


def worker(**changes):
    return stack(**changes)["services"]["worker"]


def command(text):
    """The setting of a job's command to a line of the shell."""
    return ("--set", f"command={json.dumps(['sh', '-c', text])}")


@pytest.mark.skipif(not has_docker("config"), reason="no docker with 'stack config' is installed")
def test_docker_itself_takes_every_stack(tmp_path):
    """Its schema is part of the command, and so are the rules of cli/compose/loader."""
    several = [job for title, job in matrix() if "ps=2" in title and "gang=0" in title]
    for number, job in enumerate([*several, full(), load_job(ROOT / "examples" / "flights.yaml")]):
        folder = tmp_path / str(number)
        for document in render(job, "swarm", lossy=True).documents:
            document.write(folder)
        words = ["docker", "stack", "config", f"--compose-file={folder}/stack.yaml"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not has_docker("config"), reason="no docker with 'stack config' is installed")
@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("deploy.resources.limits.cpus", 1, "deploy.resources.limits.cpus"),
        ("deploy.resources.reservations.devices", [], "deploy.resources.reservations"),
        ("deploy.restart_policy.max_attempts", "3", "deploy.restart_policy.max_attempts"),
        ("deploy.restart_policy.window", "soon", "deploy.restart_policy.window"),
        ("deploy.update_config.order", "sideways", "deploy.update_config.order"),
        ("environment.A", True, "environment.A"),
        ("healthcheck.disabled", True, "healthcheck"),
        ("volumes", [{"source": "a", "target": "/a"}], "volumes[0]"),
        ("user", 1000, "user"),
    ],
)
def test_validate_finds_what_dockers_own_schema_refuses(path, value, where, monkeypatch):
    monkeypatch.delenv("GRIDFLOW_SCHEMAS", raising=False)
    whole = stack()
    assert validate("swarm", yaml.safe_dump(whole)) == Validation(1, ())
    *steps, last = path.split(".")
    place = whole["services"]["worker"]
    for step in steps:
        place = place.setdefault(step, {})
    place[last] = value
    (problem,) = validate("swarm", yaml.safe_dump(whole)).problems
    assert problem.path.split(" ")[-1] == f"services.worker.{where}"
    assert problem.where


def test_without_docker_and_schema_validate_says_that_only_rules_were_checked(monkeypatch):
    monkeypatch.delenv("GRIDFLOW_SCHEMAS", raising=False)
    monkeypatch.setattr(swarm, "_has_stack_config", lambda: False)
    (note,) = validate("swarm", yaml.safe_dump(stack())).notes
    assert "it was only linted" in note


def test_the_pages_overrides_fit(tmp_path):
    page = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
    section = page[page.index("### `swarm`") : page.index("### `kubernetes`")]
    found = re.findall(r"^    ```yaml\n(.*?)^    ```", section, re.MULTILINE | re.DOTALL)
    found += [f"{text}\n" for text in re.findall(r"`(overrides: .*?\}\}\}\}\})`", section)]
    assert len(found) == 3
    for text in map(textwrap.dedent, found):
        job = parse_job(JOB + "volumes: [{name: data, path: /data, pvc: flights-data}]\n" + text)
        whole = render(job, "swarm").documents[-1].content
        for group, tree in job.overrides["swarm"].items():
            for name, change in tree.items():
                assert change.items() <= whole[group][name].items(), group


def test_one_service_has_all_tasks_of_a_role():
    roles = {"chief": Role(), "worker": Role(3), "ps": Role(2), "evaluator": Role()}
    services = stack(roles=roles)["services"]
    assert list(services) == list(roles)
    assert {name: each["deploy"]["replicas"] for name, each in services.items()} == {
        "chief": 1,
        "worker": 3,
        "ps": 2,
        "evaluator": 1,
    }
    assert services["ps"]["hostname"] == "ps-{{.Task.Slot}}"
    # Swarm publishes the name of a task with a check only once it is healthy.
    assert all(each["healthcheck"] == {"disable": True} for each in services.values())
    # Every name that a task hears of is the host name of one.
    hosts = {stack_text(s["hostname"], i + 1) for s in services.values() for i in range(3)}
    known = json.loads(services["worker"]["environment"]["GRIDFLOW_CLUSTER"])
    assert {a.partition(":")[0] for each in known.values() for a in each} <= hosts


def test_a_slot_is_an_index_that_is_counted_from_one():
    cluster = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_CLUSTER": '{"worker": ["worker-1:1", "b:1"]}'}
    assert str(identify({**cluster, "GRIDFLOW_SLOT": "2"})) == "worker:1"
    for text in ("0", "one", "{{.Task.Slot}}"):
        with pytest.raises(InvalidArgument, match="GRIDFLOW_SLOT must be a number of at least 1"):
            identify({**cluster, "GRIDFLOW_SLOT": text})


def test_tasks_are_placed_by_what_is_reserved_and_by_labels():
    wanted = Resources(cpu="500m", memory="1Gi", gpu=2)
    deploy = worker(roles={"worker": Role(2, resources=wanted)}, node_selector={"disk": "ssd"})[
        "deploy"
    ]
    amounts = {"cpus": "0.5", "memory": str(1 << 30)}
    gpus = [{"discrete_resource_spec": {"kind": "NVIDIA-GPU", "value": 2}}]
    assert deploy["resources"] == {
        "limits": amounts,
        "reservations": {**amounts, "generic_resources": gpus},
    }
    assert deploy["placement"] == {"constraints": ["node.labels.disk==ssd"]}
    amd = Resources(gpu=1, gpu_resource="amd.com/gpu")
    assert "AMD-GPU" in str(worker(roles={"worker": Role(resources=amd)})["deploy"])


def test_swarm_starts_no_task_again_but_what_serves():
    board = TensorBoard("gs://bucket/logs")
    services = stack(tensorboard=board, serve=Serve([Model("m", "gs://m")]))["services"]
    conditions = {n: s["deploy"]["restart_policy"]["condition"] for n, s in services.items()}
    assert conditions == {"worker": "none", "tensorboard": "any", "serving": "any"}
    # All tasks of a changed stack at once, servers one after the other.
    assert services["worker"]["deploy"]["update_config"]["parallelism"] == 0
    assert services["serving"]["deploy"]["update_config"]["order"] == "start-first"


def test_what_serves_reads_the_models_only():
    volumes = [Volume("data", "/data", pvc="data"), Volume("host", "/host", host="/srv")]
    serve = Serve([Model("m", "/data/m")], replicas=2)
    board = TensorBoard("/data/logs")
    whole = stack(volumes=volumes, serve=serve, tensorboard=board, shared_memory="1Gi")
    for name in ("serving", "tensorboard"):
        assert all(each["read_only"] for each in whole["services"][name]["volumes"])
    *own, shm = whole["services"]["worker"]["volumes"]
    assert [each.get("read_only") for each in own] == [None, None]
    assert shm == {"type": "tmpfs", "target": "/dev/shm", "tmpfs": {"size": 1 << 30}}
    assert whole["volumes"] == {"data": {"name": "data"}}
    assert whole["services"]["serving"]["ports"] == ["8501:8501", "8500:8500"]


def test_another_configuration_is_another_config_of_swarm():
    """A config can't be changed; servers are updated as theirs has another name."""

    def names(path):
        documents = render(flights(serve=Serve([Model("m", path)])), "swarm").documents
        assert [d.name for d in documents] == ["models.config", "stack.yaml"]
        assert path in documents[0].text()
        return documents[-1].content["configs"]["models.config"]

    first, second = names("gs://a"), names("gs://b")
    assert first["file"] == second["file"] == "./models.config"
    assert first["name"].startswith("flights_models-")
    assert first["name"] != second["name"]
    assert names("gs://a") == first


def test_models_that_the_servers_cannot_read_are_refused():
    with pytest.raises(JobError, match="kserve"):
        render(flights(serve=Serve([Model("m", "s3://m")])), "swarm")


def test_an_override_leaves_the_files_beside_the_stack_alone():
    tree = {
        "services": {"worker": {"read_only": True}},
        "networks": {"default": {"internal": True}},
    }
    job = flights(serve=Serve([Model("m", "gs://m")]), overrides={"swarm": tree})
    config, whole = render(job, "swarm").documents
    assert config.text().startswith("model_config_list")
    assert whole.content["services"]["worker"]["read_only"] is True
    assert whole.content["networks"] == {"default": {"driver": "overlay", "internal": True}}


def test_a_task_reads_its_secrets_from_files(tmp_path):
    """As Swarm mounts them below /run/secrets; a secret that isn't there starts nothing."""
    keys = S3Credentials("s3", access_key="id", secret_key="key")
    job = flights(
        command=["sh", "-c", 'echo "$API_TOKEN" "$AWS_SECRET_ACCESS_KEY"'],
        args=[],
        roles={"worker": Role()},
        secrets=Secrets(env={"API_TOKEN": SecretKey("api", "token")}),
        credentials=Credentials(s3=keys),
    )
    ((_, _, _, words),) = processes(job, "swarm")
    assert words[:2] == ["sh", "-c"]
    place = words.index("gridflow")
    start = [w.replace("/run/secrets", str(tmp_path)) for w in words[:place]]
    program = words[words.index("--") + 1 :]
    values = {"api.token": "two words $HOME `id`\n", "s3.id": "me", "s3.key": "hunter2"}
    for name, value in values.items():
        (tmp_path / name).write_text(value)

    def run():
        return subprocess.run([*start, *program], capture_output=True, text=True, check=False)

    assert run().stdout == "two words $HOME `id` hunter2\n"
    (tmp_path / "s3.key").unlink()
    done = run()
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "s3.key" in done.stderr


def test_a_job_runs_to_its_end(engine, job, printed):
    code, out, err = printed("run", "-t", "swarm", job)
    assert code == 0, out + err
    for index in range(2):
        lines = [line for line in out.splitlines() if f"flights_worker.{index + 1}@node1" in line]
        assert any('epoch 1 of {"cluster"' in line for line in lines), out
        assert any(
            f'"task":{{"type":"worker","index":{index}}}' in line.replace(" ", "") for line in lines
        )
        assert any("a warning" in line for line in lines), out
        assert f"flights_worker.{index + 1}: complete on node1" in err
    status = json.loads(printed("status", "-t", "swarm", job, "--json")[1])
    assert status == [
        {"task": f"flights_worker.{slot}", "state": "complete", "detail": "node1"}
        for slot in (1, 2)
    ]
    code, out, err = printed("logs", "-t", "swarm", job)
    assert code == 0, err
    assert out.count("epoch 1 of") == 2
    assert (err + out).count("a warning") == 2
    assert printed("cancel", "-t", "swarm", job)[0] == 0
    assert not engine.services | engine.networks
    assert not engine.tasks
    code, _, err = printed("status", "-t", "swarm", job)
    assert code == Exit.OTHER
    assert "no job 'flights' on the target swarm" in err


@pytest.mark.slow
def test_a_job_that_is_there_is_replaced_only_if_asked(engine, job, printed):
    assert printed("run", "-t", "swarm", job)[0] == 0
    code, out, err = printed("run", "-t", "swarm", job)
    assert (code, out) == (Exit.EXISTS, "")
    assert "flights_worker.1 complete, flights_worker.2 complete), so nothing was started" in err
    before = set(engine.services)
    code, out, err = printed("run", "-t", "swarm", job, "--replace")
    assert code == 0, err
    assert not before & set(engine.services)
    assert out.count("epoch 1 of") == 2


def test_the_code_of_the_task_that_failed_is_the_jobs(engine, job, printed):
    roles = (
        "--set",
        "roles={chief: {command: [sh, -c, 'exit 3']}, worker: {replicas: 2}}",
        "--set",
        "restart_policy=never",
    )
    code, out, err = printed(
        "run", "-t", "swarm", job, *roles, *command("exec sleep 300"), "--json"
    )
    assert code == Exit.PROGRAM, err
    assert "flights_chief.1 failed with exit code 3" in err
    assert "flights_worker.2 was stopped because another task failed, with exit code 113" in err
    assert json.loads(out)[0] == {
        "task": "flights_chief.1",
        "state": "failed",
        "detail": "node1 task: non-zero exit (3)",
    }


@pytest.mark.slow
def test_restarts_are_those_of_the_launcher_and_keep_their_slot(engine, job, printed, tmp_path):
    text = f"mkdir {tmp_path}/$GRIDFLOW_SLOT 2>/dev/null && exit 1; echo second try"
    code, out, err = printed("run", "-t", "swarm", job, *command(text))
    assert code == 0, err
    assert out.count("second try") == 2
    assert len(engine.tasks) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == ["1", "2"]


@pytest.mark.slow
def test_what_stands_beside_the_training_goes_on(engine, job, printed):
    changes = (
        *("--set", "tensorboard={log_dir: 'gs://bucket/logs'}"),
        *("--set", "serve={models: [{name: m, path: 'gs://m'}]}"),
    )
    code, _, err = printed("run", "-t", "swarm", job, *changes)
    assert code == 0, err
    wait_for(lambda: engine.task("flights_serving.1").lines, "a word of the server")
    status = json.loads(printed("status", "-t", "swarm", job, *changes, "--json")[1])
    states = {each["task"]: each["state"] for each in status}
    assert states["flights_tensorboard.1"] == states["flights_serving.1"] == "running"
    (config,) = engine.configs.values()
    assert config["Spec"]["Name"].startswith("flights_models-")
    assert "--model_config_file" in printed("logs", "-t", "swarm", job, *changes)[1]
    assert printed("cancel", "-t", "swarm", job, *changes)[0] == 0
    wait_for(lambda: not engine.tasks, "the end of the tasks", seen=lambda: engine.tasks)
    assert not engine.configs


@pytest.mark.slow
def test_a_secret_of_the_swarm_is_a_variable(engine, job, printed):
    changes = (
        *("--set", "secrets.env={API_TOKEN: {secret: api, key: token}}"),
        *command('echo "${#API_TOKEN} letters"'),
    )
    code, _, err = printed("run", "-t", "swarm", job, *changes)
    assert code == Exit.OTHER
    assert "secret not found: api.token" in err
    # What was made before the error is gone.
    assert not engine.networks
    engine.add_secret("api.token", "hunter2")
    code, out, err = printed("run", "-t", "swarm", job, *changes)
    assert code == 0, err
    assert out.count("7 letters") == 2
    assert "hunter2" not in out + err


@pytest.mark.slow
def test_a_text_like_a_placeholder_reaches_the_program(engine, job, printed):
    changes = ("--set", "env={TEXT: '{{.Node.ID}} $HOME'}", *command('echo "$TEXT"'))
    code, out, err = printed("run", "-t", "swarm", job, *changes)
    assert code == 0, err
    assert out.count("{{.Node.ID}} $HOME") == 2


@pytest.mark.slow
def test_a_task_that_finds_no_node_does_not_hold_the_end_up(engine, job, printed):
    reason = "no suitable node (insufficient resources on 1 node)"
    engine.unplaced["flights_worker", 2] = reason
    changes = ("--set", "restart_policy=never", "--set", "start_timeout=2")
    words = (*changes, *command("exit 4"))
    code, _, err = printed("run", "-t", "swarm", job, *words)
    assert code == Exit.PROGRAM, err
    assert f"flights_worker.2 was never placed: {reason}" in err


@pytest.mark.slow
def test_a_stack_of_which_no_task_finds_a_node_ends_with_the_reason(engine, job, printed):
    reason = "no suitable node (insufficient resources on 1 node)"
    for slot in (1, 2):
        engine.unplaced["flights_worker", slot] = reason
    code, _, err = printed("run", "-t", "swarm", job, "--set", "start_timeout=1")
    assert code == Exit.TRY_AGAIN, err
    assert "nothing of flights has started within its start_timeout (1 s)" in err
    assert f"  flights_worker.2: pending: {reason}" in err


@pytest.mark.slow
def test_a_task_whose_node_is_down_is_lost(engine, job, printed, monkeypatch):
    """Its state stays what was heard last, so no end of it is waited for."""
    monkeypatch.setattr(swarm, "_LOST", 0.5)
    words = ("--set", "roles.worker.replicas=1", *command("exec sleep 300"))

    def play():
        wait_for(lambda: (task := engine.task("flights_worker.1")) and task.lines, "its first word")
        engine.lose("flights_worker.1")

    thread = threading.Thread(target=play)
    thread.start()
    code, _, err = printed("run", "-t", "swarm", job, *words)
    thread.join()
    assert code == Exit.LOST, err
    assert "flights_worker.1 should have ended 0.5 s ago; its node doesn't respond" in err


@pytest.mark.slow
def test_a_stack_that_somebody_removes_has_not_succeeded(engine, job, printed):
    def play():
        wait_for(lambda: (task := engine.task("flights_worker.1")) and task.lines, "its first word")
        subprocess.run(["docker", "stack", "rm", "flights"], check=True, capture_output=True)

    thread = threading.Thread(target=play)
    thread.start()
    code, _, err = printed("run", "-t", "swarm", job, *command("echo here; exec sleep 300"))
    thread.join()
    assert code == Exit.OTHER
    assert "flights was removed before its result was known" in err


@pytest.mark.slow
def test_followed_logs_end_with_the_tasks(engine, job, printed, tmp_path):
    text = f"echo begin; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo end"
    assert printed("run", "-t", "swarm", job, "--detach", *command(text))[:2] == (0, "")
    timer = threading.Timer(1.0, (tmp_path / "go").touch)
    timer.start()
    code, out, err = printed("logs", "-t", "swarm", job, "--follow")
    timer.join()
    assert code == 0, err
    assert (out.count("begin"), out.count("end")) == (2, 2)


@pytest.mark.slow
def test_all_lines_of_a_long_output_are_shown_once(engine, job, printed):
    code, out, err = printed("run", "-t", "swarm", job, *command("seq 1 3000"))
    assert code == 0, err
    for slot in (1, 2):
        mine = [line for line in out.splitlines() if f"flights_worker.{slot}@" in line]
        said = [line.rpartition("| ")[2] for line in mine if "gridflow launch" not in line]
        assert said == [str(i) for i in range(1, 3001)]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (
            "is_manager",
            False,
            "isn't a manager of a swarm (its state is 'inactive'): run 'docker swarm",
        ),
        ("history", 0, "docker swarm update --task-history-limit=5"),
        ("version", "19.03.15", "tasks can't resolve each other's host names: node1 (19.03"),
    ],
)
def test_a_swarm_that_could_not_run_the_job_is_refused(engine, job, printed, field, value, reason):
    setattr(engine, field, value)
    code, _, err = printed("run", "-t", "swarm", job)
    assert code == Exit.OTHER
    assert reason in err
    assert not engine.networks


def test_gpus_need_an_engine_that_keeps_tasks_with_them(engine, job, printed):
    """The constraint enforcer of older ones rejects them: moby/moby, issue 44378."""
    engine.version = "20.10.24"
    gpus = ("--set", "roles.worker.resources={gpu: 1}")
    code, _, err = printed("run", "-t", "swarm", job, *gpus)
    assert code == Exit.OTHER
    assert "before 24.0, Swarm rejects tasks with GPUs soon after their start: node1" in err
    assert not engine.networks


@pytest.mark.slow  # TensorFlow, twice
def test_training_on_the_stand_in_is_training_as_on_local(engine, printed, tmp_path, job):
    program = Path(__file__).parent / "programs" / "train.py"
    results = {}
    for target in ("swarm", "local"):
        folder = tmp_path / target
        folder.mkdir()
        words = json.dumps([sys.executable, str(program), str(folder)])
        code, out, err = printed("run", "-t", target, job, "--set", f"command={words}")
        assert code == 0, out + err
        results[target] = [json.loads((folder / f"worker-{i}.json").read_text()) for i in range(2)]
    assert results["swarm"] == results["local"]
    assert results["swarm"][0]["workers"] == 2
