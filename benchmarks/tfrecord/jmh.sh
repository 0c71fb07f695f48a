#!/bin/bash
# The parser alone, by JMH, which takes the arguments.
set -euo pipefail
cd "$(dirname "$0")/../../java"
"${MVN:-mvn}" -B -q test-compile dependency:build-classpath \
  -Dmdep.outputFile=target/classpath.txt -Dmdep.includeScope=test
exec java -cp "target/test-classes:target/classes:$(cat target/classpath.txt)" \
  org.openjdk.jmh.Main "${@:-ParserBenchmark}"
