"""What restart policy, limit, deadline, clean-up, secrets and an evaluator mean on each target.

docs/job-files.md has the table; each of its cells is a case here. Controllers that can't run here
are played from their source, which each stand-in names; `gridflow launch` is the real one.
"""

from __future__ import annotations

import re

import pytest
from environments import processes
from jobs import TRAINING, flights
from launching import ENDING, finished

from gridflow._spec.exits import Exit
from gridflow.deploy import Gang, JobError, Role, SecretKey, Secrets, get_target, render

#: Where `gridflow launch` restarts the program inside its container.
INSIDE = ("local", "docker", "compose", "swarm", "tfjob", "marathon")
#: Where a controller starts pods anew, by what their containers ended with.
OUTSIDE = ("kubernetes", "jobset", "trainjob", "volcano")
SPARK = (
    "sparkapplication",
    "spark-submit-standalone",
    "spark-submit-yarn",
    "spark-submit-kubernetes",
)
TOKEN = Secrets(env={"API_TOKEN": SecretKey("api", "token")})


def documents(target, **changes):
    """Return the contents of a job's documents."""
    changes = {"args": [], "roles": {"worker": Role(2)}, **changes}
    return [d.content for d in render(flights(**changes), target).documents]


def only(kind, found):
    return next(each for each in found if each["kind"] == kind)


def words_of(target, **changes):
    """Return the words of the first process, up to the program's own."""
    changes = {"args": [], "roles": {"worker": Role(2)}, **changes}
    (*_, words), *_ = processes(flights(**changes), target)
    return words[: words.index("--")]


class JobController:
    """What a ``batch/v1`` Job does after an exit code of one of its pods.

    kubernetes/kubernetes, pkg/controller/job: ``pod_failure_policy.go`` takes the first rule that
    matches; ``backoff_utils.go`` and ``indexed_job_utils.go`` count failures by index or in all.
    """

    def __init__(self, spec):
        self.rules = spec["podFailurePolicy"]["rules"]
        self.limit = spec.get("backoffLimitPerIndex", spec.get("backoffLimit"))

    def reason(self, code, failures):
        """Return the reason why the Job fails, None if the pod is started again."""
        for rule in self.rules:
            codes = rule.get("onExitCodes")
            if codes and (code in codes["values"]) == (codes["operator"] == "In"):
                assert rule["action"] == "FailJob"
                return "PodFailurePolicy"
        return None if failures < self.limit else "BackoffLimitExceeded"


class JobSetController:
    """What a JobSet does when one of its Jobs has failed.

    kubernetes-sigs/jobset, pkg/controllers/failure_policy.go: the first rule whose reasons hold the
    Job's decides, else the set restarts up to ``maxRestarts``.
    """

    def __init__(self, spec):
        self.policy = spec["failurePolicy"]
        self.job = JobController(spec["replicatedJobs"][0]["template"]["spec"])

    def restarts(self, reason, before):
        for rule in self.policy.get("rules", ()):
            if reason in rule["onJobFailureReasons"]:
                return rule["action"] != "FailJobSet"
        return before < self.policy["maxRestarts"]


class VolcanoController:
    """What a Volcano Job does after an exit code.

    volcano-sh/volcano, pkg/controllers/job/job_controller_util.go, ``applyPolicies``: the first
    policy with the event or the exit code. pkg/controllers/job/state: ``running.go`` counts a
    restart, and ``restarting.go`` fails the job where the count has reached ``maxRetry``.
    pkg/webhooks/admission/jobs/mutate/mutate_job.go, ``patchDefaultMaxRetry``: 0 becomes 3.
    """

    def __init__(self, spec):
        self.policies, self.most = spec["policies"], spec.get("maxRetry", 0) or 3

    def restarts(self, code, before):
        count = before + 1
        for policy in self.policies:
            if policy.get("exitCode") == code or policy.get("event") == "PodFailed":
                return policy["action"] == "RestartJob" and count < self.most
        raise AssertionError("no policy for a failed pod")


class TrainJobController:
    """What becomes of a TrainJob whose program fails each time.

    kubeflow/trainer v2.3, pkg/controller/trainjob_controller.go: ``Reconcile`` forgets the failure
    (``removeFailedCondition``), looks whether the job is finished, and if not, makes a JobSet that
    isn't there (plugins/jobset/jobset.go, ``Build``); only then it takes the JobSet's state over.
    kubernetes-sigs/jobset, pkg/controllers/ttl_after_finished.go removes a finished set.
    """

    def __init__(self, runtime):
        self.set = runtime["template"]["spec"]

    def trainings(self, most=5):
        """Return how often all restarts are gone through; ``most`` stands for without an end."""
        made, there = 0, False
        for _ in range(most):
            if not there:
                made, there = made + 1, True
            there = "ttlSecondsAfterFinished" not in self.set
        return made


