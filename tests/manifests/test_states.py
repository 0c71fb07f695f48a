"""What kubectl tells of objects, and what that means for a job: ready, queued, waited for."""

from __future__ import annotations

import io
import pickle

import pytest
from jobs import JOB

from gridflow._spec.exits import Exit
from gridflow.deploy import parse_job, render
from gridflow.deploy.drivers.base import Patience, say
from gridflow.deploy.drivers.kubectl import NotAllowed
from gridflow.deploy.drivers.objects import Pod, components, is_queued, state_of
from gridflow.deploy.drivers.streams import LogStream, show
from gridflow.deploy.drivers.troubles import Trouble


def test_the_error_about_permissions_survives_pickling():
    error = NotAllowed("flights", "default", ("pods: list",))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.missing) == (str(error), error.missing)


def test_streams_of_output_cannot_move_the_cursor():
    told = "2024-05-01T12:00:00.5Z \x1b]0;title\x07one\r\x1b[2Jtwo"
    output = io.StringIO()
    stream = LogStream(["echo", told], output, 0.01, since="--since")
    stream.end()
    assert stream.close(60)
    assert output.getvalue().startswith("onetwo")
    assert not {"\x1b", "\r"} & set(output.getvalue())


def test_messages_of_tools_cannot_move_the_cursor(capsys):
    say("pod failed: \x1b]0;title\x07\x1b[2Jhere")
    assert capsys.readouterr().err.endswith("pod failed: here\n")
    output = io.StringIO()
    assert show(["sh", "-c", "cat; printf 'bad\\033[2J\\n' >&2; exit 3"], output, "in\x9b1A\n") == 3
    assert output.getvalue() == "in\nbad\n"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("kubernetes", {"worker"}),
        ("trainjob", {"worker"}),
        ("sparkapplication", {"driver", "executor"}),
        ("serving", {"serving"}),
    ],
)
def test_a_targets_pods_are_those_that_its_documents_make(target, expected):
    found = [d.content for d in render(parse_job(JOB), target, lossy=True).documents]
    assert components(found) >= expected
    assert ("serving" in components(found)) == (target == "serving")


def test_a_second_model_gets_new_pods():
    annotations = [
        render(parse_job(JOB.replace("models/flights", path)), "serving")
        .documents[1]
        .content["spec"]["template"]["metadata"]["annotations"]
        for path in ("models/flights", "models/others", "models/flights")
    ]
    assert annotations[0] != annotations[1]
    assert annotations[0] == annotations[2]


READY = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({**READY, "observedGeneration": 2}, "Complete"),
        ({**READY, "observedGeneration": 1}, "Pending"),
        ({**READY, "observedGeneration": 2, "updatedReplicas": 0}, "Pending"),
        ({**READY, "observedGeneration": 2, "replicas": 2}, "Pending"),
        ({**READY, "observedGeneration": 2, "availableReplicas": 0}, "Pending"),
    ],
)
def test_a_changed_deployment_is_ready_when_its_new_pods_are(status, expected):
    """As ``kubectl rollout status`` judges (kubectl, pkg/polymorphichelpers/rollout_status.go)."""
    about = {"name": "flights-serving", "generation": 2}
    item = {"kind": "Deployment", "metadata": about, "spec": {"replicas": 1}, "status": status}
    assert state_of(item) == expected


