package io.gridflow.tfrecord;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * Goes over the records of a TFRecord stream and gives their features by name.
 *
 * <pre>{@code
 * try (ExampleCursor cursor = ExampleCursor.examples(Files.newInputStream(path))) {
 *   while (cursor.next()) {
 *     float[] x = cursor.floats("x");
 *     long label = cursor.int64s("label")[0];
 *   }
 * }
 * }</pre>
 *
 * <p>Every record is checked completely. A method that gives values gives a copy of them. Not safe
 * for use by several threads.
 */
public final class ExampleCursor implements Closeable {
  private final TFRecordReader reader;
  private final boolean sequence;
  private final ExampleParser parser;
  private final FeatureDecoder decoder = new FeatureDecoder();
  private final StepReader steps = new StepReader();

  private ExampleCursor(TFRecordReader reader, boolean sequence) {
    this.reader = reader;
    this.sequence = sequence;
    this.parser = ExampleParser.ofEverything(sequence);
  }

  /** A cursor over {@code tf.train.Example} records. */
  public static ExampleCursor examples(InputStream in) {
    return new ExampleCursor(new TFRecordReader(in), false);
  }

  /** A cursor over {@code tf.train.SequenceExample} records. */
  public static ExampleCursor sequenceExamples(InputStream in) {
    return new ExampleCursor(new TFRecordReader(in), true);
  }

  /** A cursor over the records of a reader, which {@link #close} closes. */
  public static ExampleCursor over(TFRecordReader reader, RecordType type) {
    if (type == RecordType.BYTE_ARRAY) {
      throw new IllegalArgumentException("records of bytes have no features; use the reader");
    }
    return new ExampleCursor(reader, type == RecordType.SEQUENCE_EXAMPLE);
  }

  /**
   * Goes to the next record.
   *
   * @return false at the end
   * @throws CorruptRecordException if its frame is damaged
   * @throws MalformedExampleException if its bytes are no message of the type; the next call goes
   *     on with the next record
   */
  public boolean next() throws IOException {
    if (!reader.next()) {
      return false;
    }
    parser.parse(reader.buffer(), reader.offset(), reader.length());
    return true;
  }

  /** Where the record's frame begins in the file. */
  public long position() {
    return reader.recordPosition();
  }

  /** The names of the record's features; of a SequenceExample, those of its context. */
  public List<String> names() {
    return names(parser.features());
  }

  /** The names of a SequenceExample's feature lists. */
  public List<String> sequenceNames() {
    return sequence ? names(parser.lists()) : List.of();
  }

  /** The kind of a feature, {@link Kind#NONE} if the record has no such feature. */
  public Kind kind(String name) throws MalformedExampleException {
    return open(name);
  }

  /**
   * The values of an {@code Int64List}.
   *
   * @return null if the feature is absent or has no kind
   * @throws IllegalArgumentException if it is a list of another kind
   */
  public long[] int64s(String name) throws MalformedExampleException {
    return opened(name, Kind.INT64) ? decodeInt64s() : null;
  }

  /**
   * The values of a {@code FloatList}.
   *
   * @return null if the feature is absent or has no kind
   * @throws IllegalArgumentException if it is a list of another kind
   */
  public float[] floats(String name) throws MalformedExampleException {
    return opened(name, Kind.FLOAT) ? decodeFloats() : null;
  }

  /**
   * The values of a {@code BytesList}.
   *
   * @return null if the feature is absent or has no kind
   * @throws IllegalArgumentException if it is a list of another kind
   */
  public byte[][] bytes(String name) throws MalformedExampleException {
    return opened(name, Kind.BYTES) ? decodeBytes() : null;
  }

  /** The texts of a {@code BytesList}, null as in {@link #bytes}. */
  public String[] texts(String name) throws MalformedExampleException {
    byte[][] values = bytes(name);
    return values == null
        ? null
        : Arrays.stream(values)
            .map(v -> new String(v, StandardCharsets.UTF_8))
            .toArray(String[]::new);
  }

  /**
   * The steps of a feature list: each a {@code long[]}, {@code float[]}, {@code byte[][]}, or null
   * for a step without a kind.
   *
   * @return null if the record has no such feature list
   */
  public List<Object> steps(String name) throws MalformedExampleException {
    if (!sequence) {
      throw new IllegalArgumentException("an Example has no feature lists");
    }
    ExampleParser.MapEntries lists = parser.lists();
    int number = find(lists, name);
    if (number < 0) {
      return null;
    }
    List<Object> values = new ArrayList<>();
    steps.open(lists.buffer(number), lists.start(number), lists.end(number));
    while (steps.next()) {
      Kind kind = decoder.open(steps.buffer(), steps.start(), steps.end());
      values.add(
          switch (kind) {
            case NONE -> null;
            case BYTES -> decodeBytes();
            case FLOAT -> decodeFloats();
            case INT64 -> decodeInt64s();
          });
    }
    return values;
  }

  @Override
  public void close() throws IOException {
    reader.close();
  }

  private static List<String> names(ExampleParser.MapEntries entries) {
    List<String> found = new ArrayList<>();
    for (int i = 0; i < entries.names.size(); i++) {
      if (entries.has(i)) {
        found.add(new String(entries.names.name(i), StandardCharsets.UTF_8));
      }
    }
    return found;
  }

  private static int find(ExampleParser.MapEntries entries, String name) {
    byte[] key = name.getBytes(StandardCharsets.UTF_8);
    int number = entries.names.find(key, 0, key.length);
    return number >= 0 && entries.has(number) ? number : -1;
  }

  private Kind open(String name) throws MalformedExampleException {
    ExampleParser.MapEntries features = parser.features();
    int number = find(features, name);
    return number < 0
        ? Kind.NONE
        : decoder.open(features.buffer(number), features.start(number), features.end(number));
  }

  private boolean opened(String name, Kind wanted) throws MalformedExampleException {
    Kind kind = open(name);
    if (kind != wanted && kind != Kind.NONE) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT, "feature '%s' is a %s, not a %s", name, kind.label(), wanted.label()));
    }
    return kind == wanted;
  }

  private long[] decodeInt64s() throws MalformedExampleException {
    int count = decoder.int64s();
    return Arrays.copyOf(decoder.int64Buffer(), count);
  }

  private float[] decodeFloats() throws MalformedExampleException {
    float[] values = new float[decoder.floats()];
    for (int i = 0; i < values.length; i++) {
      values[i] = decoder.floatAt(i);
    }
    return values;
  }

  private byte[][] decodeBytes() throws MalformedExampleException {
    byte[][] values = new byte[decoder.byteValues()][];
    for (int i = 0; i < values.length; i++) {
      int start = decoder.bytesStart(i);
      values[i] = Arrays.copyOfRange(decoder.bytesBuffer(), start, start + decoder.bytesLength(i));
    }
    return values;
  }
}
