"""Checks the cluster spec in rendered variables, and the pods' host names."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.cluster import CHIEF, EVALUATOR, ROLES, TF_CONFIG, facts_of
from gridflow.deploy.description import rules

if TYPE_CHECKING:
    from gridflow.deploy.lint.report import LintReport

_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def check_cluster(report: LintReport, path: str, env: dict[str, str]) -> None:
    """Check ``GRIDFLOW_CLUSTER`` and ``TF_CONFIG`` among a task's variables."""
    for name in ("GRIDFLOW_CLUSTER", TF_CONFIG):
        if not env.get(name):
            continue
        try:
            tree = json.loads(env[name])
        except json.JSONDecodeError as error:
            report.add(path, f"{name} is not valid JSON: {error}.")
            continue
        cluster = tree.get("cluster") if name == TF_CONFIG and isinstance(tree, dict) else tree
        if not isinstance(cluster, dict) or not all(isinstance(h, list) for h in cluster.values()):
            report.add(path, f"{name} must be a mapping of roles to addresses, got {cluster!r}.")
            continue
        _check_roles(report, path, name, cluster)
        role, index = env.get("GRIDFLOW_ROLE"), env.get("GRIDFLOW_INDEX")
        if role and role not in ROLES:
            report.add(path, f"GRIDFLOW_ROLE must be one of {', '.join(ROLES)}, got {role!r}.")
        elif role and facts_of(role).is_in_cluster and index and _NUMBER.fullmatch(index):
            known = range(len(cluster.get(role, ())))
            absent = f"{role}:{index} isn't in the cluster spec of {name}."
            report.add(path, None if int(index) in known else absent)


def _check_roles(report: LintReport, path: str, name: str, cluster: dict[str, list[Any]]) -> None:
    if EVALUATOR in cluster:
        report.add(path, f"{name} must not have the evaluator in the cluster.")
    if len(cluster.get(CHIEF, ())) > 1:
        report.add(path, f"{name} has {len(cluster[CHIEF])} chiefs; a cluster has at most one.")
    everyone = [str(address) for hosts in cluster.values() for address in hosts]
    for address in everyone:
        host, _, port = address.rpartition(":")
        if not host or not _NUMBER.fullmatch(port) or rules.port_number(int(port)):
            report.add(path, f"{name} has {address!r}; an address is host:port.")
            continue
        check_host(report, path, host)
        if everyone.count(address) > 1:
            report.add(path, f"{name} has {address!r} twice.")


def check_host(report: LintReport, path: str, host: str) -> None:
    """Check each label of a task's host name."""
    for label in host.split("."):
        if reason := rules.dns_label(label):
            report.add(
                path, f"the host name {host!r} can't exist: {reason} Shorten the job's name."
            )


def check_pod_host(report: LintReport, path: str, host: str) -> None:
    """Check the host name that an operator will give a pod."""
    if len(host) > rules.MAX_LABEL:
        reason = f"its pods would be named {host!r}, {len(host)} characters; "
        report.add(path, reason + f"a host name has at most {rules.MAX_LABEL}. Shorten the name.")
