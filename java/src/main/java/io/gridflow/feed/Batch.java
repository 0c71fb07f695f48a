package io.gridflow.feed;

import java.io.IOException;
import java.nio.channels.WritableByteChannel;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Some columns of rows, collected as Arrow has them, until they are written. */
public final class Batch implements AutoCloseable {
  /** What Arrow wants to know of a batch; its memory is the columns'. */
  record Written(Schema schema, ArrowRecordBatch batch) implements AutoCloseable {
    @Override
    public void close() {
      batch.close();
    }
  }

  private final List<Column> columns;
  private int rows;

  /**
   * Of columns, no rows so far.
   *
   * @param schema of the rows
   * @param places the columns' places in them
   * @param names the columns' names as written
   * @param timeZone the session's
   * @param isFinal see {@link Segments}
   * @param allocator of the memory
   */
  public Batch(
      StructType schema,
      List<Integer> places,
      List<String> names,
      String timeZone,
      boolean isFinal,
      BufferAllocator allocator) {
    columns = Column.of(schema, places, names, timeZone, isFinal, allocator);
  }

  /** Takes a row, and keeps no part of it: Spark uses it again. */
  public void add(InternalRow row) {
    for (Column column : columns) {
      column.add(row);
    }
    rows++;
  }

  /** Takes some rows. */
  void add(ColumnarBatch batch, int first, int more) {
    for (Column column : columns) {
      column.add(batch, first, more);
    }
    rows += more;
  }

  /** How many rows were taken. */
  public int rows() {
    return rows;
  }

  /** About how many bytes they have. */
  public long bytes() {
    long bytes = 0;
    for (Column column : columns) {
      bytes += column.bytes();
    }
    return bytes;
  }

  Written finish() {
    List<Field> fields = new ArrayList<>();
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<ArrowBuf> buffers = new ArrayList<>();
    for (Column column : columns) {
      fields.add(column.finish(nodes, buffers));
    }
    return new Written(new Schema(fields), new ArrowRecordBatch(rows, nodes, buffers));
  }

  /** Writes the rows as a stream of Arrow's; returns how many bytes it has. */
  public long write(WritableByteChannel channel) throws IOException {
    WriteChannel written = new WriteChannel(channel); // closing it would close the channel
    try (Written all = finish()) {
      MessageSerializer.serialize(written, all.schema());
      MessageSerializer.serialize(written, all.batch());
    }
    return written.getCurrentPosition();
  }

  /** Forgets the rows. */
  public void clear() {
    columns.forEach(Column::clear);
    rows = 0;
  }

  @Override
  public void close() {
    columns.forEach(Column::close);
  }
}
