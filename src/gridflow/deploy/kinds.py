"""Typed dictionaries for rendered documents, with only the fields that gridflow writes."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Env(TypedDict):
    """An environment variable of a container."""

    name: str
    value: NotRequired[str]
    valueFrom: NotRequired[Any]


class Metadata(TypedDict):
    """Metadata of a Kubernetes object."""

    name: NotRequired[str]
    namespace: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class ContainerPort(TypedDict):
    """A container's port."""

    name: str
    containerPort: int


class Mount(TypedDict):
    """A volume mount of a container."""

    name: str
    mountPath: str
    readOnly: NotRequired[bool]


class Amounts(TypedDict):
    """Requests and limits of a container."""

    requests: NotRequired[dict[str, str | int]]
    limits: NotRequired[dict[str, str | int]]


class Container(TypedDict):
    """A container of a pod."""

    name: str
    image: str
    command: NotRequired[list[str]]
    args: NotRequired[list[str]]
    env: NotRequired[list[Env]]
    ports: NotRequired[list[ContainerPort]]
    resources: NotRequired[Amounts]
    volumeMounts: NotRequired[list[Mount]]
    readinessProbe: NotRequired[dict[str, Any]]
    startupProbe: NotRequired[dict[str, Any]]
    livenessProbe: NotRequired[dict[str, Any]]
    terminationMessagePolicy: NotRequired[str]
    securityContext: NotRequired[dict[str, Any]]


class PodSpec(TypedDict):
    """A pod's containers, placement and volumes."""

    restartPolicy: NotRequired[Literal["Never", "OnFailure", "Always"]]
    subdomain: NotRequired[str]
    serviceAccountName: NotRequired[str]
    schedulerName: NotRequired[str]
    priorityClassName: NotRequired[str]
    affinity: NotRequired[dict[str, Any]]
    securityContext: NotRequired[dict[str, Any]]
    activeDeadlineSeconds: NotRequired[int]
    nodeSelector: NotRequired[dict[str, str]]
    tolerations: NotRequired[list[dict[str, str | int]]]
    imagePullSecrets: NotRequired[list[dict[str, str]]]
    containers: list[Container]
    volumes: NotRequired[list[dict[str, Any]]]


class PodTemplate(TypedDict):
    """A template for pods."""

    metadata: NotRequired[Metadata]
    spec: PodSpec


class KubernetesJobSpec(TypedDict):
    """``batch/v1`` Job."""

    completions: int
    parallelism: int
    completionMode: Literal["Indexed"]
    backoffLimit: NotRequired[int]
    backoffLimitPerIndex: NotRequired[int]
    maxFailedIndexes: NotRequired[int]
    activeDeadlineSeconds: NotRequired[int]
    ttlSecondsAfterFinished: NotRequired[int]
    podFailurePolicy: dict[str, Any]
    template: PodTemplate


class Object(TypedDict):
    """A Kubernetes object of any kind."""

    apiVersion: str
    kind: str
    metadata: Metadata
    spec: NotRequired[Any]
    data: NotRequired[dict[str, str]]


class ComposeService(TypedDict):
    """A service of a Compose file."""

    image: str
    hostname: NotRequired[str]
    command: NotRequired[list[str]]
    entrypoint: NotRequired[list[str]]
    environment: NotRequired[dict[str, str | None]]
    ports: NotRequired[list[str]]
    volumes: NotRequired[list[dict[str, Any]]]
    secrets: NotRequired[list[dict[str, str]]]
    configs: NotRequired[list[dict[str, str]]]
    shm_size: NotRequired[str]
    deploy: NotRequired[dict[str, Any]]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]
    restart: NotRequired[str]
    init: NotRequired[bool]
    user: NotRequired[str]


class StackService(TypedDict):
    """A service of a stack file."""

    image: str
    hostname: NotRequired[str]
    entrypoint: list[str]
    command: NotRequired[list[str]]
    environment: NotRequired[dict[str, str]]
    ports: NotRequired[list[str]]
    volumes: NotRequired[list[dict[str, Any]]]
    secrets: NotRequired[list[dict[str, str]]]
    configs: NotRequired[list[dict[str, str]]]
    labels: NotRequired[dict[str, str]]
    init: NotRequired[bool]
    healthcheck: NotRequired[dict[str, bool]]
    stop_grace_period: NotRequired[str]
    user: NotRequired[str]
    deploy: dict[str, Any]


class MarathonApp(TypedDict):
    """An app of a Marathon group."""

    id: str
    cmd: str
    cpus: float
    mem: float
    gpus: NotRequired[int]
    instances: int
    container: dict[str, Any]
    networks: list[dict[str, str]]
    portDefinitions: list[dict[str, Any]]
    requirePorts: bool
    env: dict[str, Any]
    secrets: NotRequired[dict[str, dict[str, str]]]
    labels: NotRequired[dict[str, str]]
    constraints: NotRequired[list[list[str]]]
    dependencies: NotRequired[list[str]]
    backoffSeconds: NotRequired[int]
    upgradeStrategy: NotRequired[dict[str, float]]
