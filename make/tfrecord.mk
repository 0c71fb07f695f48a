# The jar for Spark and Hadoop, by Maven.
JAR := java/target/gridflow-tfrecord.jar
MVN ?= mvn

.PHONY: jar test-java bench-tfrecord
jar: $(JAR)  ## the TFRecord jar for Spark and Hadoop
$(JAR): java/pom.xml $(shell find java/src/main -type f)
	$(MVN) -B -q -f java/pom.xml package -Dmaven.test.skip=true

test-java:  ## the jar's own tests (JUnit)
	$(MVN) -B -f java/pom.xml spotless:check test

bench-tfrecord: examples jar  ## TFRecord in Spark beside Parquet and the Hadoop format
	PYTHONPATH=$(CURDIR)/.cache/examples $(PY) benchmarks/tfrecord/run.py
