"""The parts of a job: resources, roles, volumes, secrets. Each is checked on creation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.cluster import MOST_TASKS
from gridflow._spec.printable import shortened
from gridflow.deploy.description import plain_secrets, rules
from gridflow.deploy.description.problems import Problem, refuse
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

GPU_RESOURCE: Final = "nvidia.com/gpu"
VOLUME_KINDS: Final = ("pvc", "empty", "host", "secret", "config")


class Checks:
    """Collects the problems of one object."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, path: str, reason: str | None) -> None:
        """Record a problem, if there is a reason."""
        if reason:
            self.problems.append(Problem(path, reason))

    def all(self, path: str, rule: Callable[[str], str | None], texts: Iterable[str]) -> None:
        """Check each text against a rule."""
        for text in texts:
            self.add(f"{path}.{text}", rule(text))

    def one_of(self, path: str, value: str | None, allowed: Iterable[str]) -> None:
        """Check that a value is one of those allowed, or None."""
        allowed = tuple(allowed)
        if value is not None and value not in allowed:
            reason = f"must be one of {', '.join(allowed)}, got {value!r}."
            self.add(path, reason + did_you_mean(value.lower(), allowed))

    def at_least(self, path: str, value: int | None, least: int) -> None:
        """Check that a number has at least the least value, or is None."""
        if value is not None and value < least:
            self.add(path, f"must be at least {least}, got {value}.")

    def env(self, env: Mapping[str, str], path: str = "env") -> None:
        """Check the names of variables, and that none contains a secret in plain text."""
        for name, value in env.items():
            if problem := rules.env_name(name) or rules.word(f"{name}={value}"):
                self.add(f"{path}.{shortened(name, 60)}", problem)
            elif value and (plain_secrets.holds_secret(name) or plain_secrets.is_secret(value)):
                self.add(
                    f"{path}.{name}",
                    "looks like a secret and would be printed in plain text; name a key of a "
                    f"secret instead: secrets: {{env: {{{name}: {{secret: NAME, key: KEY}}}}}}.",
                )

    def plain(self, path: str, value: object) -> None:
        """Check that no string in a value, at any depth, is a secret in plain text."""
        if isinstance(value, dict):
            for key, each in value.items():
                self.plain(f"{path}.{key}", each)
        elif isinstance(value, list | tuple):
            for index, each in enumerate(value):
                self.plain(f"{path}[{index}]", each)
        elif isinstance(value, str) and plain_secrets.is_secret(value):
            self.add(
                path,
                "looks like a secret and would be printed in plain text; leave it out, and use "
                "secrets: or credentials: instead.",
            )

    def command(self, path: str, words: Iterable[str]) -> None:
        """Check the words of a command for secrets and NUL characters."""
        words = list(words)
        problems = [rules.word(word) for word in words]
        for index, problem in enumerate(problems):
            self.add(f"{path}[{index}]", problem)
        if any(problems):
            return
        for index, name in plain_secrets.in_words(words):
            self.add(
                f"{path}[{index}]",
                f"{name} looks like a secret and would be printed in plain text; let the program "
                "read a variable of secrets.env or a file of secrets.files.",
            )

    def done(self) -> None:
        """Raise `JobError` if there are problems."""
        refuse(self.problems)


def texts(words: Iterable[object] | None, path: str) -> tuple[str, ...]:
    """Return the words of a command as strings; raise for a single string."""
    if words is None:
        return ()
    if isinstance(words, str):
        raise InvalidArgument(f"{path} must be a list of words, got the string {words!r}.")
    return tuple(str(word) for word in words)


