package io.gridflow.inference;

import java.lang.reflect.Constructor;
import java.util.Arrays;
import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.api.python.PythonException;

/** What a model raises, as Spark says what a Python function raises. */
final class Failures {
  private static final String WHAT = "An exception was thrown from the Python worker";

  private Failures() {}

  static RuntimeException ofPython(String traceback) {
    RuntimeException error = made(traceback);
    // Spark 4.0 and 4.1 know what a Python function raises by the package of who calls one.
    StackTraceElement[] trace = error.getStackTrace();
    StackTraceElement[] more = Arrays.copyOf(trace, trace.length + 1);
    more[trace.length] =
        new StackTraceElement("org.apache.spark.sql.execution.python.Predict", "call", null, -1);
    error.setStackTrace(more);
    return error;
  }

  private static RuntimeException made(String traceback) {
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
