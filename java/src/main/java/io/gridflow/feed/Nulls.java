package io.gridflow.feed;

import java.util.BitSet;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.spark.unsafe.Platform;

/** Which values of a column are null. */
final class Nulls implements AutoCloseable {
  private final BitSet places = new BitSet();
  private final Memory bits;
  private int count;

  Nulls(BufferAllocator allocator) {
    bits = new Memory(allocator);
  }

  /** Notes a null; {@code place} is the number of values before it. */
  void set(int place) {
    places.set(place);
    count++;
  }

  boolean isEmpty() {
    return count == 0;
  }

  ArrowFieldNode node(int values) {
    return new ArrowFieldNode(values, count);
  }

  /** Arrow's bits of values that aren't null; no bytes where all of them aren't. */
  ArrowBuf bits(int values) {
    bits.clear();
    if (count > 0) {
      long[] words = places.toLongArray();
      int needed = (values + Long.SIZE - 1) / Long.SIZE;
      long address = bits.append((long) needed * Long.BYTES);
      for (int i = 0; i < needed; i++) {
        Platform.putLong(null, address + (long) i * Long.BYTES, i < words.length ? ~words[i] : -1L);
      }
    }
    return bits.filled();
  }

  void clear() {
    places.clear();
    count = 0;
  }

  @Override
  public void close() {
    bits.close();
  }
}
