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

/** Numbers, days and moments. */
final class Numbers extends Column {
  private final Kind kind;
  private final ArrowType type;
  private final boolean isFinal;
  private final Memory values;

  Numbers(
      int place,
      String name,
      Kind kind,
      ArrowType type,
      boolean isFinal,
      BufferAllocator allocator) {
    super(place, name, allocator);
    this.kind = kind;
    this.type = type;
    this.isFinal = isFinal;
    this.values = new Memory(allocator);
  }

  @Override
  void take(InternalRow row) {
    kind.put(row, place, values.append(kind.width));
  }

  @Override
  void addEmpty() {
    Platform.setMemory(null, values.append(kind.width), kind.width, (byte) 0);
  }

  @Override
  boolean copy(ColumnVector vector, int first, int more) {
    long address = values.append((long) more * kind.width);
    if (isPlain(vector)) {
      kind.copy(vector, first, more, address);
    } else {
      for (int i = 0; i < more; i++) {
        kind.put(vector, first + i, address + (long) i * kind.width);
      }
    }
    return true;
  }

  @Override
  long bytes() {
    return values.size();
  }

  @Override
  Field finish(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    finishNulls(nodes, buffers);
    buffers.add(values.filled());
    // A null has to be filled by the user's value, which is of the column's own type.
    return field(isFinal && nulls.isEmpty() ? kind.type() : type, Map.of());
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
  }
}
