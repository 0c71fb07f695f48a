package io.gridflow.feed;

import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.Platform;

/** Arrays of numbers. */
final class Arrays extends Column {
  private final Kind kind;
  private final boolean isFinal;
  private final Memory ends;
  private final Memory items;
  private final Nulls noItems;

  /** Items so far. */
  private int end;

  /** Of every array so far; -1: they differ, or one is null. */
  private int length;

  Arrays(int place, String name, Kind kind, boolean isFinal, BufferAllocator allocator) {
    super(place, name, allocator);
    this.kind = kind;
    this.isFinal = isFinal;
    this.ends = new Memory(allocator);
    this.items = new Memory(allocator);
    this.noItems = new Nulls(allocator);
    ends.appendInt(0);
  }

  /** The kind of an array's items, null where they aren't plain numbers. */
  static Kind kind(ArrayType type) {
    return type.elementType() instanceof DateType
            || type.elementType() instanceof TimestampType
            || type.elementType() instanceof TimestampNTZType
        ? null
        : Kind.of(type.elementType());
  }

  @Override
  void take(InternalRow row) {
    ArrayData array = row.getArray(place);
    int count = array.numElements();
    long address = items.append((long) count * kind.width);
    if (array instanceof UnsafeArrayData unsafe && !hasNull(unsafe)) {
      long header = UnsafeArrayData.calculateHeaderPortionInBytes(count);
      Platform.copyMemory(
          unsafe.getBaseObject(),
          unsafe.getBaseOffset() + header,
          null,
          address,
          (long) count * kind.width);
    } else {
      for (int i = 0; i < count; i++) {
        long at = address + (long) i * kind.width;
        if (array.isNullAt(i)) {
          noItems.set(end + i);
          Platform.setMemory(null, at, kind.width, (byte) 0);
        } else {
          kind.put(array, i, at);
        }
      }
    }
    addEnd(count, rows());
  }

  @Override
  void addEmpty() {
    addEnd(0, rows());
    length = -1;
  }

  private void addEnd(int count, int before) {
    if (before == 0) {
      length = count;
    } else if (length != count) {
      length = -1;
    }
    end = Math.addExact(end, count);
    ends.appendInt(end);
  }

  private static boolean hasNull(UnsafeArrayData array) {
    long words = (array.numElements() + 63L) / Long.SIZE;
    long bits = array.getBaseOffset() + Long.BYTES;
    for (long word = 0; word < words; word++) {
      if (Platform.getLong(array.getBaseObject(), bits + word * Long.BYTES) != 0) {
        return true;
      }
    }
    return false;
  }

  @Override
  boolean copy(ColumnVector vector, int first, int more) {
    if (!isPlain(vector) || !isPlain(vector.getChild(0)) || vector.getChild(0).hasNull()) {
      return false;
    }
    WritableColumnVector arrays = (WritableColumnVector) vector;
    int row = first;
    while (row < first + more) {
      int begin = arrays.getArrayOffset(row);
      int stop = begin;
      // Arrays that follow each other in memory are one.
      for (; row < first + more && arrays.getArrayOffset(row) == stop; row++) {
        int count = arrays.getArrayLength(row);
        stop += count;
        addEnd(count, rows() + row - first);
      }
      long address = items.append((long) (stop - begin) * kind.width);
      kind.copy(arrays.getChild(0), begin, stop - begin, address);
    }
    return true;
  }

  @Override
  long bytes() {
    return items.size() + ends.size();
  }

  @Override
  Field finish(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    boolean isEven = isFinal && length > 0 && noItems.isEmpty();
    finishNulls(nodes, buffers);
    nodes.add(noItems.node(end));
    if (!isEven) {
      buffers.add(ends.filled());
    }
    buffers.add(noItems.bits(end));
    buffers.add(items.filled());
    Field item = new Field(isEven ? "item" : "element", FieldType.nullable(kind.type()), null);
    ArrowType type = isEven ? new ArrowType.FixedSizeList(length) : ArrowType.List.INSTANCE;
    return field(type, Map.of(), item);
  }

  @Override
  void clear() {
    super.clear();
    ends.clear();
    ends.appendInt(0);
    items.clear();
    noItems.clear();
    end = 0;
  }

  @Override
  public void close() {
    super.close();
    ends.close();
    items.close();
    noItems.close();
  }
}
