package io.gridflow.feed;

import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Values of any other type, which Spark writes. */
final class Others extends Column {
  private static final long UNKNOWN_BYTES = 64;

  private final ArrowWriter writer;
  private final DataType type;
  private final GenericInternalRow value = new GenericInternalRow(1);
  private ArrowRecordBatch written;
  private long bytes;

  Others(int place, String name, DataType type, String timeZone, BufferAllocator allocator) {
    super(place, name, allocator);
    StructType schema = new StructType().add(name, type, true);
    writer = ArrowWriter.create(schema, timeZone, true, false);
    this.type = type;
  }

  @Override
  void take(InternalRow row) {
    value.update(0, row.get(place, type));
    writer.write(value);
    bytes += row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : UNKNOWN_BYTES;
  }

  @Override
  void addNull(InternalRow row) {
    take(row);
  }

  @Override
  void addEmpty() {
    throw new IllegalStateException("Spark writes its own nulls");
  }

  @Override
  long bytes() {
    return bytes;
  }

  @Override
  Field finish(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    writer.finish();
    FieldVector vector = writer.root().getVector(0);
    written = new VectorUnloader(writer.root()).getRecordBatch();
    nodes.addAll(written.getNodes());
    buffers.addAll(written.getBuffers());
    return vector.getField();
  }

  @Override
  void clear() {
    super.clear();
    release();
    writer.reset();
    bytes = 0;
  }

  private void release() {
    if (written != null) {
      written.close();
      written = null;
    }
  }

  @Override
  public void close() {
    super.close();
    release();
    writer.root().close();
  }
}
