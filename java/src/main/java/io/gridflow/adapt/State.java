package io.gridflow.adapt;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Numbers as bytes in the order in which numpy reads them. */
final class State {
  private final byte[] bytes;
  private final ByteBuffer buffer;

  State(int size) {
    bytes = new byte[size];
    buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
  }

  State add(long value) {
    buffer.putLong(value);
    return this;
  }

  void add(double[] values) {
    for (double value : values) {
      buffer.putDouble(value);
    }
  }

  void add(float[] values) {
    for (float value : values) {
      buffer.putFloat(value);
    }
  }

  byte[] bytes() {
    return bytes;
  }
}
