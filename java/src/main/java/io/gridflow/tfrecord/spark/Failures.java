package io.gridflow.tfrecord.spark;

import java.io.IOException;
import java.io.UncheckedIOException;

/**
 * Errors as Spark may carry them to its driver.
 *
 * <p>After {@code ADD JAR} the thread in the driver that reads a task's error knows no class of
 * this jar, and Spark would say {@code UnknownReason} in place of all of it.
 */
final class Failures {
  private Failures() {}

  /** Returns an error with a message and a cause, all of classes that any driver has. */
  static UncheckedIOException unchecked(String message, IOException cause) {
    return new UncheckedIOException(message, portable(cause));
  }

  /** Returns an error, or one that says the same where it or a cause of it is this jar's. */
  static IOException portable(IOException error) {
    for (Throwable each = error; each != null; each = each.getCause()) {
      if (each.getClass().getName().startsWith("io.gridflow.")) {
        IOException same = new IOException(error.getMessage());
        same.setStackTrace(error.getStackTrace());
        return same;
      }
    }
    return error;
  }
}
