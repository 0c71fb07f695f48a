"""The command line, as users call it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "manifests"))
from standin import Kubernetes, MarathonServer, configured, looking_often, put_docker_into, serving

from gridflow._spec.exits import Exit
from gridflow.deploy import TARGETS
from gridflow.deploy.targets.compose import ComposeDriver
from gridflow.deploy.targets.marathon import MarathonDriver
from suite.disk import files_of_at_most

JOB = """\
name: flights
image: registry.example/flights:1
command: [python, train.py]
roles: {worker: {replicas: 2}}
"""


def test_targets_lists_them_all(printed):
    assert [line.split()[0] for line in printed("targets")[1].splitlines()] == list(TARGETS)
    assert list(json.loads(printed("targets", "--json")[1])) == list(TARGETS)


def test_init_writes_a_job_that_renders_and_never_overwrites(printed, tmp_path):
    path = str(tmp_path / "new.yaml")
    assert printed("init", path)[0] == 0
    assert printed("render", "-t", "kubernetes", path)[0] == 0
    code, _, err = printed("init", path)
    assert code == Exit.USAGE
    assert "File exists" in err


def test_render_prints_nothing_but_documents(printed, job):
    code, out, err = printed("render", "-t", "kubernetes", job)
    assert (code, err) == (0, "")
    assert [d["kind"] for d in yaml.safe_load_all(out)] == ["Service", "Job"]


def test_set_changes_fields_of_every_type(printed, job):
    changes = ["roles.worker.replicas=3", "args=[--epochs, 007]", 'labels."a.b/c"=yes', "port=3000"]
    words = [word for change in changes for word in ("--set", change)]
    _, out, _ = printed("render", "-t", "kubernetes", job, *words)
    worker = list(yaml.safe_load_all(out))[1]
    assert worker["spec"]["completions"] == 3
    assert worker["metadata"]["labels"]["a.b/c"] == "yes"
    (box,) = worker["spec"]["template"]["spec"]["containers"]
    assert box["args"] == ["--", "python", "train.py", "--epochs", "007"]
    assert box["ports"][0]["containerPort"] == 3000


def test_a_bad_set_is_refused_with_its_own_text(printed, job):
    code, out, err = printed("render", "-t", "kubernetes", job, "--set", "roles.worker.replicas=x")
    assert (code, out) == (Exit.USAGE, "")
    assert "--set roles.worker.replicas=x: roles.worker.replicas" in err


def test_output_writes_a_file_for_each_document(printed, job, tmp_path):
    code, out, _ = printed("render", "-t", "docker", job, "-o", str(tmp_path / "out"))
    assert (code, out) == (0, "")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        ".dockerignore",
        "Dockerfile",
        "run.sh",
    ]


def test_a_full_disk_replaces_none_of_the_documents(printed, job, tmp_path):
    out = tmp_path / "out"
    printed("render", "-t", "docker", job, "-o", str(out))
    for path in out.iterdir():
        path.write_text("mine\n")
    with files_of_at_most(1000):  # the last document has more bytes
        code, _, err = printed("render", "-t", "docker", job, "-o", str(out))
    assert (code, "can't be written" in err) == (Exit.USAGE, True)
    assert {path.read_text() for path in out.iterdir()} == {"mine\n"}
    assert len(list(out.iterdir())) == 3
    with files_of_at_most(1000):
        assert printed("init", str(tmp_path / "new.yaml"))[0] == Exit.USAGE
    assert not (tmp_path / "new.yaml").exists()


def test_lossy_warns_on_standard_error_only(printed, job):
    words = ("render", "-t", "compose", job, "--set", "time_to_live=1h")
    assert printed(*words)[0] == Exit.USAGE
    code, out, err = printed(*words, "--lossy")
    assert code == 0
    assert (
        "warning: --set time_to_live=1h: time_to_live: the target compose can't express it" in err
    )
    assert "warning" not in out


def test_an_unknown_target_gets_did_you_mean(printed, job):
    code, _, err = printed("render", "-t", "kubernets", job)
    assert code == Exit.USAGE
    assert "Did you mean 'kubernetes'?" in err


def test_explain_names_field_and_reason(printed):
    _, out, _ = printed("explain", "-t", "marathon")
    assert "volumes.pvc (persistent volume claims): Mesos has no claims" in out
    rows = json.loads(printed("explain", "-t", "marathon", "--json")[1])
    assert {row["how"] for row in rows} == {"yes", "no", "other"}


def test_validate_takes_what_render_makes(printed, job, tmp_path):
    _, out, _ = printed("render", "-t", "tfjob", job)
    path = tmp_path / "tfjob.yaml"
    path.write_text(out)
    assert printed("validate", "-t", "tfjob", str(path))[0] == 0


def test_a_reader_that_leaves_early_is_no_error(job):
    words = f"{sys.executable} -m gridflow.cli render -t kubernetes {job} | head -c 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("a", "")


def test_a_template_of_the_users_own_is_rendered(printed, tmp_path):
    path = tmp_path / "mine.yaml.jinja"
    path.write_text("args: {{ args | tojson }}\nname: {{ name }}\n")
    words = ["--set", "name=a", "--set", 'args=["it\'s <b>", yes]']
    assert printed("template", "render", str(path), *words)[1] == (
        'args: ["it\'s <b>", "yes"]\nname: a\n'
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ missing }}", "mine:1: 'missing' is undefined. Set it with --set."),
        ("\n{{ missing | tojson }}", "mine:2: 'missing' is undefined. Set it with --set."),
        ("{{ [missing.inner] | tojson }}", "'missing' is undefined"),
        ("{% if %}", "mine:1: "),
        ("{{ 1 // 0 }}", "mine:1: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "mine:1: TypeError"),
        ("{{ [1] | map('string') | tojson }}", "tojson takes strings"),
        ("{{ 1 | no_filter }}", "No filter named 'no_filter'"),
        ("{% include 'other' %}", "no such template: 'other'."),
        ("{% include 'mine' %}", "RecursionError"),
        ("\udcff", "can't decode"),
    ],
)
def test_a_template_with_a_mistake_prints_nothing(printed, tmp_path, text, reason):
    path = tmp_path / "mine"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    code, out, err = printed("template", "render", str(path))
    assert (code, out) == (Exit.USAGE, "")
    assert reason in err


def on_a_terminal(*words, **environ):
    """Call gridflow with a terminal as its output; return what the terminal gets."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "gridflow.cli", *words], env=env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 4096):
            text += piece
    except OSError:  # Linux reports the end of a terminal so
        process.wait()
    finally:
        os.close(ours)
    return text.decode()


