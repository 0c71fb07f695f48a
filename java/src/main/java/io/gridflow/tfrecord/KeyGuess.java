package io.gridflow.tfrecord;

import java.util.Arrays;

/**
 * The bytes that an entry of a map is expected to begin with: a key's field and the tag of the
 * value.
 *
 * <p>Names of features are short, so they are compared as one or two numbers of eight bytes, which
 * may overlap.
 */
final class KeyGuess {
  /** The longest key that can be guessed: its length has to be one byte. */
  static final int MAX_KEY_BYTES = 127;

  /** The number of the key's name, negative if it is not asked for. */
  final int number;

  /** Number of bytes. */
  final int length;

  private final byte[] bytes;

  /** Of the first eight bytes those that count, and which these are. */
  private final long head;

  private final long headMask;

  /** The last eight bytes, if there are more than eight. */
  private final long tail;

  KeyGuess(byte[] b, int keyStart, int keyLength, int number) {
    this.number = number;
    length = keyLength + 3;
    bytes = new byte[Math.max(length, Long.BYTES)];
    bytes[0] = Wire.FIELD_1_BYTES;
    bytes[1] = (byte) keyLength;
    System.arraycopy(b, keyStart, bytes, 2, keyLength);
    bytes[keyLength + 2] = Wire.FIELD_2_BYTES;
    headMask = length < Long.BYTES ? (1L << (8 * length)) - 1 : -1L;
    head = (long) Wire.LONG_LE.get(bytes, 0);
    tail = (long) Wire.LONG_LE.get(bytes, bytes.length - Long.BYTES);
  }

  /** Whether the bytes from {@code p} on, at least {@link #length}, are these. */
  boolean matches(byte[] b, int p) {
    if (b.length - p < Long.BYTES) {
      return Arrays.equals(b, p, p + length, bytes, 0, length);
    }
    if (((long) Wire.LONG_LE.get(b, p) & headMask) != head) {
      return false;
    }
    if (length <= Long.BYTES) {
      return true;
    }
    if (length <= 2 * Long.BYTES) {
      return (long) Wire.LONG_LE.get(b, p + length - Long.BYTES) == tail;
    }
    return Arrays.equals(b, p + Long.BYTES, p + length, bytes, Long.BYTES, length);
  }
}
