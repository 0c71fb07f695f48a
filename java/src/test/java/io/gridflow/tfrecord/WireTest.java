package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

/** The two places that look at eight bytes at once. */
class WireTest {
  private static byte[] varint(long value) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    while ((value & ~0x7fL) != 0) {
      out.write((int) (value & 0x7f) | 0x80);
      value >>>= 7;
    }
    out.write((int) value);
    return out.toByteArray();
  }

  /** A varint at a place in an array, among bytes that would be taken for more of it. */
  private static byte[] placed(byte[] varint, int before, int after) {
    byte[] array = new byte[before + varint.length + after];
    Arrays.fill(array, (byte) 0xff);
    System.arraycopy(varint, 0, array, before, varint.length);
    return array;
  }

  @Test
  void varintsOfEveryLengthAreReadWhereverTheyEnd() throws MalformedExampleException {
    Wire wire = new Wire();
    for (int bit = 0; bit < 64; bit++) {
      for (int below = 0; below <= 1; below++) {
        long value = (1L << bit) - below;
        byte[] varint = varint(value);
        for (int after = 0; after <= 10; after++) {
          byte[] array = placed(varint, 3, after);
          assertEquals(3 + varint.length, wire.varint(array, 3, array.length));
          assertEquals(value, wire.value);
          assertEquals(3 + varint.length, wire.varint(array, 3, 3 + varint.length));
          assertEquals(value, wire.value);
          for (int cut = 0; cut < varint.length; cut++) {
            int end = 3 + cut;
            assertThrows(MalformedExampleException.class, () -> wire.varint(array, 3, end));
          }
        }
      }
    }
  }

  @Test
  void aVarintMayBeLongerThanItHasToBe() throws MalformedExampleException {
    Wire wire = new Wire();
    byte[] seven = {(byte) 0x87, (byte) 0x80, (byte) 0x80, 0, 1, 2, 3, 4, 5};
    assertEquals(4, wire.varint(seven, 0, seven.length));
    assertEquals(7, wire.value);
  }

  @Test
  void aGuessedKeyMatchesOnlyItself() {
    for (int length = 0; length <= KeyGuess.MAX_KEY_BYTES; length++) {
      byte[] key = new byte[length];
      for (int i = 0; i < length; i++) {
        key[i] = (byte) ('a' + i % 26);
      }
      KeyGuess guess = new KeyGuess(key, 0, length, 5);
      byte[] entry = new byte[length + 3];
      entry[0] = 0x0A;
      entry[1] = (byte) length;
      System.arraycopy(key, 0, entry, 2, length);
      entry[length + 2] = 0x12;
      assertEquals(entry.length, guess.length);
      for (int after = 0; after <= 9; after++) {
        byte[] array = placed(entry, 2, after);
        assertTrue(guess.matches(array, 2));
        for (int i = 0; i < entry.length; i++) {
          byte[] other = array.clone();
          other[2 + i] ^= 0x20;
          assertFalse(guess.matches(other, 2), "length " + length + ", byte " + i);
        }
      }
    }
  }
}