def test_a_terminal_gets_colours_and_a_pipe_gets_none(printed):
    words = ("explain", "-t", "marathon")
    assert "\033[31mcan't express\033[0m" in on_a_terminal(*words)
    assert "\033" not in on_a_terminal(*words, NO_COLOR="1")
    assert "\033" not in printed(*words)[1]


def test_errors_are_red_on_a_terminal(printed):
    words = ("render", "-t", "kubernetes", "no-such.yaml")
    assert "\033[31mgridflow render:\033[0m" in on_a_terminal(*words)
    assert "\033" not in printed(*words)[2]


def test_run_of_a_script_target_says_what_to_do(printed, job):
    code, _, err = printed("run", "-t", "docker", job)
    assert code == Exit.USAGE
    assert f"gridflow render -t docker {job} | sh" in err


@pytest.mark.parametrize(
    ("target", "tool"), [("compose", "docker"), ("swarm", "docker"), ("kubernetes", "kubectl")]
)
def test_a_tool_that_is_missing_is_named(printed, job, monkeypatch, tmp_path, target, tool):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = printed("run", "-t", target, job)
    assert code == Exit.ENVIRONMENT
    assert f"{tool} isn't installed" in err


def test_compose_without_docker_fails_with_a_reason(printed, job):
    """Where Docker and its daemon are there, this would start containers, so it is left out."""
    if shutil.which("docker") is None:
        pytest.skip("docker isn't installed")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        pytest.skip("a Docker daemon runs here")
    code, _, err = printed("run", "-t", "compose", job)
    assert code == Exit.ENVIRONMENT
    assert "docker compose" in err


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A stand-in for docker with its Compose plugin; the value is the file with its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = put_docker_into(folder)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    looking_often(ComposeDriver, monkeypatch)
    return calls