def _set(target: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(target, name, value)


@dataclass(frozen=True)
class Resources:
    """Resources of a task.

    Attributes
    ----------
    cpu : str or None
        CPU cores, such as ``"2"`` or ``"500m"``.
    memory : str or None
        Memory with a unit, such as ``"4Gi"``.
    gpu : int
        GPUs, 0 by default.
    gpu_type : str or None
        The product name on the cluster's nodes, such as ``NVIDIA-A100-SXM4-40GB``.
    gpu_resource : str
        Kubernetes' resource name: ``nvidia.com/gpu`` by default, or e.g. ``amd.com/gpu``.
    """

    cpu: str | None = None
    memory: str | None = None
    gpu: int = 0
    gpu_type: str | None = None
    gpu_resource: str = GPU_RESOURCE

    def __post_init__(self) -> None:
        if self.cpu is not None:
            _set(self, cpu=str(self.cpu))
        check = Checks()
        check.add("cpu", rules.cpu(self.cpu) if self.cpu is not None else None)
        check.add("memory", rules.memory(self.memory) if self.memory is not None else None)
        check.at_least("gpu", self.gpu, 0)
        if self.gpu_type is not None:
            check.add("gpu_type", rules.label_value(self.gpu_type))
            if not self.gpu:
                check.add("gpu_type", f"{self.gpu_type!r} is set, but gpu is 0.")
            if self.gpu_resource.partition("/")[0] != "nvidia.com":
                reason = (
                    "is a label of NVIDIA nodes; select other nodes with node_selector or affinity."
                )
                check.add("gpu_type", reason)
        check.add("gpu_resource", rules.label_key(self.gpu_resource))
        if "/" not in self.gpu_resource:
            reason = f"{self.gpu_resource!r} has no vendor; devices are like 'amd.com/gpu'."
            check.add("gpu_resource", reason)
        check.done()


@dataclass(frozen=True)
class RoleSection:
    """A role of the job.

    Attributes
    ----------
    replicas : int
        Number of tasks, 1 by default; 0 removes the role from the job.
    command, args : tuple of str or None
        Replace the job's command and arguments. A ``ps`` without its own command runs a standard
        server. So do workers with an empty command next to a chief, as ParameterServerStrategy
        needs. ``data`` and ``dispatcher`` always run TensorFlow's data service.
    env : mapping of str to str
        Variables that are added to the job's or override them.
    resources : Resources
        Resources of each task.
    """

    replicas: int = 1
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        for name in ("command", "args"):
            if getattr(self, name) is not None:
                _set(self, **{name: texts(getattr(self, name), name)})
        _set(self, env=dict(self.env))
        check = Checks()
        check.at_least("replicas", self.replicas, 0)
        if self.replicas > MOST_TASKS:
            check.add("replicas", f"must be at most {MOST_TASKS:,}, got {self.replicas}.")
        check.command("command", self.command or ())
        check.command("args", self.args or ())
        check.env(self.env)
        check.done()


@dataclass(frozen=True)
class Gang:
    """Gang scheduling: all tasks start together, or none do.

    Attributes
    ----------
    scheduler : {"kueue", "volcano"} or None
        The gang scheduler; None leaves it to the target (Volcano on ``volcano``, otherwise Kueue).
    queue : str or None
        The LocalQueue of Kueue or the queue of Volcano.
    minimum : int or None
        Minimum number of tasks to start with; all by default.
    """

    scheduler: str | None = None
    queue: str | None = None
    minimum: int | None = None

    def __post_init__(self) -> None:
        check = Checks()
        check.one_of("scheduler", self.scheduler, ("kueue", "volcano"))
        if self.queue is not None:
            check.add("queue", rules.dns_subdomain(self.queue))
        check.at_least("minimum", self.minimum, 1)
        if self.scheduler == "kueue" and not self.queue:
            check.add("queue", "Kueue needs the name of a LocalQueue.")
        if self.scheduler == "kueue" and self.minimum:
            check.add("minimum", "Kueue admits all tasks or none; only Volcano has a minimum.")
        check.done()


@dataclass(frozen=True)
class Volume:
    """A directory that is mounted into every task.

    Its source is exactly one of ``pvc`` (name of a claim), ``empty`` (a size like ``10Gi``, or
    ``""`` for no limit), ``host`` (a path on the node), ``secret`` and ``config`` (names).
    """

    name: str
    path: str
    pvc: str | None = None
    empty: str | None = None
    host: str | None = None
    secret: str | None = None
    config: str | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        check = Checks()
        check.add("name", rules.dns_label(self.name))
        check.add("path", rules.absolute_path(self.path))
        kinds = [kind for kind in VOLUME_KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            got = ", ".join(kinds) or "none"
            check.add("", f"a volume needs exactly one of {', '.join(VOLUME_KINDS)}; got {got}.")
        for kind in ("pvc", "secret", "config"):
            value = getattr(self, kind)
            if value is not None:
                check.add(kind, rules.dns_subdomain(value))
        if self.empty:
            check.add("empty", rules.memory(self.empty))
        if self.host is not None:
            check.add("host", rules.absolute_path(self.host))
        check.done()

    @property
    def kind(self) -> str:
        """The kind of source: one of `VOLUME_KINDS`."""
        return next(kind for kind in VOLUME_KINDS if getattr(self, kind) is not None)


@dataclass(frozen=True)
class SecretKey:
    """A key of a secret that is stored in the cluster."""

    secret: str
    key: str

    def __post_init__(self) -> None:
        check = Checks()
        check.add("secret", rules.dns_subdomain(self.secret))
        check.add(
            "key", rules.label_key(self.key) if "/" not in self.key else "a key can't contain '/'."
        )
        check.done()


@dataclass(frozen=True)
class Secrets:
    """Secrets by name; their values are never part of a description or a document.

    Attributes
    ----------
    env : mapping of str to SecretKey
        Variables whose values are keys of secrets.
    files : mapping of str to str
        Maps a directory in the container to a secret, whose keys become files there.
    image_pull : tuple of str
        Secrets with credentials for the image registry.
    """

    env: Mapping[str, SecretKey] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    image_pull: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set(self, env=dict(self.env), files=dict(self.files))
        _set(self, image_pull=texts(self.image_pull, "image_pull"))
        check = Checks()
        check.all("env", rules.env_name, self.env)
        check.all("files", rules.absolute_path, self.files)
        for path, name in self.files.items():
            check.add(f"files.{path}", rules.dns_subdomain(name))
        for index, name in enumerate(self.image_pull):
            check.add(f"image_pull[{index}]", rules.dns_subdomain(name))
        check.done()


@dataclass(frozen=True)
class GcsCredentials:
    """A Google service account's key file: key ``key`` of the secret ``secret``."""

    secret: str
    key: str = "key.json"

    def __post_init__(self) -> None:
        SecretKey(self.secret, self.key)


@dataclass(frozen=True)
class S3Credentials:
    """Credentials for S3 and compatible stores.

    ``access_key`` and ``secret_key`` are the names of the secret's keys that contain them.
    """

    secret: str
    access_key: str = "AWS_ACCESS_KEY_ID"
    secret_key: str = "AWS_SECRET_ACCESS_KEY"  # noqa: S105  (the name of a key)
    endpoint: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        SecretKey(self.secret, self.access_key)
        SecretKey(self.secret, self.secret_key)
        check = Checks()
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            check.add("endpoint", f"must begin with http:// or https://, got {self.endpoint!r}.")
        for name in ("endpoint", "region"):
            check.add(name, rules.printable(getattr(self, name) or ""))
        check.plain("endpoint", self.endpoint or "")
        check.done()


@dataclass(frozen=True)
class Credentials:
    """Credentials for reading and writing buckets."""

    gcs: GcsCredentials | None = None
    s3: S3Credentials | None = None

    @property
    def keys(self) -> dict[str, SecretKey]:
        """The S3 variables whose values are keys of a secret; empty without S3."""
        if self.s3 is None:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": SecretKey(self.s3.secret, self.s3.access_key),
            "AWS_SECRET_ACCESS_KEY": SecretKey(self.s3.secret, self.s3.secret_key),
        }


@dataclass(frozen=True)
class Toleration:
    """A node taint that the job's tasks tolerate; the fields are those of Kubernetes."""

    key: str | None = None
    operator: str = "Equal"
    value: str | None = None
    effect: str | None = None
    seconds: int | None = None

    def __post_init__(self) -> None:
        check = Checks()
        check.one_of("operator", self.operator, ("Equal", "Exists"))
        check.one_of("effect", self.effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        if self.key is not None:
            check.add("key", rules.label_key(self.key))
        elif self.operator != "Exists":
            check.add("key", "a toleration without a key needs the operator Exists.")
        if self.value is not None:
            check.add("value", rules.label_value(self.value))
        if self.operator == "Exists" and self.value:
            check.add("value", f"the operator Exists takes no value, got {self.value!r}.")
        if self.seconds is not None and self.effect != "NoExecute":
            check.add("seconds", "only the effect NoExecute takes seconds.")
        check.done()
