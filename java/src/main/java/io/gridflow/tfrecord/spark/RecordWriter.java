package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.ExampleEncoder;
import io.gridflow.tfrecord.TFRecordWriter;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.OutputWriter;

/** Writes the rows of one task, or of one part of it, into a file. */
final class RecordWriter extends OutputWriter {
  private final String path;
  private final TFRecordWriter writer;

  /** Null if the rows' one column is the record. */
  private final RowEncoder encoder;

  RecordWriter(String path, OutputStream out, RowEncoder encoder) {
    this.path = path;
    this.writer = new TFRecordWriter(out);
    this.encoder = encoder;
  }

  @Override
  public void write(InternalRow row) {
    try {
      if (encoder == null) {
        if (row.isNullAt(0)) {
          throw new IllegalArgumentException(
              "with recordType ByteArray a row is a record, so it can't be null; filter the nulls"
                  + " before writing.");
        }
        writer.write(row.getBinary(0));
      } else {
        ExampleEncoder record = encoder.encode(row);
        writer.write(record.buffer(), record.offset(), record.length());
      }
    } catch (IOException e) {
      throw Failures.unchecked("writing " + path + ": " + e.getMessage(), e);
    }
  }

  @Override
  public void close() {
    try {
      writer.close();
    } catch (IOException e) {
      throw Failures.unchecked("closing " + path + ": " + e.getMessage(), e);
    }
  }

  @Override
  public String path() {
    return path;
  }
}