def test_compose_starts_shows_and_removes_a_job(printed, job, docker):
    words = ("--set", "tensorboard={log_dir: 'gs://bucket/logs'}")
    code, out, err = printed("run", "-t", "compose", job, *words)
    assert code == 0, err
    assert out.splitlines() == ["worker-0-1  | epoch 1 done", "worker-1-1  | epoch 1 done"]
    status = json.loads(printed("status", "-t", "compose", job, *words, "--json")[1])
    assert status == [
        {"task": "worker-0", "state": "exited", "detail": "exit code 0"},
        {"task": "worker-1", "state": "exited", "detail": "exit code 0"},
        {"task": "tensorboard", "state": "running", "detail": ""},
    ]
    assert "tensorboard  running" in printed("status", "-t", "compose", job, *words)[1]
    assert "epoch 1 done" in printed("logs", "-t", "compose", job, *words)[1]
    code, _, err = printed("run", "-t", "compose", job, *words)
    assert (code, "nothing was started" in err) == (Exit.EXISTS, True)
    assert printed("run", "-t", "compose", job, *words, "--replace")[0] == 0
    assert printed("cancel", "-t", "compose", job, *words)[0] == 0
    assert printed("status", "-t", "compose", job, *words)[1] == ""
    assert "compose --project-name=flights --file=- down" in docker.read_text()


def test_a_failed_task_of_compose_is_named_with_its_code(printed, job, docker):
    words = ("run", "-t", "compose", job, "--set", "env={ENDS_WITH: '3'}", "--json")
    code, out, err = printed(*words)
    assert code == Exit.PROGRAM
    assert "worker-0 failed with exit code 3" in err
    assert [task["state"] for task in json.loads(out)] == ["exited", "exited"]
    assert docker.exists()


def test_what_compose_never_starts_ends_the_run(printed, job, docker):
    (docker.parent / "stuck").touch()
    code, _, err = printed("run", "-t", "compose", job, "--set", "start_timeout=1")
    assert code == Exit.TRY_AGAIN
    assert "worker-0: created" in err


def test_a_project_of_compose_that_somebody_removes_has_not_succeeded(printed, job, docker):
    (docker.parent / "removed").touch()
    code, _, err = printed("run", "-t", "compose", job)
    assert code == Exit.OTHER
    assert "flights was removed before its result was known" in err


