package io.gridflow.feed;

import java.util.concurrent.TimeUnit;

/**
 * Says when those who wait for rows are to get what there is: the first few batches at once, as
 * they are small, and then less and less often. Else as {@code _Pace} of spool/writer.py.
 */
final class Pace {
  private static final long LEAST_NANOS = TimeUnit.MILLISECONDS.toNanos(500);
  private static final long PART = 10;

  private static final int AT_ONCE = 4;

  private int noted;
  private long first;
  private long last;

  boolean isDue() {
    if (noted < AT_ONCE) {
      return true;
    }
    long now = System.nanoTime();
    return now - last >= Math.max(LEAST_NANOS, (now - first) / PART);
  }

  void note() {
    last = System.nanoTime();
    if (noted++ == 0) {
      first = last;
    }
  }
}
