package io.gridflow.tfrecord;

import java.util.Arrays;

/**
 * Decodes one {@code tf.train.Feature} at a time, without an object per value.
 *
 * <p>{@link #open} finds out the kind; then {@link #floats}, {@link #int64s} or {@link #byteValues}
 * decodes the list and returns the number of its values. Lists as TensorFlow writes them (one
 * packed chunk) are not copied; anything else that protobuf allows (unpacked values, several
 * chunks, a list that is split over several fields) is put together first.
 *
 * <p>Not safe for use by several threads.
 */
public final class FeatureDecoder {
  private final Wire wire = new Wire();

  private Kind kind = Kind.NONE;
  private byte[] list;
  private int listStart;
  private int listEnd;

  private byte[] floatBuffer;
  private int floatOffset;
  private long[] longs = new long[64];
  private int[] starts = new int[16];
  private int[] lengths = new int[16];

  /**
   * Opens a serialized feature.
   *
   * @return which list it holds
   * @throws MalformedExampleException if the bytes are no feature
   */
  public Kind open(byte[] bytes, int start, int end) throws MalformedExampleException {
    list = bytes;
    if (start == end) {
      kind = Kind.NONE;
      return kind;
    }
    int first = bytes[start];
    if (first == 0x0A || first == 0x12 || first == 0x1A) {
      int p = wire.length(bytes, start + 1, end);
      if (p + wire.length == end) {
        listStart = p;
        listEnd = end;
        kind = Kind.ofField(first >>> 3);
        return kind;
      }
    }
    return openInParts(bytes, start, end);
  }

  /** The kind of the open feature. */
  public Kind kind() {
    return kind;
  }

  /** A feature in several fields: parts of one kind are merged, a part of another one replaces. */
  private Kind openInParts(byte[] bytes, int start, int end) throws MalformedExampleException {
    kind = Kind.NONE;
    GrowingBytes merged = new GrowingBytes();
    int p = start;
    while (p < end) {
      p = wire.tag(bytes, p, end);
      int tag = wire.tag;
      if ((tag & 7) != Wire.BYTES || tag >>> 3 > 3) {
        p = wire.skip(bytes, p, end, tag);
        continue;
      }
      p = wire.length(bytes, p, end);
      int length = wire.length;
      Kind part = Kind.ofField(tag >>> 3);
      if (part != kind) {
        values();
        merged.clear();
        kind = part;
      }
      merged.append(bytes, p, length);
      list = merged.array();
      listStart = 0;
      listEnd = merged.size();
      p += length;
    }
    return kind;
  }

  /** Decodes the open feature's list, whatever its kind, and returns the number of its values. */
  public int values() throws MalformedExampleException {
    return switch (kind) {
      case BYTES -> byteValues();
      case FLOAT -> floats();
      case INT64 -> int64s();
      case NONE -> 0;
    };
  }

  /**
   * Decodes a {@code FloatList}.
   *
   * @return the number of values; they are little endian from {@link #floatOffset} of {@link
   *     #floatBuffer} on, valid until the next feature
   */
  public int floats() throws MalformedExampleException {
    if (listStart == listEnd) {
      return 0;
    }
    if (list[listStart] == Wire.FIELD_1_BYTES) {
      int p = wire.length(list, listStart + 1, listEnd);
      if (p + wire.length == listEnd && (wire.length & 3) == 0) {
        floatBuffer = list;
        floatOffset = p;
        return wire.length >>> 2;
      }
    }
    GrowingBytes all = new GrowingBytes();
    int p = listStart;
    while (p < listEnd) {
      p = wire.tag(list, p, listEnd);
      if (wire.tag == Wire.FIELD_1_BYTES) {
        p = wire.length(list, p, listEnd);
        if ((wire.length & 3) != 0) {
          throw new MalformedExampleException(
              "a packed list of floats has "
                  + wire.length
                  + " bytes, which is not a multiple of 4");
        }
        all.append(list, p, wire.length);
        p += wire.length;
      } else {
        int from = p;
        int tag = wire.tag;
        p = wire.skip(list, p, listEnd, tag);
        if (tag == (1 << 3 | Wire.FIXED32)) {
          all.append(list, from, 4);
        }
      }
    }
    floatBuffer = all.array();
    floatOffset = 0;
    return all.size() >>> 2;
  }

