package io.gridflow.feed;

import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.unsafe.Platform;

/** Bytes outside of Java's heap, to which others are appended; it is kept for the next batch. */
final class Memory implements AutoCloseable {
  private static final long LEAST = 1L << 12;

  private final BufferAllocator allocator;
  private ArrowBuf buffer;
  private long size;

  Memory(BufferAllocator allocator) {
    this.allocator = allocator;
  }

  long size() {
    return size;
  }

  /** Makes room for so many bytes more, which are to be written; returns their address. */
  long append(long bytes) {
    long end = Math.addExact(size, bytes);
    if (buffer == null || end > buffer.capacity()) {
      ArrowBuf larger = allocator.buffer(Math.max(LEAST, Math.max(end, 2 * size)));
      if (buffer != null) {
        Platform.copyMemory(null, buffer.memoryAddress(), null, larger.memoryAddress(), size);
        buffer.close();
      }
      buffer = larger;
    }
    long address = buffer.memoryAddress() + size;
    size = end;
    return address;
  }

  /** Appends bytes that lie anywhere. */
  void append(Object base, long offset, long bytes) {
    Platform.copyMemory(base, offset, null, append(bytes), bytes);
  }

  void appendInt(int value) {
    Platform.putInt(null, append(Integer.BYTES), value);
  }

  /** All that was appended. It is written out before more is. */
  ArrowBuf filled() {
    if (buffer == null) {
      return allocator.getEmpty();
    }
    buffer.writerIndex(size);
    return buffer;
  }

  void clear() {
    size = 0;
  }

  @Override
  public void close() {
    if (buffer != null) {
      buffer.close();
      buffer = null;
    }
  }
}
