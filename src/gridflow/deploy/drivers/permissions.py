"""What a user may do on Kubernetes, asked before anything is created."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class NotAllowed(GridflowError):
    """The user lacks permissions that the job needs, so nothing was started.

    `missing` (tuple of str): Each is a resource with its verbs, such as ``pods: list``.
    """

    def __init__(self, name: str, namespace: str, missing: tuple[str, ...]) -> None:
        self.name, self.namespace, self.missing = name, namespace, missing
        super().__init__(
            f"you lack permissions in the namespace {namespace}: {'; '.join(missing)}. Nothing of "
            f"{name} was started. Ask for a Role with them, or set another namespace; 'kubectl "
            f"auth can-i --list --namespace={namespace}' prints those that you have."
        )

    def __reduce__(self) -> tuple[type[NotAllowed], tuple[str, str, tuple[str, ...]]]:
        return type(self), (self.name, self.namespace, self.missing)


def missing(
    call: Callable[..., str], namespace: str, rights: list[dict[str, str]]
) -> tuple[str, ...]:
    """Return what the user may not do, asking the server all at once.

    ``kubectl auth can-i`` asks the same way, one by one.

    `call`: Runs kubectl with these words and an input ``text``, and returns what it prints.
    `rights` (list of dict): The fields ``verb``, ``group``, ``resource`` and ``subresource`` of
        each permission.
    Returns: Each is a resource with its verbs, such as ``pods: list``. Empty if the server can't be
        asked.
    """
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": namespace, **right}},
        }
        for right in rights
    ]
    words = ("create", "--filename=-", "--output=json", "--validate=false")
    try:
        answers = call(*words, text="\n".join(map(json.dumps, reviews)))
    except GridflowError:
        return ()  # if anything else is wrong, too, the next call says so
    found: dict[str, list[str]] = {}
    for right, answer in zip(rights, _each_json(answers), strict=True):
        if not answer.get("status", {}).get("allowed", True):
            found.setdefault(_resource_of(right), []).append(right["verb"])
    return tuple(f"{resource}: {', '.join(verbs)}" for resource, verbs in found.items())


def _each_json(text: str) -> Iterator[Any]:
    """Yield the objects of a text with one after the other."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:].lstrip()


def _resource_of(right: dict[str, str]) -> str:
    resource = ".".join(filter(None, (right["resource"], right.get("group"))))
    return "/".join(filter(None, (resource, right.get("subresource"))))