def starts_again(target, code, failures=0, **changes):
    """Return whether a target starts a task again that ended with a code, after failures before."""
    found = documents(target, **changes)
    if target == "kubernetes":
        return JobController(only("Job", found)["spec"]).reason(code, failures) is None
    if target == "volcano":
        # What the container ends with: `gridflow launch` maps retryable codes to one.
        options = [w for w in words_of(target, **changes) if "retryable" in w]
        mapped = finished(*options, "--", "sh", "-c", f"exit {code}")[0]
        return VolcanoController(only("Job", found)["spec"]).restarts(mapped, failures)
    kind = "JobSet" if target == "jobset" else "TrainingRuntime"
    spec = only(kind, found)["spec"]
    controller = JobSetController(spec if target == "jobset" else spec["template"]["spec"])
    return controller.restarts(controller.job.reason(code, 0), failures)


def counts_over_restarts(found):
    """Return whether the launcher in each pod is told when the job was started first."""
    field = "{'fieldPath': \"metadata.annotations['gridflow/began']\"}"
    text = str(found)
    return 0 < text.count(field) == text.count("'GRIDFLOW_BEGAN'") == text.count("'containers'")


@pytest.mark.parametrize("target", OUTSIDE)
def test_restart_policy_of_a_controller(target):
    """exit-code: signals and lost peers only; on-failure: all; never: none."""
    for policy, expected in {
        "exit-code": {3: False, 127: False, 137: True, Exit.LOST: True},
        "on-failure": {3: True, 137: True, Exit.LOST: True},
        "never": {3: False, 137: False},
    }.items():
        found = {code: starts_again(target, code, restart_policy=policy) for code in expected}
        assert found == expected, policy


@pytest.mark.parametrize("target", OUTSIDE)
def test_restart_limit_of_a_controller(target):
    for failures, expected in ((0, True), (1, True), (2, False)):
        assert starts_again(target, 137, failures, restart_limit=2) == expected
    assert not starts_again(target, 137, restart_limit=0)


def test_a_trainjob_that_fails_is_not_trained_for_ever():
    for changes in ({}, {"clean_up": "running"}, {"clean_up": "all"}, {"time_to_live": 60}):
        job = flights(roles={"worker": Role(2)}, **changes)
        for target, kind in (
            ("trainjob", "TrainingRuntime"),
            ("trainer-runtime", "ClusterTrainingRuntime"),
        ):
            found = [d.content for d in render(job, target, lossy=True).documents]
            assert TrainJobController(only(kind, found)["spec"]).trainings() == 1
    for target in ("trainjob", "trainer-runtime"):
        for value in (0, 60):
            with pytest.raises(JobError, match="time_to_live.*gridflow cancel.*jobset"):
                documents(target, time_to_live=value)


def test_all_pods_of_a_gang_have_the_scheduler_that_gathers_them():
    """Trainer makes the pod group alone (pkg/runtime/framework/plugins/volcano/volcano.go)."""
    roles = {"chief": Role(), "worker": Role(2)}
    for target in ("kubernetes", "jobset", "trainjob"):
        text = str(documents(target, roles=roles, gang=Gang(scheduler="volcano")))
        assert text.count("'schedulerName': 'volcano'") == text.count("'containers'") == 2
        assert text.count("'scheduling.k8s.io/group-name': 'flights'") == 2


@pytest.mark.parametrize("target", [*INSIDE, *SPARK])
def test_restart_policy_inside_the_container(target):
    """How these options restart is in test_launch.py, test_restarts_follow_the_policy."""
    for policy in ("exit-code", "on-failure", "never"):
        if target in SPARK:
            text = str(documents(target, restart_policy=policy)[-1])
            assert ("--restart-policy=exit-code" in text) == (policy == "exit-code")
        else:
            assert f"--restart-policy={policy}" in words_of(target, restart_policy=policy)


@pytest.mark.parametrize("target", [*INSIDE, *SPARK])
def test_restart_limit_inside_the_container(target):
    if target in SPARK:
        assert "--restart-limit=2" in str(documents(target, restart_limit=2)[-1])
    else:
        assert "--restart-limit=2" in words_of(target, restart_limit=2)


