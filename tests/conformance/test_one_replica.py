"""The table on gridflow's own strategy, which will replace TensorFlow's."""

from __future__ import annotations

import pytest

from gridflow._keras import group
from gridflow.testing import conformance

pytestmark = pytest.mark.slow
OPTIONS = {"in_full": True, "models": 1, "steps": True, "weights": True}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
def test_each_process_is_one_replica(flavour, tmp_path, monkeypatch):
    expected = conformance.run_plain(flavour, tmp_path, **OPTIONS)
    monkeypatch.setenv(group.VARIABLE, "1")
    found = conformance.run_column(
        "multi_worker_mirrored", flavour, expected, tmp_path / "shared", **OPTIONS
    )
    assert {cell: outcome for cell, outcome in found.items() if not outcome.passed} == {}
    assert len(found) > 20
