"""The main job on the other versions of Python that are supported, with the newest Spark."""

from __future__ import annotations

import pytest
from test_spark_releases import expected_of, told_by

from suite import pythons
from suite.sparks import VERSIONS as SPARKS

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_a_keras_model_is_trained_by_another_python(version, tmp_path):
    python = pythons.environment(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    found = told_by(python, SPARKS[-1], tmp_path)
    assert [each.rpartition(".")[0] for each in found.pop("python")] == [version] * 3
    assert found == expected_of(SPARKS[-1])
