package io.gridflow.adapt;

import java.util.Collections;
import java.util.Iterator;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.InternalRow;

/** What a partition has of one want. */
abstract class Gathering {
  final int place;
  private final int[] columns;
  private long rows;

  Gathering(int place, int... columns) {
    this.place = place;
    this.columns = columns;
  }

  /** Takes a row into account, unless it has a null where it matters. */
  final void add(InternalRow row) {
    for (int column : columns) {
      if (row.isNullAt(column)) {
        return;
      }
    }
    rows++;
    take(row);
  }

  /** Takes a row without nulls into account, and keeps no part of it: Spark uses it again. */
  abstract void take(InternalRow row);

  /** About how many bytes are held that can be handed over. */
  long held() {
    return 0;
  }

  /** Gives what is held, and holds it no longer. */
  Iterator<Row> handOver() {
    return Collections.emptyIterator();
  }

  /** What is no token. */
  abstract byte[] state();

  /** The last part. */
  final Row end() {
    return RowFactory.create(place, null, null, rows, 0L, state());
  }

  final long rows() {
    return rows;
  }
}
