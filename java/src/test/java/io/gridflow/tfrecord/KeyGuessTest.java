package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import org.junit.jupiter.api.Test;

class KeyGuessTest {
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
        byte[] array = new byte[2 + entry.length + after];
        Arrays.fill(array, (byte) 7);
        System.arraycopy(entry, 0, array, 2, entry.length);
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