@pytest.fixture
def kubernetes(tmp_path, monkeypatch):
    """A stand-in API server for the real kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl isn't installed")
    with serving(Kubernetes()) as server:
        configured(server, tmp_path, monkeypatch)
        yield server
        server.closing.set()


def end_job(server, condition):
    """Play controller and kubelet once the Job is there."""

    def play():
        while ("batch/v1", "Job", "flights-worker") not in server.objects:
            if server.closing.wait(0.05):
                return
        server.add_pod("flights-worker-0-x", "flights", "Succeeded", "epoch 1 done\n")
        status = {"conditions": [{"type": condition, "status": "True"}]}
        server.set_status("Job", "flights-worker", status)

    thread = threading.Thread(target=play)
    thread.start()
    return thread


@pytest.mark.parametrize(("condition", "expected"), [("Complete", 0), ("Failed", 70)])
def test_run_on_kubernetes_applies_follows_and_ends(printed, job, kubernetes, condition, expected):
    thread = end_job(kubernetes, condition)
    code, out, err = printed("run", "-t", "kubernetes", job)
    kubernetes.closing.set()
    thread.join()
    assert code == expected, err
    assert "epoch 1 done" in out
    assert ("v1", "Service", "flights") in kubernetes.objects
    assert "flights-worker-0-x: Succeeded" in err
    status = json.loads(printed("status", "-t", "kubernetes", job, "--json")[1])
    assert status == [{"task": "flights-worker-0-x", "state": "Succeeded", "detail": ""}]
    assert "epoch 1 done" in printed("logs", "-t", "kubernetes", job)[1]
    assert printed("cancel", "-t", "kubernetes", job)[0] == 0
    assert not [key for key in kubernetes.objects if key[1] != "Pod"]


def test_json_has_standard_output_for_itself(printed, job, kubernetes):
    thread = end_job(kubernetes, "Complete")
    code, out, err = printed("run", "-t", "kubernetes", job, "--json")
    kubernetes.closing.set()
    thread.join()
    assert code == 0, err
    assert [task["state"] for task in json.loads(out)] == ["Succeeded"]
    assert "epoch 1 done" in err


def test_detach_starts_a_job_and_returns(printed, job, kubernetes):
    assert printed("run", "-t", "kubernetes", job, "--detach")[:2] == (0, "")
    assert ("batch/v1", "Job", "flights-worker") in kubernetes.objects


def test_marathon_is_asked_over_http(printed, job, monkeypatch):
    with serving(MarathonServer()) as server:
        monkeypatch.setenv("MARATHON_URL", server.url)
        assert printed("run", "-t", "marathon", job)[0] == 0
        assert list(server.objects) == ["/v2/groups/flights"]
        status = json.loads(printed("status", "-t", "marathon", job, "--json")[1])
        assert [task["state"] for task in status] == ["running", "running"]
        assert printed("cancel", "-t", "marathon", job)[0] == 0
        code, _, err = printed("status", "-t", "marathon", job)
        assert code == Exit.OTHER
        assert "no job 'flights' on the target marathon" in err


@pytest.mark.parametrize(
    ("waits", "reason"),
    [
        ({"app": {"lastTaskFailure": {"message": "no such image: a:1"}}}, "no such image: a:1"),
        (
            {
                "queue": [
                    {
                        "app": {"id": "/flights/worker-0"},
                        "processedOffersSummary": {
                            "rejectSummaryLastOffers": [
                                {"reason": "InsufficientCpus", "declined": 2, "processed": 2},
                                {"reason": "InsufficientGpus", "declined": 0, "processed": 2},
                            ]
                        },
                    }
                ]
            },
            "no host fits: InsufficientCpus (2 offers)",
        ),
    ],
)
def test_what_marathon_never_starts_ends_the_run(printed, job, monkeypatch, waits, reason):
    looking_often(MarathonDriver, monkeypatch)
    with serving(MarathonServer()) as server:
        server.waits = waits
        monkeypatch.setenv("MARATHON_URL", server.url)
        code, _, err = printed("run", "-t", "marathon", job, "--set", "start_timeout=1")
    assert code == Exit.TRY_AGAIN
    assert "nothing of flights has started within its start_timeout (1 s)" in err
    assert f"/flights/worker-0: waiting: {reason}" in err


def test_marathon_without_an_address_says_which_variable(printed, job, monkeypatch):
    monkeypatch.delenv("MARATHON_URL", raising=False)
    assert "MARATHON_URL" in printed("run", "-t", "marathon", job)[2]


@pytest.mark.slow
def test_run_on_this_machine_starts_every_role(printed, job):
    """The servers end with the workers, and each line says whose it is: without TensorFlow."""
    command = "command=[sh, -c, 'echo I am $GRIDFLOW_ROLE:$GRIDFLOW_INDEX; echo $TF_CONFIG']"
    server = "[sh, -c, 'echo serving until the end; sleep 300']"
    roles = f"roles={{worker: {{replicas: 2}}, ps: {{command: {server}, args: []}}}}"
    changes = ("--set", command, "--set", roles)
    code, out, err = printed("run", "-t", "local", job, *changes, "--json")
    assert code == 0, out + err
    record = json.loads(out)
    assert (record["job"], record["succeeded"], record["attempts"]) == ("flights", True, 1)
    for task in ("worker:0", "worker:1"):
        assert f"I am {task}" in err
    assert "[ps:0]     serving until the end" in err


@pytest.mark.slow
def test_a_failure_on_this_machine_names_the_task_and_its_code(printed, job):
    changes = ("--set", "command=[sh, -c, 'exit 3']", "--set", "restart_policy=never")
    code, out, err = printed("run", "-t", "local", job, *changes, "--json")
    assert code == Exit.PROGRAM
    assert "ended with exit code 3" in err
    record = json.loads(out)
    assert not record["succeeded"]
    assert "worker:0" in record["error"]


@pytest.mark.slow
def test_a_run_with_an_id_that_has_succeeded_is_not_run_again(printed, job, tmp_path):
    changes = ["command=[sh, -c, 'echo one run']", "roles.worker.replicas=1"]
    words = ["run", "-t", "local", job, *(w for c in changes for w in ("--set", c))]
    words += ["--run-id", "monday", "--dir", str(tmp_path / "runs")]
    code, out, _ = printed(*words)
    assert (code, out.count("] one run")) == (0, 1)
    code, out, _ = printed(*words)
    assert (code, out.count("] one run")) == (0, 0)
    assert "run 'monday' has already succeeded" in out
    code, _, err = printed("run", "-t", "kubernetes", job, "--run-id", "monday")
    assert (code, "--run-id and --dir only work with the targets" in err) == (Exit.USAGE, True)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "runs"), [("exit 143", 2), ("kill -KILL $$", 2), ("exit 3", 1)])
def test_retryable_exits_alone_are_tried_again(printed, job, script, runs):
    changes = [f"command=[sh, -c, 'echo one run; {script}']", "roles.worker.replicas=1"]
    changes += ["restart_policy=exit-code", "restart_limit=1"]
    code, out, _ = printed("run", "-t", "local", job, *(w for c in changes for w in ("--set", c)))
    assert code == (Exit.KILLED if runs == 2 else Exit.PROGRAM)
    assert out.count("] one run") == runs


@pytest.mark.slow
def test_a_job_on_this_machine_keeps_its_deadline(printed, job):
    changes = ("--set", "command=[sleep, '300']", "--set", "deadline=3")
    code, _, err = printed("run", "-t", "local", job, *changes)
    assert code == Exit.OVERDUE
    assert "did not finish within 3 seconds (Deadlines.run)" in err


@pytest.mark.slow
def test_a_parameter_server_on_this_machine_is_a_standard_server(printed, job):
    """A real TensorFlow server: the worker's program runs an operation there."""
    program = Path(__file__).parent / "manifests" / "programs" / "use_server.py"
    changes = ["roles={worker: {}, ps: {}}", f"command=[{sys.executable}, {program}]"]
    code, out, err = printed("run", "-t", "local", job, *(w for c in changes for w in ("--set", c)))
    assert code == 0, out + err
    assert "answer 42 /job:ps" in out


