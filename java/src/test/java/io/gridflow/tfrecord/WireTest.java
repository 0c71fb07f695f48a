package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

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
}
