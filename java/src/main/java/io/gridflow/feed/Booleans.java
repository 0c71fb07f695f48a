package io.gridflow.feed;

import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.Platform;

/** Booleans, a byte each while they are collected. */
final class Booleans extends Column {
  /** {@code BOOLEAN} of gridflow/_feed/normalize.py: bytes that are 0 or 1 and mean booleans. */
  private static final Map<String, String> FACTS = Map.of("gridflow.type", "bool");

  private final boolean isFinal;
  private final Memory values;
  private final Memory bits;

  Booleans(int place, String name, boolean isFinal, BufferAllocator allocator) {
    super(place, name, allocator);
    this.isFinal = isFinal;
    this.values = new Memory(allocator);
    this.bits = new Memory(allocator);
  }

  @Override
  void take(InternalRow row) {
    Platform.putByte(null, values.append(1), (byte) (row.getBoolean(place) ? 1 : 0));
  }

  @Override
  void addEmpty() {
    Platform.putByte(null, values.append(1), (byte) 0);
  }

  @Override
  boolean copy(ColumnVector vector, int first, int more) {
    if (!isPlain(vector)) {
      return false;
    }
    // Java, too, has a byte for each.
    Object copied = vector.getBooleans(first, more);
    values.append(copied, Platform.BOOLEAN_ARRAY_OFFSET, more);
    return true;
  }

  @Override
  long bytes() {
    return values.size();
  }

  @Override
  Field finish(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    finishNulls(nodes, buffers);
    if (isFinal && nulls.isEmpty()) {
      buffers.add(values.filled());
      return field(new ArrowType.Int(8, false), FACTS);
    }
    buffers.add(bits());
    return field(ArrowType.Bool.INSTANCE, Map.of());
  }

  private ArrowBuf bits() {
    bits.clear();
    long from = values.filled().memoryAddress();
    int bytes = (rows() + Byte.SIZE - 1) / Byte.SIZE;
    long to = bits.append(bytes);
    for (int i = 0; i < bytes; i++) {
      int byteOfBits = 0;
      for (int bit = 0; bit < Byte.SIZE && i * Byte.SIZE + bit < rows(); bit++) {
        byteOfBits |= Platform.getByte(null, from + (long) i * Byte.SIZE + bit) << bit;
      }
      Platform.putByte(null, to + i, (byte) byteOfBits);
    }
    return bits.filled();
  }

  @Override
  void clear() {
    super.clear();
    values.clear();
  }

  @Override
  public void close() {
    super.close();
    values.close();
    bits.close();
  }
}
