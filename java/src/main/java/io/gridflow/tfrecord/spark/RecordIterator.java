package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.hadoop.RecordFile;
import java.io.Closeable;
import java.io.IOException;
import java.util.NoSuchElementException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import scala.collection.AbstractIterator;

/** The rows of one range of a file. */
final class RecordIterator extends AbstractIterator<InternalRow> implements Closeable {
  private final RecordFile records;
  private final RowReader rows;
  private final Options.Mode mode;
  private final String file;
  private UnsafeRow next;
  private boolean closed;

  RecordIterator(RecordFile records, RowReader rows, Options.Mode mode, String file) {
    this.records = records;
    this.rows = rows;
    this.mode = mode;
    this.file = file;
  }

  @Override
  public boolean hasNext() {
    if (next == null && !closed) {
      next = advance();
      if (next == null) {
        close();
      }
    }
    return next != null;
  }

  @Override
  public InternalRow next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    UnsafeRow row = next;
    next = null;
    return row;
  }

  private UnsafeRow advance() {
    while (true) {
      try {
        return records.next() ? rows.read(records.record()) : null;
      } catch (IOException e) {
        if (mode == Options.Mode.FAILFAST || !RowReader.isOfOneRecord(e)) {
          throw Failures.unchecked(
              String.format(
                  "%s, in %s, record at byte %d",
                  e.getMessage(), file, records.record().recordPosition()),
              e);
        }
        if (mode == Options.Mode.PERMISSIVE) {
          return rows.corrupt(records.record());
        }
      }
    }
  }

  @Override
  public void close() {
    if (!closed) {
      closed = true;
      try {
        records.close();
      } catch (IOException e) {
        throw Failures.unchecked("closing " + file + ": " + e.getMessage(), e);
      }
    }
  }
}
