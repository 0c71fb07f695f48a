package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

class ExampleTest {
  private static ExampleCursor cursorOver(RecordType type, byte[]... records) throws IOException {
    byte[] file = FramesTest.fileOf(List.of(records));
    ExampleCursor cursor =
        ExampleCursor.over(new TFRecordReader(new ByteArrayInputStream(file)), type);
    assertTrue(cursor.next());
    return cursor;
  }

  private static ExampleCursor example(byte[]... records) throws IOException {
    return cursorOver(RecordType.EXAMPLE, records);
  }

  /** Builds wire bytes: numbers are single bytes, byte arrays are put with their length before. */
  private static byte[] wire(Object... parts) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (Object part : parts) {
      if (part instanceof Integer number) {
        out.write(number);
      } else if (part instanceof String text) {
        byte[] bytes = text.getBytes(StandardCharsets.ISO_8859_1);
        out.write(bytes.length);
        out.writeBytes(bytes);
      } else {
        byte[] bytes = (byte[]) part;
        assertTrue(bytes.length < 128);
        out.write(bytes.length);
        out.writeBytes(bytes);
      }
    }
    return out.toByteArray();
  }

  /** An Example of one entry. */
  private static byte[] exampleOfEntry(Object... entry) {
    return wire(0x0A, wire(0x0A, wire(entry)));
  }

  private static byte[] int64(int... feature) {
    return wire(0x1A, wire(0x0A, wire(java.util.Arrays.stream(feature).boxed().toArray())));
  }

  /** Whatever value it is that no longer fits into the encoder's buffer. */
  @Test
  void valuesAreKeptWhileTheBufferGrows() throws IOException {
    byte[] first = new byte[2900];
    byte[] second = new byte[200];
    java.util.Arrays.fill(first, (byte) 1);
    java.util.Arrays.fill(second, (byte) 2);
    for (int used = 700; used < 1300; used++) {
      ExampleEncoder encoder = new ExampleEncoder();
      encoder.putBytes("first", first).putBytes("filler", new byte[used]);
      encoder.putFloat("float", 1.5f).putBytes("second", second).putInt64("long", 1L << 60);
      encoder.putFloat("one", 0.25f);
      int end = encoder.mark();
      encoder.prependFloat(2.5f);
      encoder.closeFeature("scalar".getBytes(StandardCharsets.UTF_8), Kind.FLOAT, end);
      try (ExampleCursor cursor = example(encoder.toByteArray())) {
        assertArrayEquals(first, cursor.bytes("first")[0]);
        assertArrayEquals(second, cursor.bytes("second")[0]);
        assertEquals(1.5f, cursor.floats("float")[0]);
        assertEquals(0.25f, cursor.floats("one")[0]);
        assertEquals(2.5f, cursor.floats("scalar")[0]);
        assertEquals(1L << 60, cursor.int64s("long")[0]);
      }
    }
  }

  @Test
  void everyKindComesBack() throws IOException {
    byte[] record =
        new ExampleEncoder()
            .putInt64("i", 0, -1, Long.MIN_VALUE, Long.MAX_VALUE, 300)
            .putFloat("f", 1.5f, Float.NaN, -0f)
            .putText("s", "", "grün")
            .putInt64("none")
            .toByteArray();
    try (ExampleCursor cursor = example(record)) {
      assertEquals(Set.of("i", "f", "s", "none"), Set.copyOf(cursor.names()));
      assertArrayEquals(
          new long[] {0, -1, Long.MIN_VALUE, Long.MAX_VALUE, 300}, cursor.int64s("i"));
      assertArrayEquals(new float[] {1.5f, Float.NaN, -0f}, cursor.floats("f"));
      assertArrayEquals(new String[] {"", "grün"}, cursor.texts("s"));
      assertEquals(0, cursor.int64s("none").length);
      assertEquals(Kind.INT64, cursor.kind("none"));
      assertNull(cursor.floats("absent"));
      assertThrows(IllegalArgumentException.class, () -> cursor.floats("i"));
    }
  }

  @Test
  void aSequenceExampleComesBack() throws IOException {
    byte[] record =
        new ExampleEncoder()
            .beginSequence()
            .putInt64Steps("i", new long[] {1, 2}, new long[0], new long[] {3})
            .putFloatSteps("f", new float[] {1f})
            .putBytesSteps("b", new byte[][] {{1}, {}})
            .beginContext()
            .putInt64("label", 9)
            .toByteArray();
    try (ExampleCursor cursor = cursorOver(RecordType.SEQUENCE_EXAMPLE, record)) {
      assertEquals(List.of("label"), cursor.names());
      assertEquals(Set.of("i", "f", "b"), Set.copyOf(cursor.sequenceNames()));
      assertArrayEquals(new long[] {1, 2}, (long[]) cursor.steps("i").get(0));
      assertEquals(3, cursor.steps("i").size());
      assertArrayEquals(new byte[] {1}, ((byte[][]) cursor.steps("b").get(0))[0]);
      assertNull(cursor.steps("label"));
    }
  }

  @Test
  void theEncoderRefusesCallsInTheWrongOrder() {
    ExampleEncoder encoder = new ExampleEncoder();
    assertThrows(IllegalStateException.class, () -> encoder.putInt64Steps("x", new long[] {1}));
    assertThrows(IllegalStateException.class, encoder::beginContext);
    assertThrows(IllegalStateException.class, () -> encoder.beginSequence().putInt64("context", 1));
  }

  @Test
  void aRecordOfNoBytesHasNoFeatures() throws IOException {
    try (ExampleCursor cursor = example(new byte[0])) {
      assertEquals(List.of(), cursor.names());
    }
  }

  @Test
  void theValueMayComeBeforeTheKey() throws IOException {
    try (ExampleCursor cursor = example(exampleOfEntry(0x12, int64(5), 0x0A, "k"))) {
      assertArrayEquals(new long[] {5}, cursor.int64s("k"));
    }
  }

  @Test
  void theLastOfEqualKeysWins() throws IOException {
    byte[] first = wire(0x0A, "k", 0x12, int64(1));
    byte[] second = wire(0x0A, "k", 0x12, int64(2, 3));
    try (ExampleCursor cursor = example(wire(0x0A, wire(0x0A, first, 0x0A, second)))) {
      assertArrayEquals(new long[] {2, 3}, cursor.int64s("k"));
    }
  }

  @Test
  void repeatedMessagesAreMerged() throws IOException {
    byte[] value = wire(0x1A, wire(0x0A, wire(1)), 0x1A, wire(0x0A, wire(2), 0x08, 3));
    byte[] entry = wire(0x0A, "k", 0x12, value, 0x12, int64(4));
    byte[] other = wire(0x0A, wire(0x0A, "m", 0x12, int64(9)));
    try (ExampleCursor cursor = example(wire(0x0A, wire(0x0A, entry), 0x0A, other))) {
      assertArrayEquals(new long[] {1, 2, 3, 4}, cursor.int64s("k"));
      assertArrayEquals(new long[] {9}, cursor.int64s("m"));
    }
  }

  @Test
  void theLastKindOfAFeatureWins() throws IOException {
    byte[] value = wire(0x1A, wire(0x0A, wire(1)), 0x0A, wire(0x0A, "b"), 0x1A, wire(0x08, 3));
    try (ExampleCursor cursor = example(exampleOfEntry(0x0A, "k", 0x12, value))) {
      assertArrayEquals(new long[] {3}, cursor.int64s("k"));
    }
  }

  @Test
  void packedAndUnpackedFloatsAreRead() throws IOException {
    HexFormat hex = HexFormat.of();
    byte[] list = hex.parseHex("0d0000803f" + "0a080000004000004040" + "0d00008040");
    try (ExampleCursor cursor = example(exampleOfEntry(0x0A, "k", 0x12, wire(0x12, list)))) {
      assertArrayEquals(new float[] {1, 2, 3, 4}, cursor.floats("k"));
    }
  }

  @Test
  void unknownFieldsOfEveryWireTypeAreSkipped() throws IOException {
    String unknown = "f801ffffffffffffffffff01" + "f9010102030405060708" + "fa0102aabb";
    unknown += "fb01" + "0801" + "13" + "14" + "fc01" + "fd0101020304";
    byte[] skip = HexFormat.of().parseHex(unknown);
    try (ExampleCursor cursor =
        example(concat(skip, exampleOfEntry(0x0A, "k", 0x12, int64(5)), skip))) {
      assertArrayEquals(new long[] {5}, cursor.int64s("k"));
    }
  }

  private static byte[] concat(byte[]... parts) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (byte[] part : parts) {
      out.writeBytes(part);
    }
    return out.toByteArray();
  }

  @Test
  void malformedBytesAreRefused() {
    List<byte[]> malformed =
        List.of(
            wire(0x0A, 0x05), // beyond the end
            wire(0x00, 0x01), // field 0
            wire(0x0E), // wire type 6
            wire(0x0C), // a group ends without a start
            wire(0x1B, 0x24), // a group ends with another number
            wire(0x1B), // a group that never ends
            HexFormat.of().parseHex("0affffffff0f"), // a length of 2^32-1
            HexFormat.of().parseHex("0affffffff07"), // a length of 2^31-1
            HexFormat.of().parseHex("0a8080808080808080808001"), // an endless length
            HexFormat.of().parseHex("18ffffffffffffffffffff01"), // a varint of 11 bytes
            exampleOfEntry(0x0A, "\u00ff"), // a name that is not valid UTF-8
            exampleOfEntry(0x0A, "k", 0x12, wire(0x12, wire(0x0A, wire(1, 2, 3)))), // 3/4 float
            exampleOfEntry(0x0A, "k", 0x12, wire(0x1A, wire(0x0A, wire(0x80)))) // cut varint
            );
    for (byte[] record : malformed) {
      assertThrows(
          MalformedExampleException.class,
          () -> example(record),
          () -> HexFormat.of().formatHex(record));
    }
  }

  @Test
  void groupsNestedWithoutEndDontOverflowTheStack() {
    byte[] deep = new byte[1 << 20];
    java.util.Arrays.fill(deep, (byte) 0x1B);
    assertThrows(MalformedExampleException.class, () -> example(deep));
  }

  @Test
  void aReplacedValueMustBeSoundToo() throws MalformedExampleException {
    byte[] bad = wire(0x0A, "k", 0x12, wire(0x1A, wire(0x0A, wire(0x80))));
    byte[] good = wire(0x0A, "k", 0x12, int64(2));
    byte[] record = wire(0x0A, wire(0x0A, bad, 0x0A, good));
    ExampleParser parser = ExampleParser.of(List.of("k"), false);
    assertThrows(MalformedExampleException.class, () -> parser.parse(record, 0, record.length));
  }

  @Test
  void onlyWhatIsAskedForIsFoundWhateverTheOrderOfKeys() throws IOException {
    ExampleParser parser = ExampleParser.of(List.of("a", "b", "ü"), false);
    ExampleEncoder encoder = new ExampleEncoder();
    FeatureDecoder decoder = new FeatureDecoder();
    List<String> names = new java.util.ArrayList<>(List.of("a", "b", "ü", "x", "y", "aa"));
    Random random = new Random(7);
    for (int round = 0; round < 2000; round++) {
      java.util.Collections.shuffle(names, random);
      int present = random.nextInt(names.size() + 1);
      encoder.reset();
      for (String name : names.subList(0, present)) {
        encoder.putInt64(name, round + name.length());
      }
      byte[] record = encoder.toByteArray();
      parser.parse(record, 0, record.length);
      for (int i = 0; i < 3; i++) {
        String name = List.of("a", "b", "ü").get(i);
        if (names.indexOf(name) >= present) {
          assertEquals(ExampleParser.Place.ABSENT, parser.place(i));
        } else {
          assertEquals(ExampleParser.Place.FEATURES, parser.place(i));
          assertEquals(Kind.INT64, decoder.open(parser.buffer(i), parser.start(i), parser.end(i)));
          assertEquals(1, decoder.int64s());
          assertEquals(round + name.length(), decoder.int64Buffer()[0]);
        }
      }
    }
  }

  @Test
  void randomBytesNeitherCrashNorLoop() {
    Random random = new Random(8);
    byte[] seed =
        new ExampleEncoder()
            .putInt64("i", 1, 2000, -3)
            .putFloat("f", 1, 2)
            .putText("s", "x", "yy")
            .toByteArray();
    ExampleParser parser = ExampleParser.ofEverything(true);
    int accepted = 0;
    for (int round = 0; round < 200_000; round++) {
      byte[] record = seed.clone();
      for (int change = random.nextInt(4); change >= 0; change--) {
        record[random.nextInt(record.length)] = (byte) random.nextInt();
      }
      try {
        parser.parse(record, 0, record.length - random.nextInt(2) * random.nextInt(record.length));
        accepted++;
      } catch (MalformedExampleException expected) {
        assertFalse(expected.getMessage().isEmpty());
      }
    }
    assertTrue(accepted > 1000, "mutations that stay sound: " + accepted);
  }
}
