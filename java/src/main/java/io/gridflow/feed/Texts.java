package io.gridflow.feed;

import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Texts and bytes. */
final class Texts extends Column {
  private final boolean isText;
  private final Memory ends;
  private final Memory values;

  Texts(int place, String name, boolean isText, BufferAllocator allocator) {
    super(place, name, allocator);
    this.isText = isText;
    this.ends = new Memory(allocator);
    this.values = new Memory(allocator);
    ends.appendInt(0);
  }

  @Override
  void take(InternalRow row) {
    // Of bytes in such a row this is a look at them, where getBinary is a copy.
    if (isText || row instanceof UnsafeRow) {
      UTF8String text = row.getUTF8String(place);
      values.append(text.getBaseObject(), text.getBaseOffset(), text.numBytes());
    } else {
      byte[] bytes = row.getBinary(place);
      values.append(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
    }
    addEmpty();
  }

  @Override
  void addEmpty() {
    ends.appendInt(Math.toIntExact(values.size()));
  }

  @Override
  long bytes() {
    return values.size() + ends.size();
  }

  @Override
  Field finish(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    finishNulls(nodes, buffers);
    buffers.add(ends.filled());
    buffers.add(values.filled());
    return field(isText ? ArrowType.Utf8.INSTANCE : ArrowType.Binary.INSTANCE, Map.of());
  }

  @Override
  void clear() {
    super.clear();
    values.clear();
    ends.clear();
    ends.appendInt(0);
  }

  @Override
  public void close() {
    super.close();
    ends.close();
    values.close();
  }
}
