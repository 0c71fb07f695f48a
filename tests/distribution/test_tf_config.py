"""TF_CONFIG and the classic flags: what is written is read back, and nobody else writes them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gridflow
from gridflow._spec.cluster import FLAGS, ClusterMember, ClusterSpec, Task, find_flags
from gridflow.errors import InvalidArgument

ADDRESSES = st.lists(
    st.from_regex(r"[a-z][a-z0-9.-]{0,9}:[1-9]\d{0,4}", fullmatch=True), max_size=3
)


@st.composite
def members(draw):
    """Any task of any cluster."""
    hosts = {role: draw(ADDRESSES) for role in ("worker", "ps")}
    hosts["chief"] = draw(ADDRESSES)[:1]
    spec = ClusterSpec({**hosts, "evaluator": ["e:1"]})
    return ClusterMember.of(spec, draw(st.sampled_from(spec.tasks)))


@given(members())
def test_what_is_written_is_read_back(member):
    assert ClusterMember.from_tf_config(member.tf_config).tf_config == member.tf_config
    by_flags = ClusterMember.from_flags(find_flags(member.flags), "the flags")
    assert (str(by_flags), by_flags.flags) == (str(member), member.flags)


def test_tensorflows_own_form():
    spec = ClusterSpec({"chief": ["a:1"], "worker": ["b:1"], "ps": [], "evaluator": ["d:1"]})
    member = ClusterMember.of(spec, Task("evaluator", 0))
    assert json.loads(member.tf_config) == {
        "cluster": {"chief": ["a:1"], "worker": ["b:1"]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_flags_without_a_role_are_refused():
    with pytest.raises(InvalidArgument, match="the options: missing --job_name; got ps_hosts"):
        ClusterMember.from_flags({"ps_hosts": "a:1"}, "the options")


def _writes_them(tree):
    """Yield the lines that build TF_CONFIG or a classic flag."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            if {"cluster", "task"} <= keys or {"type", "index"} <= keys or keys & set(FLAGS):
                yield node.lineno
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) for part in node.values if isinstance(part, ast.Constant)
            )
            if any(f"--{flag}=" in text for flag in FLAGS) or "_hosts=" in text:
                yield node.lineno


def test_one_module_writes_them():
    root = Path(gridflow.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if list(_writes_them(ast.parse(path.read_text(encoding="utf-8"))))
    }
    # The old programs' own forms are those of the old projects.
    found = {name for name in found if not name.startswith("compat/")}
    assert found == {"_spec/cluster.py"}
