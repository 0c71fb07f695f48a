"""``gridflow run`` on Kubernetes tells the truth: the real kubectl, the API a stand-in."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from jobs import JOB  # noqa: F401 (the fixture `job` writes it)
from standin import Kubernetes, configured, serving

from gridflow._spec.exits import Exit
from gridflow.deploy.drivers import kubectl
from suite.waiting import wait_for

WORKER = ("batch/v1", "Job", "flights-worker")
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


def test_a_server_that_does_not_say_whether_something_is_allowed_refuses_nothing():
    asked = []

    def call(*words, text):
        asked.append(words[0])
        return '{"status": {"allowed": false}}\n{"status": {}}\n{}'

    verbs = ("get", "list", "watch")
    rights = [{"verb": verb, "group": "", "resource": "pods", "subresource": ""} for verb in verbs]
    assert kubectl.missing(call, "ours", rights) == ("pods: get",)
    assert asked == ["create"]


@pytest.fixture
def server(tmp_path, monkeypatch):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl isn't installed")
    with serving(Kubernetes()) as stand_in:
        configured(stand_in, tmp_path, monkeypatch)
        yield stand_in
        stand_in.closing.set()


@contextmanager
def playing(server, play, key=WORKER):
    """Play the controllers, once an object is there that was not there before."""

    def uid():
        return server.objects.get(key, {}).get("metadata", {}).get("uid", before)

    def wait():
        while uid() == before:
            if over.wait(0.02):
                return
        play()

    over = threading.Event()
    before = None
    before = uid()
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def complete(server, log="epoch 1 done\n", pod="flights-worker-0-x"):
    def play():
        server.add_pod(pod, "flights", "Succeeded", log)
        server.set_status("Job", "flights-worker", COMPLETE)

    return play


@pytest.mark.slow
def test_a_job_that_has_ended_is_not_taken_for_a_new_one(server, job, printed):
    with playing(server, complete(server)):
        assert printed("run", "-t", "kubernetes", job)[0] == 0
    for changes in ((), ("--set", "args=[more]")):
        code, out, err = printed("run", "-t", "kubernetes", job, *changes)
        assert (code, out) == (Exit.EXISTS, "")
        assert "job.v1.batch/flights-worker (Complete), so nothing was started" in err
        assert "--replace" in err
        assert "--set name=flights-2" in err
    with playing(server, complete(server, "the second run\n", "flights-worker-0-y")):
        code, out, err = printed("run", "-t", "kubernetes", job, "--replace")
    assert code == 0, err
    assert "the second run" in out


def test_a_controller_that_is_not_installed_is_named(server, job, printed):
    code, _, err = printed("run", "-t", "tfjob", job)
    assert code == Exit.OTHER
    assert "install the controller that the target tfjob needs (TFJob)" in err


def test_what_a_user_may_not_do_is_said_at_once_before_anything_is_made(server, job, printed):
    server.denied |= {("list", "pods"), ("get", "pods/log"), ("create", "jobs")}
    code, _, err = printed("run", "-t", "kubernetes", job)
    assert code == Exit.OTHER
    missing = "jobs.batch: create; pods: list; pods/log: get"
    assert f"you lack permissions in the namespace default: {missing}. Nothing of flights" in err
    assert not server.objects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("denied", "words"),
    [
        ({("list", "pods"), ("get", "pods/log"), ("delete", "jobs")}, ("--detach",)),
        ({("patch", "services"), ("watch", "jobs")}, ("--detach",)),
    ],
)
def test_only_what_is_needed_is_asked_for(server, job, printed, denied, words):
    server.denied |= denied
    assert printed("run", "-t", "kubernetes", job, *words)[0] == 0
    more = ("--set", "clean_up=all", "--replace")
    code, _, err = printed("run", "-t", "kubernetes", job, *more)
    assert code == Exit.OTHER
    assert all(verb in err.partition("Nothing of")[0] for verb, _ in denied)


@pytest.mark.parametrize("answer", ["403", "401"])
def test_a_permission_that_is_lost_ends_the_run_at_once(server, job, printed, answer):
    def play():
        if answer == "403":
            server.denied.add(("list", "pods"))
        else:
            server.is_stranger = True

    with playing(server, play):
        code, _, err = printed("run", "-t", "kubernetes", job)
    assert code == Exit.OTHER
    assert "retrying" not in err
    assert "the job keeps running; follow it with" in err


@pytest.mark.slow
def test_output_that_may_not_be_read_is_said_once(server, job, printed):
    def play():
        server.denied.add(("get", "pods/log"))
        complete(server)()

    with playing(server, play):
        code, out, err = printed("run", "-t", "kubernetes", job)
    assert (code, out) == (0, ""), err
    assert err.count("pods/log is forbidden") == 1


@pytest.mark.slow
def test_a_run_goes_on_where_events_may_not_be_read(server, job, printed):
    server.denied.add(("list", "events"))

    def play():
        wait_for(lambda: any("/events?" in path for _, path in server.calls), "a look at events")
        complete(server)()

    with playing(server, play):
        code, _, err = printed("run", "-t", "kubernetes", job)
    assert code == 0, err
    assert err.count("why pods can't be made or started won't be shown") == 1


@pytest.mark.slow
def test_a_job_that_is_on_its_way_out_is_waited_for(server, job, printed):
    """After 'gridflow cancel', which doesn't wait; its last pods are not the new job's."""
    printed("run", "-t", "kubernetes", job, "--detach")
    server.add_pod("flights-worker-0-old", "flights", "Running", "the old job\n")
    for key in (WORKER, ("v1", "Pod", "flights-worker-0-old")):
        server.objects[key]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with playing(server, complete(server)):
        code, out, err = printed("run", "-t", "kubernetes", job)
    assert code == 0, err
    assert "epoch 1 done" in out
    assert "the old job" not in out


@pytest.mark.parametrize(
    "change", [pytest.param("clean_up=all", marks=pytest.mark.slow), "time_to_live=0"]
)
def test_a_job_that_is_removed_at_its_end_has_succeeded(server, job, printed, change):
    """The TTL controller deletes it at once (pkg/controller/ttlafterfinished)."""

    def play():
        wait_for(
            lambda: any("watch=" in path for _, path in server.calls),
            "the next calls",
            seen=lambda: server.calls[-3:],
        )
        with server.lock:
            complete(server)()
            server.remove(WORKER)

    with playing(server, play):
        code, _, err = printed("run", "-t", "kubernetes", job, "--set", change)
    assert code == 0, err
    assert "flights succeeded" in err


def test_a_job_that_somebody_removes_has_not_succeeded(server, job, printed):
    with playing(server, lambda: server.remove(WORKER)):
        code, _, err = printed("run", "-t", "kubernetes", job, "--set", "clean_up=all")
    assert code == Exit.OTHER
    assert "was removed before its result was known" in err


def test_what_stands_beside_a_job_leaves_with_it(server, job, printed):
    printed("run", "-t", "kubernetes", job, "--detach", "--set", "time_to_live=1h")
    (owner,) = server.objects["v1", "Service", "flights"]["metadata"]["ownerReferences"]
    assert owner["uid"] == server.objects[WORKER]["metadata"]["uid"]
    assert (owner["kind"], owner["name"]) == ("Job", "flights-worker")


def test_a_pod_started_anew_under_its_old_name_is_heard(server, job, printed):
    """As Volcano does in RestartJob: pkg/controllers/job/job_controller_actions.go."""
    heard = threading.Event()
    pod = ("v1", "Pod", "flights-worker-0")

    def play():
        server.add_pod("flights-worker-0", "flights", "Running", "the first attempt\n")
        wait_for(
            lambda: any("/log?" in path for _, path in server.calls),
            "the next calls",
            seen=lambda: server.calls[-3:],
        )
        server.remove(pod)
        complete(server, "the second attempt\n", "flights-worker-0")()
        heard.set()

    with playing(server, play):
        code, out, err = printed("run", "-t", "kubernetes", job)
    assert heard.is_set()
    assert code == 0, err
    assert "the first attempt" in out
    assert "the second attempt" in out


def test_a_pod_says_why_it_waits_and_how_it_ended(server, job, printed):
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }
    pulling = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling "a"'}}
    ended = {"terminated": {"reason": "Error", "exitCode": 127}}
    server.add_pod("a", "flights", "Pending", "", conditions=[unscheduled])
    server.add_pod("b", "flights", "Pending", "", containerStatuses=[{"state": pulling}])
    server.add_pod("c", "flights", "Failed", "", containerStatuses=[{"state": ended}])
    found = json.loads(printed("status", "-t", "kubernetes", job, "--json")[1])
    assert [task["detail"] for task in found] == [
        "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        'ImagePullBackOff: Back-off pulling "a"',
        "Error: exit code 127",
    ]


def failed(reason, message, pod_code):
    """Play a Job that fails, its pod having ended with a code."""

    def play(server):
        ended = {"terminated": {"reason": "Error", "exitCode": pod_code}}
        boxes = [{"state": ended}]
        server.add_pod("flights-worker-0-x", "flights", "Failed", "", containerStatuses=boxes)
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        server.set_status("Job", "flights-worker", {"conditions": [condition]})

    return play


@pytest.mark.parametrize(
    ("reason", "code", "expected"),
    [
        ("DeadlineExceeded", 143, Exit.OVERDUE),  # the controller's, of a pod that came up late
        ("PodFailurePolicy", 124, Exit.OVERDUE),  # the launcher's
        pytest.param("PodFailurePolicy", 3, Exit.PROGRAM, marks=pytest.mark.slow),
    ],
)
def test_the_end_at_a_deadline_is_told_from_others(server, job, printed, reason, code, expected):
    play = failed(reason, "Job was active longer than specified deadline", code)
    with playing(server, lambda: play(server)):
        found, _, err = printed("run", "-t", "kubernetes", job)
    assert found == expected
    assert f"{reason}: Job was active longer than specified deadline" in err
    assert ("it exceeded its deadline" in err) == (expected == Exit.OVERDUE)


@pytest.mark.slow
def test_one_of_several_jobs_may_be_removed_before_the_others_end(server, job, printed):
    """Each has a time to live of its own."""
    chief = ("batch/v1", "Job", "flights-chief")

    def play():
        server.set_status("Job", "flights-chief", COMPLETE)
        looks = len(server.calls)
        wait_for(
            lambda: sum("flights-chief" in p for _, p in server.calls[looks:]) > 2,
            "the next calls",
            seen=lambda: server.calls[-3:],
        )
        server.remove(chief)
        looks = len(server.calls)
        wait_for(
            lambda: sum("flights-chief" in p for _, p in server.calls[looks:]) > 4,
            "the next calls",
            seen=lambda: server.calls[-3:],
        )
        server.set_status("Job", "flights-worker", COMPLETE)

    with playing(server, play):
        changes = ("--set", "roles.chief.replicas=1", "--set", "time_to_live=200")
        code, _, err = printed("run", "-t", "kubernetes", job, *changes)
    assert code == 0, err


@pytest.mark.slow
def test_a_server_that_is_away_for_a_while_ends_no_job(server, job, printed):
    def play():
        server.away.set()
        looks = len(server.calls)
        wait_for(
            lambda: len(server.calls) > looks + 3, "the next calls", seen=lambda: server.calls[-3:]
        )
        server.away.clear()
        complete(server)()

    with playing(server, play):
        code, out, err = printed("run", "-t", "kubernetes", job)
    assert code == 0, err
    assert "retrying for 10 minutes" in err
    assert "kubectl can reach the server again" in err
    assert "epoch 1 done" in out


@pytest.mark.slow
def test_a_server_that_stays_away_leaves_the_job_alone(server, job, printed, monkeypatch):
    monkeypatch.setattr("gridflow.deploy.drivers.kubectl._AWAY", 0.3)
    with playing(server, server.away.set):
        code, _, err = printed("run", "-t", "kubernetes", job)
    assert code == Exit.OTHER
    hint = f"gridflow logs --follow -t kubernetes {job}"
    assert f"the job keeps running; follow it with '{hint}'" in err


@pytest.mark.slow
def test_output_is_whole_though_its_stream_breaks(server, job, printed):
    """Some lines have the same time; the last one of a broken stream may be cut off."""
    lines = "".join(f"line {i}\n" for i in range(30))
    pod = ("flights-worker-0-x", "flights")

    def play():
        server.cuts += [14, 0, 19]
        server.add_pod(*pod, "Running", lines)
        wait_for(lambda: not server.cuts, "the next calls", seen=lambda: server.calls[-3:])
        key = ("v1", "Pod", pod[0])
        server.put(key, {**server.objects[key], "status": {"phase": "Succeeded"}})
        server.set_status("Job", "flights-worker", COMPLETE)

    with playing(server, play):
        code, out, err = printed("run", "-t", "kubernetes", job)
    assert code == 0, err
    said = [line.rpartition("] ")[2] for line in out.splitlines()]
    assert said == lines.splitlines()
    assert out.startswith("[pod/flights-worker-0-x/tensorflow] line 0")


@pytest.mark.slow
def test_pods_of_a_server_of_the_same_name_are_not_the_jobs(server, job, printed):
    server.add_pod("flights-worker-0-x", "flights", "Running", "mine\n")
    server.add_pod("flights-serving-x", "flights", "Running", "another's\n", "serving")
    for target, pod in (("kubernetes", "flights-worker-0-x"), ("serving", "flights-serving-x")):
        found = json.loads(printed("status", "-t", target, job, "--json")[1])
        assert [task["task"] for task in found] == [pod]
    _, out, _ = printed("logs", "-t", "kubernetes", job)
    assert "mine" in out
    assert "another's" not in out


def test_output_of_containers_cannot_move_the_cursor(server, job, printed):
    server.add_pod(
        "flights-worker-0-x", "flights", "Running", "\x1b]0;title\x07\x1b[2Jmine\x9b1A\n"
    )
    _, out, _ = printed("logs", "-t", "kubernetes", job)
    assert out.endswith("mine\n")
    assert not {"\x1b", "\x9b", "\x07"} & set(out)


@pytest.mark.slow
def test_a_job_that_is_not_there_is_no_empty_one(server, job, printed):
    for call in ("status", "logs"):
        code, out, err = printed(call, "-t", "kubernetes", job)
        assert (code, out) == (Exit.OTHER, "")
        assert "no job 'flights' on the target kubernetes" in err
    printed("run", "-t", "kubernetes", job, "--detach")
    code, out, err = printed("status", "-t", "kubernetes", job)
    assert (code, out) == (0, "")
    assert "job.v1.batch/flights-worker: not finished" in err


#: What the Job controller reports; each try has a pod of another name.
QUOTA = (
    'Error creating: pods "flights-worker-0-{}" is forbidden: failed quota: team: '
    "must specify limits.cpu for: tensorflow"
)
SOON = ("--set", "start_timeout=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "key", "refused"),
    [
        ("kubernetes", WORKER, "flights-worker"),
        ("jobset", ("jobset.x-k8s.io/v1alpha2", "JobSet", "flights"), "flights-worker-0"),
    ],
)
def test_why_pods_can_not_be_made_is_said_and_ends_the_run(
    server, job, printed, target, key, refused
):
    def play():
        for pod in ("x8z2k", "abcde"):
            server.add_event("Job", refused, "FailedCreate", QUOTA.format(pod))
        server.add_event("Job", "others-worker", "FailedCreate", "not this one's")

    with playing(server, play, key):
        code, _, err = printed("run", "-t", target, job, *SOON)
    assert code == Exit.TRY_AGAIN, err
    assert err.count(f"Job/{refused}: FailedCreate: Error creating") == 2  # at once, and at the end
    assert "must specify limits.cpu for: tensorflow (give the pods what the" in err
    assert "nothing of flights has started within its start_timeout (1 s)" in err
    assert "gridflow cancel" in err
    assert "not this one's" not in err
    _, _, err = printed("status", "-t", target, job)
    assert "must specify limits.cpu" in err


@pytest.mark.slow
def test_an_event_of_an_earlier_job_is_not_this_ones(server, job, printed):
    past = "2026-01-01T00:00:00Z"
    server.add_event("Job", "flights-worker", "FailedCreate", "no quota", last=past)
    code, _, err = printed("run", "-t", "kubernetes", job, *SOON)
    assert code == Exit.TRY_AGAIN
    assert "no quota" not in err


PULLING = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling "a/b:1"'}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
UNPLACED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}
LOST_SECRET = ("FailedMount", 'secret "api" not found')


@pytest.mark.parametrize(
    ("status", "event", "expected"),
    [
        (
            {"containerStatuses": [{"state": PULLING}]},
            None,
            'ImagePullBackOff: Back-off pulling "a/b:1" (check the field image',
        ),
        pytest.param(
            {"conditions": [UNPLACED]},
            None,
            "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu. (ask for less",
            marks=pytest.mark.slow,
        ),
        (
            {"containerStatuses": [{"state": CREATING}]},
            LOST_SECRET,
            'FailedMount: secret "api" not found (check that the claims',
        ),
    ],
)
def test_pods_that_never_start_end_the_run_with_their_reason(
    server, job, printed, status, event, expected
):
    def play():
        for pod in ("flights-worker-0-x", "flights-worker-1-x"):
            server.add_pod(pod, "flights", "Pending", "", **status)
            if event:
                server.add_event("Pod", pod, *event)

    with playing(server, play):
        code, _, err = printed("run", "-t", "kubernetes", job, *SOON)
    assert code == Exit.TRY_AGAIN, err
    assert f"flights-worker-0-x and 1 more: {expected}" in err
    found = json.loads(printed("status", "-t", "kubernetes", job, "--json")[1])
    assert found[0]["detail"] == expected.partition(" (")[0]


def test_a_gang_that_is_never_placed_ends_at_the_deadline(server, job, printed):
    reason = "2/2 tasks in gang unschedulable: pod group is not ready, 2 minAvailable"
    group = "flights-0f9d1a52-8d5a-4d8e-9f0f-0d7e5d1a2b3c"
    key = ("batch.volcano.sh/v1alpha1", "Job", "flights")

    def play():
        server.add_event("PodGroup", group, "Unschedulable", reason)

    with playing(server, play, key):
        code, _, err = printed("run", "-t", "volcano", job, "--set", "deadline=1")
    assert code == Exit.OVERDUE
    assert "nothing of flights runs at its deadline of 1 s" in err
    assert f"PodGroup/{group}: Unschedulable: {reason} (ask for less" in err
