package io.gridflow.tfrecord;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Serializes an {@code Example} or a {@code SequenceExample}.
 *
 * <pre>{@code
 * byte[] example = encoder.reset().putFloat("x", 1f, 2f).putInt64("label", 7).toByteArray();
 * }</pre>
 *
 * <p>For a SequenceExample, call {@link #beginSequence}, put the feature lists, call {@link
 * #beginContext}, put the context. Values are written from the last byte to the first, as then a
 * message's length is known before it must be written; so the features of a record are in the
 * opposite order of the calls, which means nothing in protobuf.
 *
 * <p>Not safe for use by several threads.
 */
public final class ExampleEncoder {
  private static final int BYTES_LIST = 0x0A;
  private static final int FLOAT_LIST = 0x12;
  private static final int INT64_LIST = 0x1A;

  private static final long LARGE_BYTES = 64L << 20;

  private byte[] buffer = new byte[1 << 12];
  private int start = buffer.length;

  /** Number of bytes behind {@code start} that belong to a finished part of the record. */
  private int sectionEnd;

  private boolean sequence;
  private boolean context;
  private boolean finished;

  /** Begins another Example. */
  public ExampleEncoder reset() {
    start = buffer.length;
    sectionEnd = 0;
    sequence = false;
    context = false;
    finished = false;
    return this;
  }

  /** Begins another SequenceExample, with its feature lists. */
  public ExampleEncoder beginSequence() {
    reset();
    sequence = true;
    return this;
  }

  /** Goes from the feature lists of a SequenceExample to its context. */
  public ExampleEncoder beginContext() {
    if (!sequence || context) {
      throw new IllegalStateException("beginContext() follows the lists of beginSequence()");
    }
    closeMessage(0, Wire.FIELD_2_BYTES);
    sectionEnd = mark();
    context = true;
    return this;
  }

  /** Puts an {@code Int64List}. */
  public ExampleEncoder putInt64(String name, long... values) {
    int end = mark();
    prependInt64s(values, values.length);
    closeFeature(utf8(name), INT64_LIST, end);
    return this;
  }

  /** Puts a {@code FloatList}. */
  public ExampleEncoder putFloat(String name, float... values) {
    int end = mark();
    prependFloats(values, values.length);
    closeFeature(utf8(name), FLOAT_LIST, end);
    return this;
  }

  /** Puts a {@code BytesList}. */
  public ExampleEncoder putBytes(String name, byte[]... values) {
    int end = mark();
    for (int i = values.length - 1; i >= 0; i--) {
      prependBytesValue(values[i], 0, values[i].length);
    }
    closeFeature(utf8(name), BYTES_LIST, end);
    return this;
  }

  /** Puts a {@code BytesList} of texts, as UTF-8. */
  public ExampleEncoder putText(String name, String... values) {
    return putBytes(name, Arrays.stream(values).map(ExampleEncoder::utf8).toArray(byte[][]::new));
  }

  /** Puts a feature list: a {@code FloatList} for each step. */
  public ExampleEncoder putFloatSteps(String name, float[]... steps) {
    int end = beginSteps();
    for (int i = steps.length - 1; i >= 0; i--) {
      int stepEnd = mark();
      prependFloats(steps[i], steps[i].length);
      closeStep(FLOAT_LIST, stepEnd);
    }
    closeSteps(utf8(name), end);
    return this;
  }

  /** Puts a feature list: an {@code Int64List} for each step. */
  public ExampleEncoder putInt64Steps(String name, long[]... steps) {
    int end = beginSteps();
    for (int i = steps.length - 1; i >= 0; i--) {
      int stepEnd = mark();
      prependInt64s(steps[i], steps[i].length);
      closeStep(INT64_LIST, stepEnd);
    }
    closeSteps(utf8(name), end);
    return this;
  }

  /** Puts a feature list: a {@code BytesList} for each step. */
  public ExampleEncoder putBytesSteps(String name, byte[][]... steps) {
    int end = beginSteps();
    for (int i = steps.length - 1; i >= 0; i--) {
      int stepEnd = mark();
      for (int k = steps[i].length - 1; k >= 0; k--) {
        prependBytesValue(steps[i][k], 0, steps[i][k].length);
      }
      closeStep(BYTES_LIST, stepEnd);
    }
    closeSteps(utf8(name), end);
    return this;
  }

  // The layer below, for callers that hold their values in another form. Each value is put from its
  // last part to its first: mark(), the list's content, then close….

  /** Remembers where a message will end. */
  public int mark() {
    return buffer.length - start;
  }

  /** Begins a feature list; to be given to {@link #closeSteps}. */
  public int beginSteps() {
    if (!sequence || context) {
      throw new IllegalStateException(
          "put feature lists between beginSequence() and beginContext()");
    }
    return mark();
  }

  /** Puts the packed content of an {@code Int64List}. */
  public void prependInt64s(long[] values, int count) {
    if (count == 0) {
      return;
    }
    int end = mark();
    for (int i = count - 1; i >= 0; i--) {
      prependVarint(values[i]);
    }
    closeMessage(end, Wire.FIELD_1_BYTES);
  }

  /** Puts the content of an {@code Int64List} with one value. */
  public void prependInt64(long value) {
    int end = mark();
    prependVarint(value);
    closeMessage(end, Wire.FIELD_1_BYTES);
  }

  /** Puts the packed content of a {@code FloatList}. */
  public void prependFloats(float[] values, int count) {
    if (count == 0) {
      return;
    }
    int at = prependFloatSpace(count);
    for (int i = 0; i < count; i++) {
      Wire.FLOAT_LE.set(buffer, at + 4 * i, values[i]);
    }
  }

  /** Puts the content of a {@code FloatList} with one value. */
  public void prependFloat(float value) {
    int at = prependFloatSpace(1); // first: it may put another array in the place of buffer
    Wire.FLOAT_LE.set(buffer, at, value);
  }

  /**
   * Makes space for the packed content of a {@code FloatList} with at least one value.
   *
   * @return where in {@link #buffer} to set the values, little endian
   */
  public int prependFloatSpace(int count) {
    int bytes = Math.multiplyExact(4, count);
    int end = mark();
    reserve(bytes);
    start -= bytes;
    closeMessage(end, Wire.FIELD_1_BYTES);
    return buffer.length - end - bytes;
  }

  /** Puts one value of a {@code BytesList}; the list's last value first. */
  public void prependBytesValue(byte[] from, int offset, int length) {
    int at = prependBytesSpace(length); // first: it may put another array in the place of buffer
    System.arraycopy(from, offset, buffer, at, length);
  }

  /**
   * Makes space for one value of a {@code BytesList}.
   *
   * @return where in {@link #buffer} to set it
   */
  public int prependBytesSpace(int length) {
    int end = mark();
    reserve(length);
    start -= length;
    closeMessage(end, Wire.FIELD_1_BYTES);
    return buffer.length - end - length;
  }

  /** Closes a feature of the Example, or of the context. */
  public void closeFeature(byte[] name, Kind kind, int end) {
    closeFeature(name, listTag(kind), end);
  }

  /** Closes a step of a feature list. */
  public void closeStep(Kind kind, int end) {
    closeStep(listTag(kind), end);
  }

  /** Puts a step that holds no list at all. */
  public void prependEmptyStep() {
    closeMessage(mark(), Wire.FIELD_1_BYTES);
  }

  /** Closes a feature list. */
  public void closeSteps(byte[] name, int end) {
    closeEntry(name, end);
  }

  /** Finishes the record: it is in {@link #buffer}, from {@link #offset} on. */
  public void finish() {
    if (finished) {
      return;
    }
    if (sequence && !context) {
      beginContext();
    }
    closeMessage(sectionEnd, Wire.FIELD_1_BYTES);
    finished = true;
  }

  /** The array that holds the record, once it is finished. */
  public byte[] buffer() {
    return buffer;
  }

  /** Where the finished record begins in {@link #buffer}. */
  public int offset() {
    return start;
  }

  /** The number of bytes of the finished record. */
  public int length() {
    return buffer.length - start;
  }

  /** Finishes the record and gives a copy of it. */
  public byte[] toByteArray() {
    finish();
    return Arrays.copyOfRange(buffer, start, buffer.length);
  }

  private static int listTag(Kind kind) {
    return switch (kind) {
      case BYTES -> BYTES_LIST;
      case FLOAT -> FLOAT_LIST;
      case INT64 -> INT64_LIST;
      case NONE -> throw new IllegalArgumentException("a feature with values needs a kind");
    };
  }

  private void closeFeature(byte[] name, int listTag, int end) {
    if (sequence && !context) {
      throw new IllegalStateException("call beginContext() before the context's features");
    }
    closeMessage(end, listTag);
    closeEntry(name, end);
  }

  private void closeStep(int listTag, int end) {
    closeMessage(end, listTag);
    closeMessage(end, Wire.FIELD_1_BYTES);
  }

  /** Closes the value of a map's entry and puts its key and frame. */
  private void closeEntry(byte[] name, int end) {
    closeMessage(end, Wire.FIELD_2_BYTES);
    int keyEnd = mark();
    reserve(name.length);
    start -= name.length;
    System.arraycopy(name, 0, buffer, start, name.length);
    closeMessage(keyEnd, Wire.FIELD_1_BYTES);
    closeMessage(end, Wire.FIELD_1_BYTES);
  }

  private void closeMessage(int end, int tag) {
    prependVarint(mark() - end);
    reserve(1);
    buffer[--start] = (byte) tag;
  }

  private void prependVarint(long value) {
    int bytes = (70 - Long.numberOfLeadingZeros(value | 1)) / 7;
    reserve(bytes);
    start -= bytes;
    int at = start;
    while ((value & ~0x7fL) != 0) {
      buffer[at++] = (byte) (value | 0x80);
      value >>>= 7;
    }
    buffer[at] = (byte) value;
  }

  private void reserve(int bytes) {
    if (bytes > start) {
      int used = buffer.length - start;
      long wanted = (long) used + bytes;
      if (wanted > TFRecordReader.MAX_RECORD_BYTES) {
        throw new IllegalStateException(
            "a record can't be longer than " + TFRecordReader.MAX_RECORD_BYTES + " bytes");
      }
      // Doubled while small; of a record of half a gigabyte, not another half.
      long spare = Math.min(wanted, Math.max(LARGE_BYTES, wanted / 4));
      int capacity = (int) Math.min(wanted + spare, TFRecordReader.MAX_RECORD_BYTES);
      byte[] larger = new byte[capacity];
      System.arraycopy(buffer, start, larger, capacity - used, used);
      buffer = larger;
      start = capacity - used;
    }
  }

  private static byte[] utf8(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