@pytest.mark.parametrize("kind", ["Notebook", "Tensorboard", "InferenceService"])
def test_other_services_are_ready_when_their_controllers_say_so(kind):
    """The status of Kubeflow's kinds names no generation."""
    about = {"name": "flights", "generation": 1}
    item = {"kind": kind, "metadata": about, "status": {"readyReplicas": 0}}
    assert state_of(item) == "Pending"
    assert state_of({**item, "status": {"readyReplicas": 1}}) == "Complete"
    for status, expected in (("True", "Complete"), ("False", "Pending")):
        conditions = [{"type": "Ready", "status": status}]
        assert state_of({**item, "status": {"conditions": conditions}}) == expected


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("Job", "flights-worker", True),
        ("JobSet", "flights-worker", True),  # a TrainJob's
        ("Job", "flights-worker-node-0", True),
        ("ReplicaSet", "flights-worker-5d4f8c9b7", True),
        ("PodGroup", "flights-worker", True),
        ("Workload", "job-flights-worker-1a2b3", True),
        ("Pod", "flights-worker-0-x", True),
        ("Pod", "flights-worker-1-x", False),
        ("Job", "flights", False),
        ("Job", "flights-worker-2", False),
        ("ConfigMap", "flights-worker", False),
        ("Workload", "job-flights-worker2-1a2b3", False),
    ],
)
def test_an_event_is_the_jobs_if_its_object_is_or_was_made_for_it(kind, name, expected):
    contents = [{"kind": "Job", "metadata": {"name": "flights-worker"}}]
    about = {"kind": kind, "name": name}
    event = Trouble.of({"involvedObject": about, "reason": "a", "message": "b"})
    assert event.concerns(contents, ["flights-worker-0-x"]) == expected


RUNNING = {"has_begun": True, "is_running": True, "is_queued": False}
NOTHING = {"has_begun": False, "is_running": False, "is_queued": False}
ENDED = {**RUNNING, "is_running": False}
QUEUED = {**NOTHING, "is_queued": True}


@pytest.mark.parametrize(
    ("deadline", "looks", "expected"),
    [
        (None, [(9, NOTHING), (10, NOTHING)], Exit.TRY_AGAIN),
        (None, [(9, QUEUED), (18, NOTHING), (99, RUNNING), (1000, ENDED)], None),
        (None, [(99, QUEUED), (109, NOTHING)], Exit.TRY_AGAIN),
        # The pods of a group that is started again can't be placed.
        (None, [(5, RUNNING), (14, NOTHING), (15, NOTHING)], Exit.TRY_AGAIN),
        (5, [(4, NOTHING), (5, NOTHING)], Exit.OVERDUE),
        (5, [(9, QUEUED), (13, NOTHING), (14, NOTHING)], Exit.OVERDUE),
        # What has started is ended by the launcher, and then by its controller.
        (5, [(4, RUNNING), (99, RUNNING)], None),
        (5, [(4, RUNNING), (64, ENDED)], None),
        (5, [(4, RUNNING), (65, ENDED)], Exit.OVERDUE),
    ],
)
def test_a_job_of_which_nothing_runs_is_waited_for_as_long_as_it_says(deadline, looks, expected):
    now = [0]
    patience = Patience("flights", 10, deadline, clock=lambda: now[0])
    for now[0], seen in looks:
        assert (found := patience.verdict(**seen, reasons=["why"])) is None or now[0] == looks[-1][
            0
        ]
    assert found == expected


KUEUE = "gang: {queue: research}\n"
VOLCANO = "gang: {queue: research, scheduler: volcano}\n"


@pytest.mark.parametrize(
    ("gang", "suspended", "placed", "expected"),
    [
        ("", False, False, False),
        ("", True, False, True),  # by hand
        ("gang: {minimum: 1}\n", False, False, False),
        (KUEUE, True, False, True),
        (KUEUE, False, False, False),
        (VOLCANO, False, False, True),
        (VOLCANO, False, True, False),
    ],
)
def test_a_job_is_queued_until_it_is_admitted(gang, suspended, placed, expected):
    job = parse_job(JOB + gang)
    rendered = [document.content for document in render(job, "kubernetes").documents]
    (item,) = (content for content in rendered if content["kind"] == "Job")
    item = {**item, "spec": {**item["spec"], "suspend": suspended}}
    pod = Pod.of({"metadata": {"name": "a"}, "spec": {"nodeName": "n"} if placed else {}})
    assert is_queued(job, {"job/flights-worker": item}, [pod]) == expected
