"""Makes a short job.yaml from answers to a few questions: ``gridflow init`` in a terminal.

Without a terminal it is the annotated one, `TEMPLATE`.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._files.local import replacing
from gridflow._spec.backends import BACKENDS
from gridflow._spec.cluster import CHIEF, PS, WORKER
from gridflow._spec.printable import is_terminal
from gridflow.deploy.description.description import SIDES
from gridflow.deploy.description.loading import parse_job
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.distributed import DRIVEN, cannot
from gridflow.deploy.emit import to_yaml
from gridflow.deploy.inside.terminal import paint
from gridflow.deploy.rendering import inexpressible
from gridflow.deploy.targets.registry import get_target, names
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from gridflow.deploy.targets.base import Target

    Answers = Mapping[str, str]


_EXPLAINED: Final = """\
# One job for every target: gridflow targets | explain -t TARGET | render -t TARGET job.yaml
name: flights                # a DNS label; prefix of host names
namespace: default
image: registry.example/acme/flights:1.0
command: [python, /app/train.py]
args: [--epochs, "5"]
env:                         # no secrets: use secrets: below
  TF_CPP_MIN_LOG_LEVEL: "1"

roles:                       # chief, worker, ps, evaluator, data
  worker:
    replicas: 2
    resources: {cpu: 2, memory: 4Gi}   # and gpu: 1, gpu_type: NVIDIA-A100-SXM4-40GB
  # chief: {}                # with parameter servers, the chief runs the program
  # ps: {replicas: 2}        # without its own command: a standard server
  # data: {replicas: 4}      # workers of TensorFlow's data service; adds a dispatcher

port: 2222
restart_policy: on-failure   # or never, or exit-code: only after exit codes of 128 and above
restart_limit: 3
# start_timeout: 30m         # how long tasks wait for their peers to come up; 5m by default
deadline: 2h                 # seconds, or for example 90s, 30m, 2h, 1d
# time_to_live: 1d           # how long to keep a finished job
# clean_up: running          # none, running or all: the tasks to remove at the end
# classic_flags: true        # also pass --job_name --task_index --ps_hosts --worker_hosts
# gang: {queue: research}    # start all tasks or none; also scheduler: kueue or volcano, minimum: 3

volumes:                     # each has one of pvc, empty, host, secret, config
  - {name: data, path: /data, pvc: flights-data}
  # - {name: scratch, path: /scratch, empty: 10Gi}
# shared_memory: 2Gi         # the size of /dev/shm

# secrets:
#   env: {API_TOKEN: {secret: api, key: token}}
#   files: {/etc/tls: tls}
#   image_pull: [registry]
# credentials:
#   gcs: {secret: gcs, key: key.json}
#   s3: {secret: s3, endpoint: "http://minio:9000"}

# node_selector: {disk: ssd}
# tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
# affinity: {nodeAffinity: {}}         # Kubernetes' own tree
# priority_class: high
# service_account: trainer
# run_as_user: 10001         # on Kubernetes; 0 is root
# labels: {team: flights}
# annotations: {note: anything}

tensorboard: {log_dir: /data/logs}

serve:                       # for the targets serving and kserve
  models: [{name: flights, path: /data/models/flights}]
  # batching: {max_batch_size: 32, timeout_micros: 1000}
  # monitoring: true
  # replicas: 2

notebook: {storage: 10Gi}    # for the target notebook

"""
TEMPLATE: Final = "".join(
    (
        _EXPLAINED,
        *(f"# {name}: {side.sample}\n" for name, side in SIDES.items() if side.sample),
        """\