  /** The array with the floats that {@link #floats} found. */
  public byte[] floatBuffer() {
    return floatBuffer;
  }

  /** Where the floats begin in {@link #floatBuffer}. */
  public int floatOffset() {
    return floatOffset;
  }

  /** The float of an index. */
  public float floatAt(int index) {
    return (float) Wire.FLOAT_LE.get(floatBuffer, floatOffset + 4 * index);
  }

  /**
   * Decodes an {@code Int64List}.
   *
   * @return the number of values; they are at the beginning of {@link #int64Buffer}, valid until
   *     the next feature
   */
  public int int64s() throws MalformedExampleException {
    int count = 0;
    int p = listStart;
    while (p < listEnd) {
      if (list[p] == Wire.FIELD_1_BYTES) {
        p = wire.length(list, p + 1, listEnd);
        count = packedInt64s(p, p + wire.length, count);
        p += wire.length;
      } else {
        p = wire.tag(list, p, listEnd);
        if (wire.tag == (1 << 3 | Wire.VARINT)) {
          p = wire.varint(list, p, listEnd);
          reserveInt64s(count + 1);
          longs[count++] = wire.value;
        } else if (wire.tag == Wire.FIELD_1_BYTES) {
          p = wire.length(list, p, listEnd);
          count = packedInt64s(p, p + wire.length, count);
          p += wire.length;
        } else {
          p = wire.skip(list, p, listEnd, wire.tag);
        }
      }
    }
    return count;
  }

  private int packedInt64s(int p, int end, int count) throws MalformedExampleException {
    // A value has at least one byte.
    reserveInt64s(count + (end - p));
    byte[] b = list;
    long[] values = longs;
    while (p < end) {
      byte first = b[p];
      if (first >= 0) {
        values[count++] = first;
        p++;
      } else if (p + 1 < end && b[p + 1] >= 0) {
        values[count++] = (first & 0x7f) | b[p + 1] << 7;
        p += 2;
      } else {
        p = wire.varint(b, p, end);
        values[count++] = wire.value;
      }
    }
    return count;
  }

  private void reserveInt64s(int count) {
    if (count > longs.length) {
      longs = Arrays.copyOf(longs, Math.max(count, 2 * longs.length));
    }
  }

  /** The array with the values that {@link #int64s} found. */
  public long[] int64Buffer() {
    return longs;
  }

  /**
   * Decodes a {@code BytesList}.
   *
   * @return the number of values; each is a range of {@link #bytesBuffer}, valid until the next
   *     feature
   */
  public int byteValues() throws MalformedExampleException {
    int count = 0;
    int p = listStart;
    while (p < listEnd) {
      if (list[p] == Wire.FIELD_1_BYTES) {
        p++;
      } else {
        p = wire.tag(list, p, listEnd);
        if (wire.tag != Wire.FIELD_1_BYTES) {
          p = wire.skip(list, p, listEnd, wire.tag);
          continue;
        }
      }
      p = wire.length(list, p, listEnd);
      if (count == starts.length) {
        starts = Arrays.copyOf(starts, 2 * count);
        lengths = Arrays.copyOf(lengths, 2 * count);
      }
      starts[count] = p;
      lengths[count++] = wire.length;
      p += wire.length;
    }
    return count;
  }

  /** The array that holds the values that {@link #byteValues} found. */
  public byte[] bytesBuffer() {
    return list;
  }

  /** Where the value of an index begins in {@link #bytesBuffer}. */
  public int bytesStart(int index) {
    return starts[index];
  }

  /** The number of bytes of the value of an index. */
  public int bytesLength(int index) {
    return lengths[index];
  }
}
