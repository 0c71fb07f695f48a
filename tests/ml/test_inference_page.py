"""The page on preprocessing, inference and export does what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "inference.md"
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_the_blocks_of_the_page_run(spark, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), {"__name__": "page", "spark": spark})
    assert (tmp_path / "served" / "1" / "saved_model.pb").is_file()
    said = capfd.readouterr().out
    assert "9 tokens" in said
    assert said.count("only showing top 3 rows") == 4
