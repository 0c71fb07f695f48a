package io.gridflow.tfrecord;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Names as UTF-8 bytes, each with a number from 0 on, found without making a String. */
final class NameTable {
  private byte[][] names = new byte[16][];
  private int size;
  private int[] slots = new int[64];

  NameTable() {
    Arrays.fill(slots, -1);
  }

  int size() {
    return size;
  }

  byte[] name(int number) {
    return names[number];
  }

  /** Returns the number of a name, -1 if it is not in the table. */
  int find(byte[] b, int offset, int length) {
    int mask = slots.length - 1;
    for (int i = hash(b, offset, length) & mask; slots[i] >= 0; i = (i + 1) & mask) {
      byte[] name = names[slots[i]];
      if (Arrays.equals(b, offset, offset + length, name, 0, name.length)) {
        return slots[i];
      }
    }
    return -1;
  }

  /** Adds a name that is not in the table yet and returns its number. */
  int add(byte[] name) {
    if (size == names.length) {
      names = Arrays.copyOf(names, 2 * size);
    }
    names[size] = name;
    if (4 * size >= slots.length) {
      slots = new int[2 * slots.length];
      Arrays.fill(slots, -1);
      for (int i = 0; i < size; i++) {
        place(i);
      }
    }
    place(size);
    return size++;
  }

  private void place(int number) {
    int mask = slots.length - 1;
    int i = hash(names[number], 0, names[number].length) & mask;
    while (slots[i] >= 0) {
      i = (i + 1) & mask;
    }
    slots[i] = number;
  }

  private static int hash(byte[] b, int offset, int length) {
    int h = length;
    for (int i = offset; i < offset + length; i++) {
      h = 31 * h + b[i];
    }
    return h ^ (h >>> 15);
  }

  /** Rejects bytes that aren't valid UTF-8, as protobuf does for the keys of a map. */
  static void checkUtf8(byte[] b, int offset, int length) throws MalformedExampleException {
    for (int i = offset; i < offset + length; i++) {
      if (b[i] < 0) {
        try {
          StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(b, offset, length));
          return;
        } catch (CharacterCodingException e) {
          MalformedExampleException malformed =
              new MalformedExampleException("the name of a feature is not valid UTF-8");
          malformed.initCause(e);
          throw malformed;
        }
      }
    }
  }
}
