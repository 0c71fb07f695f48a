"""Tables with snapshots, written to files: again when their snapshot is another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite import sparks, tables
from suite.waiting import LONGEST

DRIVER = Path(__file__).with_name("tables_driver.py")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_is_written_again_when_its_snapshot_is_another(tmp_path, form):
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(tmp_path), form],
        env={**os.environ, **sparks.with_connectors(), "JARS": tables.jars_of_spark()},
        cwd=tmp_path,  # Derby's log
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    told = json.loads(done.stdout.splitlines()[-1])

    def seen(label):
        return told[label]["is_new"], told[label]["rows"]

    assert seen("first") == (True, 40)
    assert seen("again") == (False, 40)
    assert told["first"]["source"] == told["again"]["source"]
    # One row was deleted; Delta's files are those of before, and Iceberg tells Spark of none.
    assert told["same files"]
    assert seen("deleted") == (True, 39)
    assert told["deleted"]["source"] != told["first"]["source"]
    # A training that began with the rows of before goes on with neither.
    assert "on purpose" in told["failed"]
    assert told["old rows"].startswith("DataError: ")
    assert "have changed" in told["old rows"]
    assert told["new rows"].startswith("DataError: ")
    assert "Then: " in told["new rows"]
    assert seen("inserted") == (True, 49)
    # What a DataFrame of before reads by now is what is written, under the version that was read.
    assert told["made before"]["rows"] == told["seen before"]
    is_latest = told["seen before"] == 49
    assert (told["made before"]["source"] == told["inserted"]["source"]) == is_latest
    # An older version stays what it is, whatever becomes of the table.
    assert seen("travelled") == (True, 40)
    assert told["old"] in told["travelled"]["source"]
    assert seen("travelled again") == (False, 40)
    assert seen("travelled after a change") == (False, 40)
    assert told["counts"] == [40 if form == "delta" else 20, 59]
    assert len(set(told["keys"])) == 2
    assert seen("made anew") == (True, 40)
    assert told["made anew"]["key"] != told["first"]["key"]
