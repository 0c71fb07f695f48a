"""The job description, checked on creation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

from gridflow._spec.cluster import (
    CHIEF,
    DATA,
    DISPATCHER,
    EVALUATOR,
    ROLES,
    TRAINING_ROLES,
    WORKER,
    facts_of,
    runs_no_command,
)
from gridflow.deploy.description import rules
from gridflow.deploy.description.parts import (
    Checks,
    Credentials,
    Gang,
    Resources,
    RoleSection,
    Secrets,
    Toleration,
    Volume,
    texts,
)
from gridflow.deploy.description.plain_secrets import holds_secret, is_secret
from gridflow.deploy.description.services import (
    BUCKETS,
    Notebook,
    Serve,
    TensorBoardSection,
)
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow.deploy.description.parts import SecretKey

RESTART_POLICIES: Final = ("never", "on-failure", "exit-code")
CLEAN_UPS: Final = ("none", "running", "all")

AFFINITIES: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")
RUN_AS_USER: Final = 10001
START_TIMEOUT: Final = 300
#: Read from text like ``2h``, stored in seconds.
Seconds = Annotated[int, "seconds"]


_PROPERTY: Final = re.compile(r"spark\.[^\s=]+")


@dataclass(frozen=True)
class Spark:
    """Settings for running the job as a Spark application.

    Attributes
    ----------
    version : str
        Version of Spark in the image.
    application : str or None
        Your own driver program (a file or ``local://`` path in the image) that starts the
        training itself. By default gridflow's, which runs the job's command in every task.
    driver : Resources
        Resources of the driver.
    conf : mapping of str to str
        Additional Spark properties.
    """

    version: str = "4.1.1"
    application: str | None = None
    driver: Resources = field(default_factory=lambda: Resources(cpu="1", memory="2Gi"))
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", dict(self.conf))
        check = Checks()
        if self.application is not None and self.application.startswith("-"):
            reason = f"must be a file or a local:// path, not an option; got {self.application!r}."
            check.add("application", reason)
        for key, value in self.conf.items():
            if not key.startswith("spark."):
                check.add(f"conf.{key}", "a Spark property must begin with 'spark.'.")
            elif not _PROPERTY.fullmatch(key):
                check.add(f"conf.{key}", "the name of a property can't contain blanks or '='.")
            if value and (holds_secret(key) or is_secret(value)):
                check.add(f"conf.{key}", "looks like a secret and would be printed in plain text.")
        check.done()


@dataclass(frozen=True)
class Marathon:
    """Settings for Marathon.

    Attributes
    ----------
    dns_domain : str
        The domain in which Mesos-DNS publishes the apps.
    finished_dir : str or None
        A directory on a volume where tasks record that they have finished, so that a task moved to
        another host doesn't train again.
    """

    dns_domain: str = "marathon.mesos"
    finished_dir: str | None = None

    def __post_init__(self) -> None:
        check = Checks()
        check.add("dns_domain", rules.dns_subdomain(self.dns_domain))
        if self.finished_dir is not None:
            check.add("finished_dir", rules.absolute_path(self.finished_dir))
        check.done()


def _one_worker() -> dict[str, RoleSection]:
    return {WORKER: RoleSection()}


@dataclass(frozen=True)
class Side:
    """A section that only some targets render; all others leave it to them.

    `title`: What ``gridflow explain`` calls it, unless its parts have titles of their own.
    `sample`: What ``gridflow init`` shows of it.
    """

    targets: str
    title: str = ""
    sample: str = ""


def _side(targets: str, title: str = "", sample: str = "") -> dict[str, Side]:
    return {"side": Side(targets, title, sample)}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job for every target; the field names are those of ``job.yaml``.

    Attributes
    ----------
    name : str
        A DNS label that begins with a letter.
    namespace : str
        ``default`` unless given.
    image : str
        The container image; may be empty for ``local`` and Spark outside Kubernetes.
    command, args : tuple of str
        The program of all roles without their own command.
    env : mapping of str to str
    roles : mapping of str to RoleSection
        Keys: ``chief``, ``worker``, ``ps``, ``evaluator``, ``data``; one worker by default. A role
        with 0 replicas counts as absent. With ``data``, a ``dispatcher`` is added.
    port : int
        TensorFlow's port, 2222 by default; tasks on the same host use consecutive ports from it.
    classic_flags : bool
        Also pass ``--job_name --task_index --ps_hosts --worker_hosts`` to the program.
    restart_policy : {"on-failure", "exit-code", "never"}
        ``exit-code`` restarts only after exits of 128 and above (signals).
    restart_limit : int
        3 by default.
    start_timeout : int
        Seconds that a task waits for its peers to start, and that ``gridflow run`` waits for the
        first task; 300 by default. Raise it if nodes are added for a job (autoscaling).
    deadline, time_to_live : int or None
        Maximum run time in seconds, and seconds to keep the job after it has finished.
    clean_up : {"none", "running", "all"} or None
        Which tasks are removed at the end; None leaves it to the target.
    gang, volumes, shared_memory, secrets, credentials, node_selector, tolerations
        Scheduling, and the tasks' environment; ``shared_memory`` is the size of /dev/shm.
    affinity : mapping
        Kubernetes' own tree: ``nodeAffinity``, ``podAffinity``, ``podAntiAffinity``.
    priority_class : str or None
        The pods' PriorityClass.
    service_account, labels, annotations
        Service account, labels and annotations of the pods.
    run_as_user : int
        The user id of the containers, 10001 by default, as in the image of the
        target ``docker``. 0 is root, which PodSecurity's "restricted" doesn't allow.
    tensorboard, serve, notebook, spark, marathon
        Services next to the job, and settings for these targets only.
    overrides : mapping of str to mapping
        For each target, a tree merged into its documents at the end.

    Raises
    ------
    JobError
        Lists every problem found, each with its path.
    """

    name: str
    namespace: str = "default"
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, RoleSection] = field(default_factory=_one_worker)
    port: int = 2222
    classic_flags: bool = False
    restart_policy: str = "on-failure"
    restart_limit: int = 3
    start_timeout: Seconds = START_TIMEOUT
    deadline: Seconds | None = None
    time_to_live: Seconds | None = None
    clean_up: str | None = None
    gang: Gang | None = None
    volumes: tuple[Volume, ...] = ()
    shared_memory: str | None = None
    secrets: Secrets = field(default_factory=Secrets)
    credentials: Credentials = field(default_factory=Credentials)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    priority_class: str | None = None
    service_account: str | None = None
    run_as_user: int = RUN_AS_USER
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tensorboard: TensorBoardSection | None = None
    serve: Serve | None = field(default=None, metadata=_side("serving and kserve"))
    notebook: Notebook | None = field(default=None, metadata=_side("notebook", "a notebook server"))
    spark: Spark | None = field(
        default=None,
        metadata=_side(
            "sparkapplication and spark-submit-*",
            "the Spark section",
            "{version: 4.1.1}    # for sparkapplication and spark-submit-*",
        ),
    )
    marathon: Marathon | None = field(
        default=None,
        metadata=_side("marathon", "the Marathon section", "{dns_domain: marathon.mesos}"),
    )
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("command", "args"):
            object.__setattr__(self, name, texts(getattr(self, name), name))
        for name in ("volumes", "tolerations"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("env", "roles", "node_selector", "affinity", "labels", "annotations"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        object.__setattr__(self, "overrides", dict(self.overrides))
        there = {name: role for name, role in self.roles.items() if role.replicas}
        if DATA in there:
            there.setdefault(DISPATCHER, RoleSection())
        object.__setattr__(self, "roles", there)
        check = Checks()
        check.add("name", rules.dns_label(self.name, letter_first=True))
        check.add("namespace", rules.dns_label(self.namespace))
        if self.image:
            check.add("image", rules.image(self.image))
        check.command("command", self.command)
        check.command("args", self.args)
        check.env(self.env)
        self._check_roles(check)
        check.add("port", rules.port_number(self.port))
        check.one_of("restart_policy", self.restart_policy, RESTART_POLICIES)
        check.at_least("restart_limit", self.restart_limit, 0)
        check.at_least("start_timeout", self.start_timeout, 1)
        check.at_least("deadline", self.deadline, 1)
        check.at_least("time_to_live", self.time_to_live, 0)
        check.one_of("clean_up", self.clean_up, CLEAN_UPS)
        self._check_volumes(check)
        self._check_log_dirs(check)
        if self.shared_memory is not None:
            check.add("shared_memory", rules.memory(self.shared_memory))
        self._check_labels(check)
        self._check_overrides(check)
        check.done()

    @property
    def tasks(self) -> int:
        """Total number of tasks."""
        return sum(role.replicas for role in self.roles.values())

    @property
    def main_role(self) -> str:
        """The role whose end is the job's end: the chief, if there is one."""
        order = (CHIEF, WORKER, DISPATCHER)  # a standalone data service runs until cancelled
        return next((name for name in order if name in self.roles), WORKER)

    @property
    def trains(self) -> bool:
        """Whether any task trains; otherwise the job is a data service for other jobs."""
        return any(name in self.roles for name in TRAINING_ROLES)

    def command_of(self, role: str) -> tuple[str, ...]:
        """Return the command of the role's tasks; empty for a standard server."""
        own = self.roles[role]
        if own.command == () or (own.command is None and runs_no_command(role)):
            return ()
        command = self.command if own.command is None else own.command
        return command + (self.args if own.args is None else own.args)

    @property
    def servers(self) -> tuple[str, ...]:
        """The roles whose tasks are TensorFlow servers, which run until training is over."""
        return tuple(
            name
            for name, _ in self.role_items()
            if runs_no_command(name) or (name == WORKER and self.roles[name].command == ())
        )

    @property
    def followers(self) -> tuple[str, ...]:
        """The roles that end with the training: servers and evaluators."""
        if not self.trains:
            return ()
        servers = self.servers
        return (*servers, *(name for name in self.roles if name == EVALUATOR))

    @property
    def secret_keys(self) -> dict[str, SecretKey]:
        """The variables whose values are keys of secrets, including those for S3."""
        return {**self.secrets.env, **self.credentials.keys}

    def env_of(self, role: str) -> dict[str, str]:
        """Return a role's variables: the job's, overridden by its own."""
        return {**self.env, **self.roles[role].env}

    def role_items(self) -> list[tuple[str, RoleSection]]:
        """Return the roles in the order of `gridflow._spec.cluster.ROLES`."""
        return [(name, self.roles[name]) for name in ROLES if name in self.roles]

    def _check_roles(self, check: Checks) -> None:
        for name, role in self.roles.items():
            if name not in ROLES:
                reason = f"{name!r} is not a role; the roles are {', '.join(ROLES)}."
                check.add(f"roles.{name}", reason + did_you_mean(name, ROLES))
            elif facts_of(name).is_single and role.replicas > 1:
                reason = f"a job has at most one {name}, got {role.replicas}."
                check.add(f"roles.{name}.replicas", reason)
            elif facts_of(name).is_data_service and (role.command is not None or role.args):
                reason = "runs TensorFlow's data service, which takes neither command nor args."
                check.add(f"roles.{name}.command", reason)
            elif role.args is not None and self.command_of(name) == ():
                check.add(f"roles.{name}.args", "a standard server takes no args.")
            elif role.command == () and not facts_of(name).can_serve:
                reason = f"is empty, but only workers and ps can run standard servers, not {name}."
                check.add(f"roles.{name}.command", reason)
            elif role.command == () and name == WORKER and CHIEF not in self.roles:
                reason = "is empty: all workers would be standard servers, without a chief."
                check.add("roles.worker.command", reason)
        if not self.trains and DATA not in self.roles:
            check.add("roles", "no task trains: a job needs a chief or workers.")
        if not self.trains and DATA in self.roles and len(self.roles) > len((DATA, DISPATCHER)):
            check.add("roles", "a standalone data service has only the roles data and dispatcher.")
        if DISPATCHER in self.roles and DATA not in self.roles:
            check.add("roles.dispatcher", "needs data workers: a role data.")
        if self.gang and self.gang.minimum and self.gang.minimum > self.tasks:
            reason = f"{self.gang.minimum} is more than the job's {self.tasks} tasks."
            check.add("gang.minimum", reason)

    def _check_volumes(self, check: Checks) -> None:
        names = [volume.name for volume in self.volumes]
        paths = [volume.path for volume in self.volumes]
        paths += list(self.secrets.files)
        for index, volume in enumerate(self.volumes):
            if names.index(volume.name) != index:
                check.add(f"volumes[{index}].name", f"{volume.name!r} is defined twice.")
            if paths.index(volume.path) != index:
                check.add(f"volumes[{index}].path", f"{volume.path!r} is defined twice.")
        for path in self.secrets.files:
            if path in paths[: len(self.volumes)]:
                check.add(f"secrets.files.{path}", "a volume has the same path.")
        plain = {"env": self.env} | {f"roles.{n}.env": role.env for n, role in self.roles.items()}
        for variable in self.secrets.env:
            for place in (place for place, env in plain.items() if variable in env):
                check.add(f"secrets.env.{variable}", f"is also in {place}.")

    def _check_log_dirs(self, check: Checks) -> None:
        if self.tensorboard and not self.tensorboard.log_dir.startswith(BUCKETS):
            log_dir = self.tensorboard.log_dir
            if not self.volume_of(log_dir):
                reason = f"{log_dir!r} isn't in a volume that outlives a task (pvc or host), so "
                reason += "TensorBoard would see nothing; put it under a volume's path."
                check.add("tensorboard.log_dir", reason)
        for index, model in enumerate(self.serve.models if self.serve else ()):
            if not model.path.startswith(BUCKETS) and not self.volume_of(model.path):
                reason = f"{model.path!r} isn't in any volume (pvc or host) of the job."
                check.add(f"serve.models[{index}].path", reason)

    def volume_of(self, path: str) -> Volume | None:
        """Return the innermost persistent volume that contains a path."""
        holding = [
            volume
            for volume in self.volumes
            if volume.kind in {"pvc", "host"}
            and (path + "/").startswith(volume.path.rstrip("/") + "/")
        ]
        return max(holding, key=lambda volume: len(volume.path), default=None)

    def _check_labels(self, check: Checks) -> None:
        for path in ("labels", "node_selector"):
            for key, value in getattr(self, path).items():
                check.add(f"{path}.{key}", rules.label_key(key))
                check.add(f"{path}.{key}", rules.label_value(value))
        check.all("annotations", rules.label_key, self.annotations)
        for path in ("labels", "node_selector", "annotations", "affinity"):
            check.plain(path, getattr(self, path))
        for key in self.affinity:
            check.one_of(f"affinity.{key}", key, AFFINITIES)
        if self.priority_class is not None:
            check.add("priority_class", rules.dns_subdomain(self.priority_class))
        check.at_least("run_as_user", self.run_as_user, 0)
        if self.service_account is not None:
            check.add("service_account", rules.dns_subdomain(self.service_account))

    def _check_overrides(self, check: Checks) -> None:
        for target, tree in self.overrides.items():
            if not isinstance(tree, dict):
                check.add(f"overrides.{target}", f"must be a tree of fields, got {tree!r}.")
            check.plain(f"overrides.{target}", tree)


SIDES: Final[dict[str, Side]] = {
    each.name: each.metadata["side"] for each in fields(Job) if "side" in each.metadata
}
