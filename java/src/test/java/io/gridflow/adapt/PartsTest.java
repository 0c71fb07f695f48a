package io.gridflow.adapt;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Random;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

class PartsTest {
  private static InternalRow row(Object... values) {
    return new GenericInternalRow(values);
  }

  private static UTF8String text(String text) {
    return UTF8String.fromString(text);
  }

  private static Gathering texts(int place, boolean needsDocuments, Split split, int... ngrams) {
    return new Texts(place, 0, needsDocuments, new Cutter(true, true, split), ngrams);
  }

  private static List<Row> parts(List<InternalRow> rows, long most, Gathering... gathered) {
    List<Row> parts = new ArrayList<>();
    new Parts(rows.iterator(), gathered, most).forEachRemaining(parts::add);
    return parts;
  }

  /** Counts and documents of a want's tokens. */
  private static Map<String, List<Long>> counted(List<Row> parts, int want) {
    Map<String, List<Long>> counted = new HashMap<>();
    for (Row part : parts) {
      if (part.getInt(0) == want && part.isNullAt(5)) {
        String token =
            part.isNullAt(1)
                ? String.valueOf(part.getLong(2))
                : new String(part.<byte[]>getAs(1), StandardCharsets.UTF_8);
        List<Long> before = counted.getOrDefault(token, List.of(0L, 0L));
        counted.put(
            token, List.of(before.get(0) + part.getLong(3), before.get(1) + part.getLong(4)));
      }
    }
    return counted;
  }

  @Test
  void tokensAreCountedAndSoAreTheirDocuments() {
    List<InternalRow> rows = new ArrayList<>();
    rows.add(row(text("  To be, or\tNOT to be! -- Ünï")));
    rows.add(row((Object) null));
    rows.add(row(text("be...")));
    List<Row> parts = parts(rows, Long.MAX_VALUE, texts(0, true, Split.WHITESPACE, 1, 2));
    Map<String, List<Long>> expected = new HashMap<>();
    for (String once : List.of("or", "not", "Ünï", "be or", "or not", "not to", "be Ünï")) {
      expected.put(once, List.of(1L, 1L));
    }
    expected.put("to", List.of(2L, 1L));
    expected.put("be", List.of(3L, 2L));
    expected.put("to be", List.of(2L, 1L));
    assertEquals(expected, counted(parts, 0));
    Row last = parts.get(parts.size() - 1);
    assertEquals(2, last.getLong(3));
    assertArrayEquals(new byte[0], last.getAs(5));
  }

  @Test
  void charactersAreThoseOfUnicode() {
    List<InternalRow> rows = List.of(row(text("aA €.😀")));
    List<Row> parts = parts(rows, Long.MAX_VALUE, texts(0, false, Split.CHARACTER, 1, 2));
    assertEquals(
        Set.of("a", " ", "€", "😀", "a a", "a  ", "  €", "€ 😀"), counted(parts, 0).keySet());
    assertEquals(List.of(2L, 2L), counted(parts, 0).get("a"));
  }

  @Test
  void whatIsTooMuchIsHandedOverAndNothingIsLost() {
    Random random = new Random(3);
    List<InternalRow> rows = new ArrayList<>();
    Map<String, Long> words = new HashMap<>();
    Map<String, Long> numbers = new HashMap<>();
    for (int i = 0; i < 20_000; i++) {
      String word = "w" + Math.abs((int) (random.nextGaussian() * 3000));
      long number = random.nextInt(5000) - 2500L;
      rows.add(row(text(word), number));
      words.merge(word, 1L, Long::sum);
      numbers.merge(String.valueOf(number), 1L, Long::sum);
    }
    for (long most : new long[] {0, 100_000, Long.MAX_VALUE}) {
      Gathering[] gathered = {
        new Strings(0, 0, false), new Integers(1, 1, true, NumberType.LONG),
      };
      List<Row> parts = parts(rows, most, gathered);
      assertEquals(most < Long.MAX_VALUE, parts.size() > words.size() + numbers.size() + 2);
      Map<String, Long> found = new HashMap<>();
      counted(parts, 0).forEach((token, counts) -> found.put(token, counts.get(0)));
      assertEquals(words, found);
      found.clear();
      counted(parts, 1).forEach((token, counts) -> found.put(token, counts.get(1)));
      assertEquals(numbers, found);
    }
  }