# overrides:                 # merged into a target's documents at the end
#   kubernetes: {Job/flights-worker: {spec: {suspend: true}}}
""",
    )
)


_DEFAULT_BACKEND: Final[str] = BACKENDS[0]
_NONE: Final = "none"
_NUMBER: Final = re.compile("[0-9]{1,9}")
_CLAIM: Final = "pvc:"
_HEAD: Final = "# From gridflow init. All other fields, explained: gridflow init < /dev/null\n"
#: Targets for jobs that train: those with a command.
TRAINING_TARGETS: Final = tuple(
    dict.fromkeys((*DRIVEN, *(name for name in names() if get_target(name).trains)))
)


def _always(answers: Answers) -> bool:
    del answers
    return True


@dataclass(frozen=True)
class Question:
    """A question.

    `name`: Name of the option with the answer.
    `default`: May refer to earlier answers, such as ``{name}``.
    `is_asked`: Whether the question applies, given the earlier answers.
    """

    name: str
    text: str
    default: str
    is_asked: Callable[[Answers], bool] = _always


def _has_image(answers: Answers) -> bool:
    return "image" in _place(answers).needs


def _has_servers(answers: Answers) -> bool:
    return answers["backend"] == _DEFAULT_BACKEND


QUESTIONS: Final = (
    Question("target", f"Where it runs ({', '.join(TRAINING_TARGETS)})", TRAINING_TARGETS[0]),
    Question("name", "Name of the job", "train"),
    Question("program", "Program of each task", "python train.py"),
    Question("image", "Image with the program", "registry.example/acme/{name}:1.0", _has_image),
    Question("workers", "Workers", "2"),
    Question("gpus", "GPUs of each worker", "0"),
    Question("backend", f"Keras backend ({', '.join(BACKENDS)})", _DEFAULT_BACKEND),
    Question("ps", "Parameter servers", "0", _has_servers),
    Question("data", "Data: a folder, pvc:CLAIM, a URL like s3://…, or none", _NONE),
)


def answered(given: Answers) -> dict[str, str]:
    """Return an answer to each applicable question: given, asked for, or the default.

    Questions are printed to standard error if both standard error and standard input are terminals.

    `given` (mapping of str to str): Answers from options.
    Raises `InvalidArgument`: If a given answer is invalid, or the input has ended.
    """
    asks = can_ask()
    answers: dict[str, str] = {}
    for question in QUESTIONS:
        name = question.name
        if not question.is_asked(answers) and name not in given:
            continue
        default = question.default.format(**answers)
        if name in given:
            if reason := _problem_of(answers, name, given[name]):
                raise InvalidArgument(f"--{name}: {reason}")
            answers[name] = given[name]
        elif asks:
            answers[name] = ask(question.text, default, partial(_problem_of, answers, name))
        else:
            answers[name] = default
    return answers


def can_ask() -> bool:
    """Return whether a user can answer questions."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def ask(text: str, default: str, check: Callable[[str], str]) -> str:
    """Ask until the answer is valid; Enter selects the default.

    Raises `InvalidArgument`: If the input has ended.
    """
    while True:
        sys.stderr.write(f"{text} {paint(f'[{default}]', 'dim', sys.stderr)}: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            sys.stderr.write("\n")
            raise InvalidArgument("the input has ended, so nothing was written.")
        answer = line.strip() or default
        reason = check(answer)
        if not reason:
            return answer
        sys.stderr.write(f"  {paint(reason, 'yellow', sys.stderr)}\n")


def _problem_of(earlier: Answers, name: str, answer: str) -> str:
    return problem({**earlier, name: answer}, name)


def problem(answers: Answers, name: str) -> str:
    """Return why the latest answer is invalid; empty if it is valid."""
    if name == "target" and answers[name] not in TRAINING_TARGETS:
        hint = did_you_mean(answers[name], TRAINING_TARGETS)
        return (
            f"no job trains on {answers[name]!r}; choose from {', '.join(TRAINING_TARGETS)}.{hint}"
        )
    if name == "backend" and answers[name] not in BACKENDS:
        return f"must be one of {', '.join(BACKENDS)}, got {answers[name]!r}."
    is_needed = name == "program" or (name == "image" and _has_image(answers))
    if is_needed and not answers[name].strip():
        return "must not be empty."
    if name in {"workers", "gpus", "ps"} and not _NUMBER.fullmatch(answers[name]):
        return f"must be a whole number of up to nine digits, got {answers[name][:40]!r}."
    if name == "workers" and not int(answers[name]):
        return "must be at least 1: a job without workers doesn't train."
    if name == "ps" and int(answers[name]) and not _has_servers(answers):
        return f"parameter servers need the backend {_DEFAULT_BACKEND}."
    try:
        job = parse_job(text_of(answers))
    except (JobError, ValueError) as error:  # shlex raises ValueError
        return error.problems[0].reason if isinstance(error, JobError) else f"{error}."
    target = answers["target"]
    lost = cannot(job, target) if target in DRIVEN else inexpressible(job, get_target(target))
    return lost[0].reason if lost else ""


def text_of(answers: Answers) -> str:
    """Return the job.yaml for the answers."""
    tree: dict[str, Any] = {"name": answers.get("name", "train")}
    if "image" in answers:
        tree["image"] = answers["image"]
    tree["command"] = shlex.split(answers.get("program", "python"))
    env: dict[str, str] = {}
    if answers.get("backend", _DEFAULT_BACKEND) != _DEFAULT_BACKEND:
        env["KERAS_BACKEND"] = answers["backend"]
    volumes = _data(answers, env)
    tree |= {"env": env} if env else {}
    worker: dict[str, Any] = {"replicas": int(answers.get("workers", "1"))}
    if gpus := int(answers.get("gpus", "0")):
        worker["resources"] = {"gpu": gpus}
    tree["roles"] = {WORKER: worker}
    if servers := int(answers.get("ps", "0")):
        # The chief runs the program; workers are servers, too, as ParameterServerStrategy needs.
        worker["command"] = []
        tree["roles"] = {CHIEF: {"replicas": 1}, WORKER: worker, PS: {"replicas": servers}}
    tree |= {"volumes": volumes} if volumes else {}
    return _HEAD + to_yaml([tree])


def next_step(target: str, path: str) -> str:
    """Return the command that starts the job."""
    if target in DRIVEN:
        return f"gridflow run -t {target} {path}"
    return get_target(target).next_step(path)


def _data(answers: Answers, env: dict[str, str]) -> list[dict[str, str]]:
    """Set the variable with the data's location, and return the volume that contains it."""
    data = answers.get("data", _NONE)
    if data == _NONE:
        return []
    if data.startswith(_CLAIM):
        env["DATA"] = "/data"
        return [{"name": "data", "path": "/data", "pvc": data.removeprefix(_CLAIM)}]
    env["DATA"] = data
    if "://" in data or "volumes" in _place(answers).cannot:
        return []
    return [{"name": "data", "path": data, "host": data}]


def _place(answers: Answers) -> Target:
    target = answers["target"]
    return get_target(DRIVEN.get(target, target))


def init(arguments: argparse.Namespace) -> int:
    """Print or write a job.yaml: an annotated template, or made from answers to questions."""
    file: str | None = arguments.file
    if file is not None and (reason := _exists(file)):
        raise JobError([Problem("", reason, file)])
    given = {
        question.name: answer
        for question in QUESTIONS
        if (answer := getattr(arguments, question.name)) is not None
    }
    text, following = TEMPLATE, ""
    if given or can_ask():
        answers = answered(given)
        if file is None and can_ask() and is_terminal(sys.stdout):
            file = ask("File", "job.yaml", _exists)
        text, following = text_of(answers), next_step(answers["target"], file or "job.yaml")
    if file is None:
        sys.stdout.write(text)
        return 0
    try:
        with replacing(Path(file)) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobError([Problem("", f"can't be written: {error}", file)]) from error
    sys.stderr.write(f"wrote {file}{following and f'; start it with: {following}'}\n")
    return 0


def _exists(file: str) -> str:
    """Return why a new file can't be created; empty if it can."""
    if not os.path.lexists(file):
        return ""
    error = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
    return f"can't be written: {error}"