def test_tfjobs_operator_restarts_nothing_by_itself():
    """It deletes the logs with the pods at its limit, and restarts ExitCode without one.

    kubeflow/trainer v1.9.4, pkg/controller.v1/common/job.go (ReconcileJobs, PastBackoffLimit) and
    pkg/controller.v1/tensorflow/tfjob_controller.go (ReconcilePods).
    """
    for policy in ("exit-code", "on-failure", "never"):
        spec = only("TFJob", documents("tfjob", restart_policy=policy))["spec"]
        assert spec["tfReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"
        assert "backoffLimit" not in spec["runPolicy"]


@pytest.mark.slow  # four launchers with their restarts
def test_each_task_of_a_tfjob_has_a_limit_of_its_own(tmp_path):
    """Four workers that fail once each, with a limit of three."""
    script = f"mkdir {tmp_path}/$GRIDFLOW_INDEX 2>/dev/null && exit 1; exit 0"
    for index in range(4):
        env = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0", "HOST": str(index)}
        words = words_of("tfjob", restart_limit=3)[2:]
        code, out = finished(
            *words, "--", "sh", "-c", script.replace("GRIDFLOW_INDEX", "HOST"), env=env
        )
        assert (code, out.count("restarting it")) == (0, 1)


def test_a_program_that_is_killed_for_ever_is_started_as_often_as_the_limit_says():
    words = words_of("tfjob", restart_policy="exit-code", restart_limit=1)[2:]
    code, out = finished(*words, "--", "sh", "-c", "echo one run; kill -KILL $$")
    assert (code, out.count("one run")) == (137, 2)


def limits_of(tree):
    """Return all deadlines of controllers in a document."""
    if isinstance(tree, dict):
        own = [tree["activeDeadlineSeconds"]] if "activeDeadlineSeconds" in tree else []
        return own + [limit for child in tree.values() for limit in limits_of(child)]
    return [limit for child in tree for limit in limits_of(child)] if isinstance(tree, list) else []


#: Kubernetes' controllers that count a deadline of their own.
CONTROLLED = {"kubernetes": 1, "jobset": 1, "trainjob": 2, "tfjob": 2, "volcano": 1}


@pytest.mark.parametrize("target", [*TRAINING, *SPARK])
def test_deadline(target):
    """A controller deletes what is over time, output included, and all its ends look the same.

    kubernetes/kubernetes, pkg/controller/job/job_controller.go (``deleteActivePods``);
    kubeflow/trainer, pkg/controller/trainjob_controller.go (``reconcileDeadline`` deletes the
    JobSet); v1.9, pkg/controller.v1/common/job.go (``DeletePodsAndServices``). So the launcher ends
    the program, with a code and a message, and the controller what never came up.
    """
    found = documents(target, deadline=60)
    if target in SPARK:
        assert "--deadline=60" in str(found[-1])
        return
    # Restarts included: test_launch.py, test_a_deadline_ends_a_task_and_its_restarts.
    assert "--deadline=60" in words_of(target, deadline=60)
    assert limits_of(found) == [660] * CONTROLLED.get(target, 0)
    if target in CONTROLLED:
        # Where pods are made anew, each would have the whole deadline before it.
        assert counts_over_restarts(found)
    if target in OUTSIDE:
        for policy in ("on-failure", "exit-code"):
            changes = {"restart_policy": policy, "deadline": 60}
            assert not starts_again(target, Exit.OVERDUE, **changes)
            assert starts_again(target, 137, **changes)
    if target in {"jobset", "trainjob"}:
        kind = "JobSet" if target == "jobset" else "TrainingRuntime"
        spec = only(kind, found)["spec"]
        spec = spec if target == "jobset" else spec["template"]["spec"]
        assert not JobSetController(spec).restarts("DeadlineExceeded", 0)
        assert JobSetController(spec).restarts("BackoffLimitExceeded", 0)


def test_run_notes_when_a_job_begins_whose_pods_are_started_again():
    def begun(job, target, now):
        return get_target(target).begun(job, now)

    job = flights(deadline=60, annotations={"note": "x"})
    assert begun(job, "jobset", 1234.5).annotations == {"note": "x", "gridflow/began": "1234"}
    assert begun(job, "volcano", 1234.5).annotations["gridflow/began"] == "1234"
    pod = only("JobSet", [d.content for d in render(begun(job, "jobset", 1.0), "jobset").documents])
    template = pod["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["annotations"]["gridflow/began"] == "1"
    # Waiting in a queue is no training, and the others count by themselves.
    assert begun(flights(deadline=60, gang=Gang(queue="q")), "jobset", 1.0).annotations == {}
    assert begun(job, "compose", 1.0) is begun(job, "swarm", 1.0) is job
    assert begun(flights(), "jobset", 1.0).annotations == {}


@pytest.mark.parametrize("target", [*TRAINING, *SPARK])
def test_clean_up(target):
    place = get_target(target)
    for clean_up in ("none", "running", "all"):
        refused = {"clean_up", f"clean_up={clean_up}"} & set(place.cannot)
        if refused:
            with pytest.raises(JobError, match="clean_up"):
                documents(target, clean_up=clean_up)
            continue
        text = str(documents(target, clean_up=clean_up)[-1])
        if target == "tfjob":
            assert f"'cleanPodPolicy': '{clean_up.capitalize()}'" in text
        elif target == "docker":
            assert ("docker rm" in text) == (clean_up == "all")
        elif target not in {"compose", "swarm"}:
            text = str(documents(target, clean_up=clean_up))
            assert ("'ttlSecondsAfterFinished': 0" in text) == (clean_up == "all")


@pytest.mark.parametrize("target", [*TRAINING, *SPARK])
def test_secrets(target):
    if "secrets" in get_target(target).cannot:
        with pytest.raises(JobError, match="secrets"):
            documents(target, secrets=TOKEN)
        return
    text = str(documents(target, secrets=TOKEN))
    if target in {"local", "docker", "compose"}:
        assert "{API_TOKEN:?" in text
    elif target == "swarm":
        # How it gets into the variable: test_swarm.py, test_a_task_reads_its_secrets_from_files.
        assert "'secrets': {'api.token': {'external': True}}" in text
        assert "$(cat /run/secrets/api.token)" in text
    elif target == "marathon":
        assert "'API_TOKEN': {'secret': 'env-api-token'}" in text
    elif target == "spark-submit-kubernetes":
        assert "secretKeyRef.API_TOKEN=api:token" in text
    else:
        assert "{'secretKeyRef': {'name': 'api', 'key': 'token'}}" in text


@pytest.mark.parametrize("target", [*TRAINING, *SPARK])
def test_evaluator(target):
    """It ends with the training: by news of it, by a controller, or by gridflow's coordinator."""
    roles = {"worker": Role(2), "evaluator": Role()}
    found = documents(target, roles=roles)
    if target in {*ENDING, "marathon"}:
        # How it ends: test_launched_together.py,
        # test_an_evaluator_without_end_ends_with_the_training.
        for _, _, env, _ in processes(flights(args=[], roles=roles), target):
            assert re.search(r'"evaluator":\["', env["GRIDFLOW_FINISH"])
    elif target in SPARK:
        # distribution/test_commands.py, test_tasks_are_told_who_they_are_and_servers_and_…
        assert "evaluator=1" in str(found[-1])
    elif target == "tfjob":
        spec = only("TFJob", found)["spec"]
        assert (spec["successPolicy"], spec["runPolicy"]["cleanPodPolicy"]) == (
            "AllWorkers",
            "Running",
        )
    elif target == "volcano":
        worker, evaluator = only("Job", found)["spec"]["tasks"]
        assert worker["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
        assert "policies" not in evaluator
    else:
        kind, part = ("JobSet", "worker") if target == "jobset" else ("TrainingRuntime", "node")
        spec = only(kind, found)["spec"]
        spec = spec if target == "jobset" else spec["template"]["spec"]
        assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": [part]}


@pytest.mark.parametrize("target", TRAINING)
def test_start_timeout(target):
    assert "--resolve-timeout=1800" in words_of(target, start_timeout=1800)


def test_kueue_is_refused_where_it_would_admit_half_a_group():
    """It admits each Job for itself: kubernetes-sigs/kueue, pkg/controller/jobs/job."""
    gang = Gang(queue="research")
    roles = {"chief": Role(), "worker": Role(2)}
    with pytest.raises(JobError, match=r"gang\.queue: .*one by one.*jobset"):
        documents("kubernetes", roles=roles, gang=gang)
    rendering = render(flights(roles=roles, gang=gang), "kubernetes", lossy=True)
    assert "kueue" not in rendering.text()
    assert "one by one" in str(rendering.warnings[0])
    for target in ("jobset", "tfjob", "trainjob"):
        assert "kueue.x-k8s.io/queue-name" in str(documents(target, roles=roles, gang=gang))
    assert "kueue.x-k8s.io/queue-name" in str(documents("kubernetes", gang=gang))
    gang = Gang(scheduler="volcano", queue="research")
    assert documents("kubernetes", roles=roles, gang=gang)
