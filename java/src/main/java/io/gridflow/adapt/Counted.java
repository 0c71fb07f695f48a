package io.gridflow.adapt;

import java.util.Iterator;
import org.apache.spark.sql.Row;

/** How often each token was there. */
abstract class Counted extends Gathering {
  private final boolean needsDocuments;
  private Counts counts;

  Counted(int place, int column, boolean needsDocuments) {
    super(place, column);
    this.needsDocuments = needsDocuments;
    this.counts = new Counts(needsDocuments);
  }

  /** Counts a token of the row that is being taken. */
  final void count(Object base, long offset, int length) {
    counts.add(base, offset, length, rows());
  }

  @Override
  final long held() {
    return counts.held();
  }

  @Override
  final Iterator<Row> handOver() {
    Counts full = counts;
    counts = new Counts(needsDocuments);
    return new Iterator<>() {
      private int next;

      @Override
      public boolean hasNext() {
        return next < full.size();
      }

      @Override
      public Row next() {
        return row(full, next++);
      }
    };
  }

  /** The part that a token is. */
  abstract Row row(Counts full, int token);

  @Override
  final byte[] state() {
    return new byte[0];
  }
}
