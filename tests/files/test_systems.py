"""Paths and file systems: what is complete, what is found, and what an error says."""

from __future__ import annotations

import os

import fsspec
import pytest
from pyarrow import fs

from gridflow._files.listing import find
from gridflow._files.systems import absolute_path, where
from gridflow.errors import GridflowError, InvalidArgument, MissingDependency

HDFS = "hdfs://name:8020/user/me"


@pytest.mark.parametrize(
    ("path", "base", "complete"),
    [
        ("x", HDFS, "hdfs://name:8020/user/me/x"),
        ("/x", HDFS, "hdfs://name:8020/x"),
        ("hdfs:///x", HDFS, "hdfs://name:8020/x"),
        ("hdfs://other/x", HDFS, "hdfs://other/x"),
        ("file:///x", HDFS, "/x"),
        ("file:/x", HDFS, "/x"),
        ("s3a://bucket/x", HDFS, "s3a://bucket/x"),
        ("abfss://c@a.dfs.core.windows.net/x", HDFS, "abfss://c@a.dfs.core.windows.net/x"),
        ("viewfs:///x", HDFS, "viewfs:///x"),
        ("any+thing://x/y", HDFS, "any+thing://x/y"),
        ("x", "/home/me", "/home/me/x"),
        ("x", "file:///home/me", "/home/me/x"),
        ("/x", "/home/me", "/x"),
        ("a:b", "/home/me", "/home/me/a:b"),
        ("x", "s3a://bucket", "s3a://bucket/x"),
        ("/x", "s3a://bucket", "s3a://bucket/x"),
    ],
)
def test_a_path_is_completed_by_the_default_file_system(path, base, complete):
    assert absolute_path(path, base) == complete


def test_an_empty_path_is_refused():
    with pytest.raises(InvalidArgument, match="non-empty"):
        absolute_path("", "/")


def test_the_scheme_decides_the_file_system_and_paths_come_back_complete(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = where("s3a://bucket/a/b")
    assert isinstance(found.system, fs.S3FileSystem)
    assert found.path == "bucket/a/b"
    assert found.complete("bucket/a/c") == "s3a://bucket/a/c"
    options = {"account_name": "me", "account_key": "a2V5"}
    found = where("abfss://box@me.dfs.core.windows.net/a", options)
    assert found.path == "box/a"
    assert found.complete("box/a/b") == "abfss://box@me.dfs.core.windows.net/a/b"
    assert where("/a/b").complete("/a/c") == "/a/c"
    memory = where("memory://a/b")
    assert memory.complete(memory.path) == "memory://a/b"


def test_a_file_system_may_be_given(tmp_path):
    (tmp_path / "x").write_text("x")
    for given in (fs.LocalFileSystem(), fsspec.filesystem("file")):
        (found,) = find(tmp_path / "x", "/", given)
        assert found.path == str(tmp_path / "x")
    with pytest.raises(InvalidArgument, match=r"pyarrow\.fs\.FileSystem, an fsspec file system"):
        find(tmp_path / "x", "/", "s3")


def test_what_is_missing_is_named(monkeypatch):
    with pytest.raises(InvalidArgument, match="'nowhere'.*hdfs.*s3"):
        where("nowhere://x")
    with pytest.raises(InvalidArgument, match="doesn't match s3 paths.*tea"):
        where("s3://bucket", {"tea": 1})
    with pytest.raises(MissingDependency, match="gs|gcs|oss"):
        where("oss://bucket/x")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"gridflow\[hdfs\].*HADOOP_HOME"):
        where("hdfs://name-of-no-host/x")


def test_in_a_container_of_yarn_hdfs_is_what_the_submitter_knows(monkeypatch, tmp_path):
    for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "CONTAINER_ID"):
        monkeypatch.setenv(name, "")  # so that it is as it was after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_USER", "me")
    with pytest.raises(GridflowError, match="can't open hdfs://only-here: .*NameNode"):
        where("hdfs://only-here/x")
    assert "HADOOP_USER_NAME" not in os.environ  # it is no container
    brought = tmp_path / "__spark_conf__" / "__hadoop_conf__"
    brought.mkdir(parents=True)
    named = {
        "dfs.ha.namenodes.only-here": "one",
        "dfs.namenode.rpc-address.only-here.one": "127.0.0.1:1",
    }
    lines = [f"<property><name>{n}</name><value>{v}</value></property>" for n, v in named.items()]
    (brought / "hdfs-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    monkeypatch.setenv("CONTAINER_ID", "container_1_1_1_2")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "container_tokens"))
    assert where("hdfs://only-here/x").path == "/x"
    assert os.environ["HADOOP_USER_NAME"] == "me"
    monkeypatch.setenv("HADOOP_CONF_DIR", "/what/was/given")
    where("hdfs://127.0.0.1:2/x")
    assert os.environ["HADOOP_CONF_DIR"] == "/what/was/given"


def test_folders_patterns_and_lists_are_found_in_order(tmp_path):
    names = ["b/2.parquet", "b/1.parquet", "b/_SUCCESS", "b/.crc", "c/_x/y", "d/e/f/3.parquet", "z"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def names_of(*paths):
        return [f.path[len(str(tmp_path)) + 1 :] for f in find(list(paths), str(tmp_path))]

    assert names_of("b") == ["b/1.parquet", "b/2.parquet"]
    assert names_of("b/*.parquet", "z", "b/1.parquet") == ["b/1.parquet", "b/2.parquet", "z"]
    assert names_of("**/*.parquet") == ["b/1.parquet", "b/2.parquet", "d/e/f/3.parquet"]
    assert names_of("d/**") == ["d/e/f/3.parquet"]
    assert names_of("[bd]") == names_of("**/[0-9].parquet")
    assert names_of("c/_x") == ["c/_x/y"]
    for missing in ("nothing", "b/*.csv", "c"):
        with pytest.raises(InvalidArgument, match="no files at"):
            names_of(missing)
    with pytest.raises(InvalidArgument, match="list of paths is empty"):
        find([], "/")
    with pytest.raises(InvalidArgument, match="a list of strings; got None"):
        find(None, "/")


def test_a_store_that_does_not_answer_is_an_error_with_its_name(monkeypatch):
    options = {"endpoint_override": "127.0.0.1:1", "scheme": "http", "access_key": "a"}
    options |= {"secret_key": "b", "connect_timeout": 0.2, "region": "us-east-1"}
    options["retry_strategy"] = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    with pytest.raises(GridflowError, match="can't list s3://bucket/x"):
        find("s3://bucket/x", "/", options)
