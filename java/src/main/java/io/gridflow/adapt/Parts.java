package io.gridflow.adapt;

import java.util.Collections;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * The parts of a partition: tokens as soon as they are too many to be held, the rest at its end.
 */
final class Parts implements Iterator<Row> {
  /** Bytes of tokens that a task holds: a small part of what Spark leaves to users' objects. */
  private static final long MOST_BYTES = 1L << 25;

  private final Iterator<InternalRow> rows;
  private final Gathering[] gathered;
  private final long most;
  private Iterator<Row> ready = Collections.emptyIterator();
  private int ended;
  private boolean isEnded;

  Parts(Iterator<InternalRow> rows, Gathering[] gathered) {
    this(rows, gathered, MOST_BYTES);
  }

  Parts(Iterator<InternalRow> rows, Gathering[] gathered, long most) {
    this.rows = rows;
    this.gathered = gathered;
    this.most = most;
  }

  @Override
  public boolean hasNext() {
    while (!ready.hasNext()) {
      if (takeUntilTooMuchIsHeld()) {
        ready = largest().handOver();
      } else if (ended == gathered.length) {
        return false;
      } else if (isEnded) {
        ready = Collections.singleton(gathered[ended++].end()).iterator();
        isEnded = false;
      } else {
        ready = gathered[ended].handOver();
        isEnded = true;
      }
    }
    return true;
  }

  @Override
  public Row next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    return ready.next();
  }

  private boolean takeUntilTooMuchIsHeld() {
    while (rows.hasNext()) {
      InternalRow row = rows.next();
      long held = 0;
      for (Gathering each : gathered) {
        each.add(row);
        held += each.held();
      }
      if (held > most) {
        return true;
      }
    }
    return false;
  }

  private Gathering largest() {
    Gathering largest = gathered[0];
    for (Gathering each : gathered) {
      if (each.held() > largest.held()) {
        largest = each;
      }
    }
    return largest;
  }
}
