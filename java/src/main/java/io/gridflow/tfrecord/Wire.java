package io.gridflow.tfrecord;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * A cursor over protobuf's wire format that never leaves the range it was given.
 *
 * <p>Every method takes a position and the end of the enclosing message, and either returns the
 * position behind what it read or throws. What is accepted is what protobuf's own parser accepts.
 */
final class Wire {
  static final int VARINT = 0;
  static final int FIXED64 = 1;
  static final int BYTES = 2;
  static final int GROUP = 3;
  static final int END_GROUP = 4;
  static final int FIXED32 = 5;

  /** Field 1, length-delimited: the tag of nearly everything in an Example. */
  static final int FIELD_1_BYTES = 0x0A;

  /** Field 2, length-delimited. */
  static final int FIELD_2_BYTES = 0x12;

  static final VarHandle INT_LE =
      MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  static final VarHandle LONG_LE =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  static final VarHandle FLOAT_LE =
      MethodHandles.byteArrayViewVarHandle(float[].class, ByteOrder.LITTLE_ENDIAN);

  /** Protobuf's own limit of nesting; an Example uses the first few levels of it. */
  private static final int MAX_GROUP_DEPTH = 95;

  /** The value that the last call of {@link #varint} read. */
  long value;

  /** The tag that the last call of {@link #tag} read. */
  int tag;

  /** The length that the last call of {@link #length} read. */
  int length;

  int varint(byte[] b, int p, int end) throws MalformedExampleException {
    if (p < end) {
      byte first = b[p];
      if (first >= 0) {
        value = first;
        return p + 1;
      }
      long result = first & 0x7f;
      int last = Math.min(end - p, 10);
      for (int i = 1; i < last; i++) {
        byte next = b[p + i];
        result |= (long) (next & 0x7f) << (7 * i);
        if (next >= 0) {
          value = result;
          return p + i + 1;
        }
      }
      if (last == 10) {
        throw new MalformedExampleException("a varint has more than 10 bytes");
      }
    }
    throw truncated();
  }

  /** Reads a tag: at most five bytes, 32 bits, no field 0. */
  int tag(byte[] b, int p, int end) throws MalformedExampleException {
    long result = 0;
    int last = Math.min(end - p, 5);
    for (int i = 0; i < last; i++) {
      byte next = b[p + i];
      result |= (long) (next & 0x7f) << (7 * i);
      if (next >= 0) {
        if (result >>> 32 != 0 || result >>> 3 == 0) {
          throw new MalformedExampleException("a tag has field number " + (result >>> 3));
        }
        tag = (int) result;
        return p + i + 1;
      }
    }
    throw last == 5 ? new MalformedExampleException("a tag has more than 5 bytes") : truncated();
  }

  /** Reads a length and checks that so many bytes are left. */
  int length(byte[] b, int p, int end) throws MalformedExampleException {
    if (p < end && b[p] >= 0) {
      length = b[p];
      if (length > end - p - 1) {
        throw truncated();
      }
      return p + 1;
    }
    long result = 0;
    int last = Math.min(end - p, 5);
    for (int i = 0; i < last; i++) {
      byte next = b[p + i];
      result |= (long) (next & 0x7f) << (7 * i);
      if (next >= 0) {
        int after = p + i + 1;
        if (result > end - after) {
          throw truncated();
        }
        length = (int) result;
        return after;
      }
    }
    throw last == 5 ? new MalformedExampleException("a length has more than 5 bytes") : truncated();
  }

  /** Skips the value of a field whose tag was just read. */
  int skip(byte[] b, int p, int end, int fieldTag) throws MalformedExampleException {
    switch (fieldTag & 7) {
      case VARINT:
        return varint(b, p, end);
      case FIXED64:
        return advance(p, 8, end);
      case BYTES:
        p = length(b, p, end);
        return p + length;
      case GROUP:
        return skipGroup(b, p, end, fieldTag >>> 3);
      case FIXED32:
        return advance(p, 4, end);
      case END_GROUP:
        throw new MalformedExampleException("a group ends without a start");
      default:
        throw new MalformedExampleException("wire type " + (fieldTag & 7) + " does not exist");
    }
  }

  private int skipGroup(byte[] b, int p, int end, int field) throws MalformedExampleException {
    int[] open = new int[MAX_GROUP_DEPTH];
    open[0] = field;
    int depth = 1;
    while (depth > 0) {
      p = tag(b, p, end);
      switch (tag & 7) {
        case GROUP:
          if (depth == MAX_GROUP_DEPTH) {
            throw new MalformedExampleException("groups are nested too deep");
          }
          open[depth++] = tag >>> 3;
          break;
        case END_GROUP:
          if (open[--depth] != tag >>> 3) {
            throw new MalformedExampleException("a group ends with another group's number");
          }
          break;
        default:
          p = skip(b, p, end, tag);
      }
    }
    return p;
  }

  private static int advance(int p, int bytes, int end) throws MalformedExampleException {
    if (bytes > end - p) {
      throw truncated();
    }
    return p + bytes;
  }

  static MalformedExampleException truncated() {
    return new MalformedExampleException("a field reaches beyond the end of its message");
  }
}
