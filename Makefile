# The one door to everything: `make help` lists it.
SHELL := /bin/bash
PY    := .venv/bin/python

.PHONY: help setup torch connect sparks pythons hadoop kafka tables classes examples browser demo test test-all record quick lint conformance simulate chaos next matrix bench docs dist release clean
help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: .venv/.ready  ## the virtual environment, made by uv (installed here when it is missing)
.venv/.ready: pyproject.toml requirements/constraints.txt scripts/setup.sh $(wildcard src/gridflow/_collectives/native/*.[ch])
	@bash scripts/setup.sh
	@touch $@

# Only the tests need it, and it brings gigabytes of libraries for GPUs.
torch: .venv/.torch  ## torch, for the tests of that backend
.venv/.torch: .venv/.ready
	@bash scripts/setup.sh torch
	@touch $@

demo: setup  ## a Spark cluster, 336,776 flights, a Keras model on two workers
	@$(PY) -m gridflow.demo --output build/demo

# In a folder of their own: Keras imports them wherever it finds them, which takes each training
# process a third longer to start.
examples: .cache/.examples  ## matplotlib, scikit-learn and notebooks' kernels, for the examples
.cache/.examples: .venv/.ready pyproject.toml
	@bash scripts/setup.sh examples
	@touch $@

connect: .cache/.connect  ## what Spark Connect needs besides Spark, for its tests
.cache/.connect: tests/suite/sparks.py .venv/.ready
	@$(PY) tests/suite/sparks.py
	@touch $@

# Other versions of Spark, that the tests try the TFRecord jar with.
sparks: .cache/.sparks  ## the other versions of Spark that make test-all tries
.cache/.sparks: tests/suite/sparks.py .cache/.connect
	@$(PY) tests/suite/sparks.py all
	@touch $@

pythons: .cache/.pythons  ## environments of other Pythons that this machine has, for make test-all
.cache/.pythons: tests/suite/pythons.py pyproject.toml .venv/.ready
	@$(PY) tests/suite/pythons.py
	@touch $@

# HDFS and YARN, that the tests read from, write to and run on.
hadoop: .cache/.hadoop  ## HDFS's and YARN's daemons, for the tests of files and of YARN
.cache/.hadoop: tests/suite/hadoop/pom.xml tests/suite/stores.py .venv/.ready
	@PYTHONPATH=tests $(PY) -m suite.stores
	@touch $@

# What the tests of streams read from, beside files.
kafka: .cache/.kafka  ## a broker of Kafka and Spark's source of its topics, for the tests of streams
.cache/.kafka: tests/suite/kafka_jars/pom.xml tests/suite/kafka.py .venv/.ready
	@PYTHONPATH=tests $(PY) -m suite.kafka
	@touch $@

# What the test of tables with snapshots reads.
tables: .cache/.tables  ## Delta and Iceberg, for the test of materialized tables
.cache/.tables: tests/suite/table_jars/pom.xml tests/suite/tables.py .venv/.ready
	@PYTHONPATH=tests $(PY) -m suite.tables
	@touch $@

browser: setup  ## Chromium, for the tests of the site: Debian's, where there is none
	@$(PY) tests/suite/browser.py

# Java starts Spark with half of the work.
classes: .cache/classes.jsa  ## Spark's Java classes, loaded and checked once for all tests
.cache/classes.jsa: tests/suite/classes.py .venv/.ready
	@mkdir -p .cache
	@$(PY) tests/suite/classes.py $@ > /dev/null 2>&1 || { echo "no $@: tests are slower"; }

# Where it is set, as in many images, pytest compiles all tests anew in each of its processes.
unexport PYTHONDONTWRITEBYTECODE
# Three tests at a time, as much of a test is waiting, in the order and the groups of tests/suite/schedule.py.
# A test whose process has ended (tests/suite/deadline.py) is run again in a new one: once is enough.
AT_ONCE := -n 3 --dist loadgroup --no-loadscope-reorder --max-worker-restart=1

TESTED := torch examples jar connect hadoop classes browser .venv/.docs
WITH_PRODUCTS := $(TESTED) sparks pythons kafka tables

test:  ## each feature once; CHANGED=1: what the last changes concern
	@$(MAKE) --no-print-directory -j 2 $(TESTED)
	$(PY) -m pytest $(AT_ONCE) $(if $(CHANGED),--changed=$(CHANGED)) $(OPTIONS)

test-all:  ## everything, on all versions; PART=2/10: one of ten parts, for the background
	@$(MAKE) --no-print-directory -j 2 $(WITH_PRODUCTS)
	$(PY) -m pytest $(AT_ONCE) --all $(if $(PART),--part=$(PART)) $(OPTIONS)

record: override OPTIONS += --record  ## how long all tests take, into tests/durations.json; PART= as above
record: test-all

quick: setup  ## what needs neither Spark nor TensorFlow: while writing
	$(PY) -m pytest $(AT_ONCE) --quick

lint: setup  ## ruff, mypy, and what may import what
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

conformance: torch  ## Keras API x strategy x flavour against one process, max |dw| per cell
	PYTHONPATH=tests $(PY) -m conformance.table

simulate: setup  ## jobs in a simulated world, with the product's own decisions: 100,000 seeds; OPTIONS="--seed 7"
	PYTHONPATH=tests $(PY) -m simulation $(OPTIONS)

chaos: setup  ## real jobs whose processes are killed, stopped, starved: 200 runs, in the background; OPTIONS="--runs 10"
	PYTHONPATH=tests $(PY) -m chaos $(OPTIONS)

next: .venv/.ready jar  ## what the coming Keras, TensorFlow, JAX, pandas and Spark change, in one table; OPTIONS="keras jax"
	@$(PY) scripts/next.py $(OPTIONS)

matrix: .venv/.ready jar  ## the versions that people have, tried pairwise: the table of docs/versions.md; OPTIONS=--plan
	@$(PY) scripts/matrix.py $(OPTIONS)

docs: .venv/.docs  ## the documentation as a site in build/site, every link checked
	.venv/bin/mkdocs build --strict --quiet
.venv/.docs: .venv/.ready pyproject.toml
	@PATH=$$PATH:$$PWD/.tools/bin uv pip install --quiet --python $(PY) --group docs
	@touch $@

docs-release: .venv/.docs  ## the site of a release, beside earlier ones in the branch gh-pages: make docs-release VERSION=0.2.0
	@$(PY) scripts/docs_release.py $(or $(VERSION),$(error which one? make docs-release VERSION=0.2.0))

dist: setup  ## wheel, sdist, bill of materials and sums of a release, built twice and tried on each Python
	$(PY) scripts/dist.py $(OPTIONS)

release: setup  ## commit, tag and dist/ of a version: make release VERSION=0.2.0; OPTIONS=--dry-run shows the notes
	@$(PY) scripts/release.py $(or $(VERSION),$(error which one? make release VERSION=0.2.0)) $(OPTIONS)

bench: setup  ## gridflow beside what a user would pick instead
	$(PY) benchmarks/run.py

clean:  ## everything that make made
	rm -rf .venv .tools .cache build dist

-include make/*.mk
