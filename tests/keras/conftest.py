from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quiet_tensorflow():
    """Let it look for no GPU and make no noise, here alone: other processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        yield