@pytest.mark.slow
def test_ctrl_c_ends_every_process_without_a_traceback(job):
    command = "command=[sh, -c, 'echo process $$ started; sleep 300']"
    words = [sys.executable, "-m", "gridflow.cli", "run", "-t", "local", job, "--set", command]
    # As a shell starts what is to run in its background.
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *words]
    started = []
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            if "process" in line:
                started.append(int(line.split()[2]))
            if len(started) == 2:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


@pytest.mark.slow
def test_run_on_spark_starts_every_role(job):
    """Real Spark on this machine, in a process of its own as for a user."""
    changes = ["roles={chief: {}, worker: {}}", 'spark={conf: {spark.master: "local[2]"}}']
    changes.append("command=[sh, -c, 'echo I am $GRIDFLOW_ROLE:$GRIDFLOW_INDEX']")
    words = ["run", "-t", "spark", job, "--json", *(w for c in changes for w in ("--set", c))]
    done = subprocess.run(
        [sys.executable, "-m", "gridflow.cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["succeeded"]
    for task in ("chief:0", "worker:0"):
        assert f"I am {task}" in done.stderr


@pytest.mark.slow
def test_the_script_for_spark_submit_runs_the_job(job, tmp_path):
    """The rendered script itself, with the real spark-submit and a master on this machine."""
    serves = tmp_path / "serves"  # servers end with the job: it mustn't end before they begin
    own = (
        f"until [ -e {serves} ]; do sleep 0.1; done; echo I am $GRIDFLOW_ROLE:$GRIDFLOW_INDEX $OWN"
    )
    command = f"command=[sh, -c, '{own}']"
    server = f"{{command: [sh, -c, 'echo I am serving; touch {serves}; sleep 300'], args: []}}"
    roles = f"roles={{worker: {{env: {{OWN: variable}}}}, ps: {server}}}"
    words = ["render", "-t", "spark-submit-standalone", job, "--set", command, "--set", roles]
    script = tmp_path / "submit.sh"
    with script.open("w") as file:
        subprocess.run([sys.executable, "-m", "gridflow.cli", *words], stdout=file, check=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(script)],
        env={**os.environ, "PATH": path, "SPARK_MASTER": "local[2]"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "I am worker:0 variable" in done.stdout
    assert "I am serving" in done.stdout


@pytest.mark.parametrize("target", ["local", "spark"])
def test_a_job_inside_this_process_is_shown_by_run_alone(printed, job, target):
    for words in (("status",), ("logs",), ("cancel",)):
        code, _, err = printed(*words, "-t", target, job)
        assert code == Exit.USAGE
        assert "runs inside 'gridflow run'" in err


def test_spark_is_the_name_in_what_spark_cannot_express(printed, job):
    code, _, err = printed("run", "-t", "spark", job, "--set", "time_to_live=1h")
    assert code == Exit.USAGE
    assert "time_to_live: the target spark can't express it" in err


def test_importing_the_command_brings_neither_tensorflow_nor_spark():
    code = (
        "import sys, gridflow.cli, gridflow.deploy, gridflow.deploy.commands; "
        "print([m for m in ('tensorflow', 'keras', 'pyspark', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"


#: Plays spark-submit in cluster mode on Kubernetes, whose own exit code says nothing of the driver.
SPARK_SUBMIT = """\
#!/bin/sh
echo "$@" >>"$(dirname "$0")/calls"
case "$*" in *--status*) printf 'Application status (driver): \\n\\t {lines}\\n' >&2 ;; esac
"""


@pytest.mark.parametrize(
    ("phase", "ended", "expected"),
    [
        ("Succeeded", "exit code: 0", 0),
        ("Failed", "exit code: 3", 3),
        ("Failed", "exit code: 197", 197),  # worth another try, see outcomes.md
        ("Failed", "exit code: 0", 1),
        ("Failed", "container state: waiting", 1),  # it never ran
        ("Running", "container state: running", 1),
    ],
)
def test_the_script_for_spark_on_kubernetes_ends_as_the_driver_did(
    printed, job, tmp_path, phase, ended, expected
):
    """Spark's words: KubernetesUtils, formatPodState and containerStatusDescription."""
    folder = tmp_path / "bin"
    folder.mkdir()
    lines = f"phase: {phase}\\n\\t container status:\\n\\t\\t {ended}"
    (folder / "spark-submit").write_text(SPARK_SUBMIT.format(lines=lines))
    (folder / "spark-submit").chmod(0o755)
    text = printed("render", "-t", "spark-submit-kubernetes", job)[1]
    done = subprocess.run(
        ["sh"],
        input=text,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "KUBERNETES_API": "https://host:6443"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected
    assert ("did not succeed" in done.stderr) == bool(expected)
    start, ask = (folder / "calls").read_text().splitlines()
    driver = ask.rpartition("default:")[2]
    assert driver.startswith("flights-driver-")
    assert f"spark.kubernetes.driver.pod.name={driver} " in start


def test_a_full_disk_under_standard_output_is_an_error_in_one_line():
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "gridflow.cli", "targets"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == Exit.OTHER
    assert done.stderr == "gridflow targets: can't write: [Errno 28] No space left on device\n"
