package io.gridflow.tfrecord;

import java.util.Arrays;

/** Bytes that are appended to one array. */
final class GrowingBytes {
  private byte[] bytes = new byte[64];
  private int size;

  void append(byte[] from, int offset, int length) {
    if (length > bytes.length - size) {
      bytes =
          Arrays.copyOf(
              bytes,
              Math.max(
                  size + length,
                  (int) Math.min(2L * bytes.length, TFRecordReader.MAX_RECORD_BYTES)));
    }
    System.arraycopy(from, offset, bytes, size, length);
    size += length;
  }

  void clear() {
    size = 0;
  }

  byte[] array() {
    return bytes;
  }

  int size() {
    return size;
  }
}