  @Test
  void noMoreIsHeldThanIsAllowed() {
    Gathering[] gathered = {new Strings(0, 0, false), texts(1, true, Split.WHITESPACE, 1)};
    List<InternalRow> rows = new ArrayList<>();
    for (int i = 0; i < 3000; i++) {
      rows.add(row(text("word" + i)));
    }
    Parts parts = new Parts(rows.iterator(), gathered, 20_000);
    while (parts.hasNext()) {
      assertTrue(gathered[0].held() + gathered[1].held() < 20_000 + 200);
      parts.next();
    }
    assertThrows(NoSuchElementException.class, parts::next);
  }

  @Test
  void tokensOfEqualHashesOrOfNoLengthAreToldApart() {
    Counts counts = new Counts(false);
    Set<String> tokens = new HashSet<>();
    tokens.add("");
    for (int i = 0; i < 200_000; i++) { // hashes of 32 bits: some are equal
      tokens.add(Integer.toString(i, 36));
    }
    for (int times = 0; times < 2; times++) {
      for (String token : tokens) {
        byte[] bytes = ("x" + token).getBytes(StandardCharsets.UTF_8);
        counts.add(bytes, Platform.BYTE_ARRAY_OFFSET + 1L, bytes.length - 1, 1);
      }
    }
    assertEquals(tokens.size(), counts.size());
    Set<String> found = new HashSet<>();
    for (int i = 0; i < counts.size(); i++) {
      assertEquals(2, counts.count(i));
      found.add(new String(counts.token(i), StandardCharsets.UTF_8));
    }
    assertEquals(tokens, found);
  }

  @Test
  void partitionsOfNothingHaveTheirLastParts() {
    Gathering[] gathered = {
      new Moments(0, new int[] {0, 1}, new NumberType[] {NumberType.INT, NumberType.DOUBLE}),
      new Extremes(1, 0, NumberType.INT),
      new Quantiles(2, 1, NumberType.DOUBLE, 0.1),
      new Strings(3, 2, true),
    };
    List<Row> parts = parts(List.of(row(null, null, null)), 0, gathered);
    assertEquals(4, parts.size());
    for (Row part : parts) {
      assertEquals(0, part.getLong(3));
      assertFalse(part.isNullAt(5));
    }
  }

  @Test
  void momentsAreThoseOfAllRowsWithoutNulls() {
    Random random = new Random(5);
    List<InternalRow> rows = new ArrayList<>();
    double[] values = new double[5000];
    for (int i = 0; i < values.length; i++) {
      values[i] = 1e6 + random.nextGaussian();
      rows.add(row(values[i], true));
      rows.add(row(null, true));
    }
    NumberType[] types = {NumberType.DOUBLE, NumberType.BOOLEAN};
    Row last = parts(rows, 0, new Moments(0, new int[] {0, 1}, types)).get(0);
    ByteBuffer state = ByteBuffer.wrap(last.getAs(5)).order(ByteOrder.LITTLE_ENDIAN);
    double mean = Arrays.stream(values).average().getAsDouble();
    double squares = Arrays.stream(values).map(x -> (x - mean) * (x - mean)).sum();
    assertEquals(2, state.getLong());
    assertEquals(values.length, state.getLong());
    assertEquals(2, state.getLong());
    assertEquals(mean, state.getDouble(), 1e-6);
    assertEquals(1.0, state.getDouble());
    assertEquals(squares, state.getDouble(), 1e-6 * squares);
    assertEquals(0.0, state.getDouble());
  }

  @Test
  void ranksOfTheSketchAreAsExactAsWasAskedFor() {
    double error = 0.02;
    Random random = new Random(7);
    for (int size : new int[] {0, 1, 199, 200, 201, 800, 801, 100_000}) {
      Sketch sketch = new Sketch(error);
      float[] values = new float[size];
      for (int i = 0; i < size; i++) {
        values[i] = i % 50 == 0 ? Float.NaN : (float) random.nextGaussian();
        sketch.add(values[i]);
      }
      byte[] bytes = sketch.state();
      ByteBuffer state = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
      if (size == 0) {
        assertEquals(0, bytes.length);
        continue;
      }
      assertEquals(size, state.getLong());
      float[] found = new float[state.remaining() / Float.BYTES];
      state.asFloatBuffer().get(found);
      assertEquals(Math.min(size, 200), found.length);
      Arrays.sort(values);
      Arrays.sort(found);
      for (int i = 0; i < found.length; i++) {
        double wanted = (i + 0.5) / found.length * size;
        int place = (int) wanted;
        int slack = (int) Math.ceil(error * size);
        float least = values[Math.max(0, place - slack)];
        float most = values[Math.min(size - 1, place + slack)];
        assertTrue(Float.compare(least, found[i]) <= 0 && Float.compare(found[i], most) <= 0);
      }
    }
  }
}
