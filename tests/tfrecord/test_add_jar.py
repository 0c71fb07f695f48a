"""The data source in a session that was given the jar by ``ADD JAR``, after it had begun."""

from __future__ import annotations

import pytest

from tfrecord.on_spark import judge

pytestmark = pytest.mark.slow


@pytest.fixture
def session(spark):
    from gridflow.tfrecord.jars import jar

    session = spark.newSession()  # it shares the executors, not the jars' loader of the driver
    session.sql(f"ADD JAR '{jar()}'")
    return session


def test_what_is_wrong_with_a_record_is_told_by_classes_that_the_driver_has(session, tmp_path):
    records = [judge.example(n=("i", [each])) for each in range(3)]
    cut, malformed = tmp_path / "cut", tmp_path / "malformed"
    for folder, these in ((cut, records), (malformed, [*records[:2], b"\x0a\x05"])):
        folder.mkdir()
        judge.write(folder / "part", these)
    data = (cut / "part").read_bytes()
    (cut / "part").write_bytes(data[:-1])

    for folder, what in ((cut, "the file ends"), (malformed, "beyond the end of its message")):
        reader = session.read.format("tfrecord")
        for action in (
            reader.schema("n bigint").load(str(folder)).collect,
            lambda reader=reader, folder=folder: reader.load(str(folder)).collect(),
        ):
            with pytest.raises(Exception) as caught:
                action()
            message = str(caught.value)
            assert what in message
            assert "record at byte" in message
            assert "UnknownReason" not in message
