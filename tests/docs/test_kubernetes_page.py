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


def test_a_pod_that_is_evicted_has_sparks_hook_and_the_time_that_is_set(spark):
    settings = dict(line.split() for line in blocks("properties")[1].splitlines())
    of_pods = ("spark.kubernetes.", "spark.decommission.")
    pod, container = executor_pod(
        spark, {name: value for name, value in settings.items() if name.startswith(of_pods)}
    )
    hook = container.getLifecycle().getPreStop().getExec()
    assert list(hook.getCommand()) == ["/opt/decom.sh"]
    assert pod.getSpec().getTerminationGracePeriodSeconds() == 120
    pod, container = executor_pod(spark, {"spark.kubernetes.container.image": "train:1.0"})
    assert container.getLifecycle() is None
    # Whatever its template says.
    assert pod.getSpec().getTerminationGracePeriodSeconds() == 30


def executor_pod(spark, settings):
    """Return what Spark makes of settings, and a template that leaves a pod ten minutes to end."""
    jvm = spark.sparkContext._jvm
    apache, models = jvm.org.apache.spark, jvm.io.fabric8.kubernetes.api.model

    def of(package, name):
        return getattr(getattr(package, f"{name}$"), "MODULE$")

    conf, nothing = apache.SparkConf(False), jvm.scala.Option.empty()
    for name, value in {"spark.driver.host": "driver", "spark.driver.port": "7078"}.items():
        conf.set(name, value)
    for name, value in settings.items():
        conf.set(name, value)
    secret = of(apache.internal.config, "package").AUTH_SECRET_FILE_EXECUTOR()
    step = apache.deploy.k8s.features.BasicExecutorFeatureStep(
        apache.deploy.k8s.KubernetesExecutorConf(conf, "application", "1", nothing, 0),
        apache.SecurityManager(conf, nothing, secret),
        of(apache.resource, "ResourceProfile").getOrCreateDefaultProfile(conf),
    )
    template = models.PodBuilder().withNewSpec().withTerminationGracePeriodSeconds(600).endSpec()
    made = step.configurePod(
        apache.deploy.k8s.SparkPod(template.build(), models.ContainerBuilder().build())
    )
    return made.pod(), made.container()


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
