package io.gridflow.inference;

import java.lang.reflect.Constructor;
import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.api.python.PythonException;

/** What a model raises, as Spark says what a Python function raises. */
final class Failures {
  private static final String WHAT = "An exception was thrown from the Python worker";

  private Failures() {}

  static RuntimeException ofPython(String traceback) {
    try {
      for (Constructor<?> each : PythonException.class.getConstructors()) {
        Class<?>[] types = each.getParameterTypes();
        if (types.length == 2) { // Spark 4.0
          return (RuntimeException) each.newInstance(traceback, null);
        } else if (types.length == 5 && types[1] == scala.collection.immutable.Map.class) {
          return (RuntimeException)
              each.newInstance(
                  "PYTHON_EXCEPTION",
                  Scala.map(Map.of("msg", WHAT, "traceback", traceback)),
                  null,
                  new QueryContext[0],
                  "");
        }
      }
    } catch (ReflectiveOperationException | RuntimeException other) {
      // A version of Spark that has neither: its text is what matters.
    }
    return new RuntimeException(WHAT + ": " + traceback);
  }
}
