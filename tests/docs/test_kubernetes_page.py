"""The page on Spark on Kubernetes: its documents, and its settings, by what knows them."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pyspark
import yaml
from documents import ROOT

from gridflow.deploy.validation import validate

TEXT = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_its_documents_are_valid():
    documents = {each["kind"]: each for each in map(yaml.safe_load, blocks("yaml"))}
    assert set(documents) == {"Service", "Pod", "NetworkPolicy"}
    del documents["NetworkPolicy"]  # no target makes one
    # A pod's template is no document of ours; a Job holds one.
    pod = documents.pop("Pod")
    template = {"spec": {**pod["spec"], "restartPolicy": "Never"}}
    documents["Job"] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pod["metadata"],
        "spec": {"template": template},
    }
    for kind, document in documents.items():
        found = validate("kubernetes", yaml.safe_dump(document))
        assert not found.problems, (kind, found.problems)


def test_its_settings_are_spark_s_own():
    """Spark ignores a misspelt one without a word."""
    named = set(re.findall(r"\bspark\.[a-z][\w.]*\w", TEXT))
    assert len(named) > 15
    jars = Path(pyspark.__file__).parent / "jars"
    known = b""
    for jar, folder in (
        ("spark-core_*.jar", "org/apache/spark/internal/config/"),
        ("spark-core_*.jar", "org/apache/spark/SparkConf"),
        ("spark-kubernetes_*.jar", "org/apache/spark/deploy/k8s/Config"),
        ("spark-common-utils_*.jar", "org/apache/spark/"),
        ("spark-network-common_*.jar", "org/apache/spark/network/util/"),
    ):
        for path in jars.glob(jar):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.startswith(folder)]
                known += b"".join(archive.read(name) for name in names)
    # Of these Spark knows the beginning.
    free = r"(spark\.kubernetes\.(?:driver|executor)\.label\.)\w+"
    account = r"(spark\.kubernetes\.authenticate\.driver)\.serviceAccountName"
    named = {re.sub(f"{free}|{account}", r"\1\2", name) for name in named}
    assert [name for name in sorted(named) if name.encode() not in known] == []
