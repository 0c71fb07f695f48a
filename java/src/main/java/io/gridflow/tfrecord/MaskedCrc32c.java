package io.gridflow.tfrecord;

import java.util.zip.CRC32C;

/**
 * The checksum of a TFRecord frame: CRC32C, rotated right by 15 bits, plus a constant.
 *
 * <p>Not safe for use by several threads.
 */
public final class MaskedCrc32c {
  private static final int MASK_DELTA = 0xa282ead8;

  private final CRC32C crc = new CRC32C();

  /** Returns the masked checksum of a range of bytes. */
  public int of(byte[] bytes, int offset, int length) {
    crc.reset();
    crc.update(bytes, offset, length);
    return mask((int) crc.getValue());
  }

  /** Masks a plain CRC32C. */
  public static int mask(int crc) {
    return ((crc >>> 15) | (crc << 17)) + MASK_DELTA;
  }

  /** Gives the plain CRC32C of a masked one. */
  public static int unmask(int masked) {
    int rotated = masked - MASK_DELTA;
    return (rotated << 15) | (rotated >>> 17);
  }
}
