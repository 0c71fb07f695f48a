package io.gridflow.tfrecord;

import java.io.IOException;

/**
 * Finds where records begin, from any place in an uncompressed file.
 *
 * <p>A frame carries no marker, but 12 bytes whose last four are the masked CRC32C of the first
 * eight, followed by so many bytes and their checksum, are no accident: the chance is 2⁻⁶⁴ a byte.
 * They can be a record that is stored inside another one, though; {@link SplitReader} finds that
 * out.
 */
public final class RecordBoundaries {
  private static final int WINDOW_BYTES = 1 << 16;

  private final SeekableBytes file;
  private final long fileLength;
  private final MaskedCrc32c crc = new MaskedCrc32c();
  private byte[] data = new byte[0];

  /** Looks for boundaries in a file. */
  public RecordBoundaries(SeekableBytes file) throws IOException {
    this.file = file;
    this.fileLength = file.length();
  }

  /**
   * Returns the first place at or after {@code position} where a whole record begins, or the length
   * of the file if there is none. Place 0 is always a boundary.
   */
  public long atOrAfter(long position) throws IOException {
    if (position <= 0) {
      return 0;
    }
    int frame = TFRecordReader.HEADER_BYTES + TFRecordReader.FOOTER_BYTES;
    byte[] window = new byte[WINDOW_BYTES];
    long base = position;
    while (base + frame <= fileLength) {
      int bytes = (int) Math.min(WINDOW_BYTES, fileLength - base);
      file.readFully(base, window, 0, bytes);
      for (int i = 0; i + TFRecordReader.HEADER_BYTES <= bytes; i++) {
        long length = (long) Wire.LONG_LE.get(window, i);
        long at = base + i;
        if (length >= 0
            && length <= TFRecordReader.MAX_RECORD_BYTES
            && length <= fileLength - at - frame
            && crc.of(window, i, 8) == (int) Wire.INT_LE.get(window, i + 8)
            && isSound(at, (int) length)) {
          return at;
        }
      }
      base += bytes - (TFRecordReader.HEADER_BYTES - 1);
    }
    return fileLength;
  }

  private boolean isSound(long at, int length) throws IOException {
    int bytes = length + TFRecordReader.FOOTER_BYTES;
    if (data.length < bytes) {
      data = new byte[bytes];
    }
    file.readFully(at + TFRecordReader.HEADER_BYTES, data, 0, bytes);
    return crc.of(data, 0, length) == (int) Wire.INT_LE.get(data, length)
        || isFollowedByAFrame(at + TFRecordReader.HEADER_BYTES + bytes);
  }

  /** A record with damaged bytes still has its place, so that readers agree on where it is. */
  private boolean isFollowedByAFrame(long position) throws IOException {
    if (fileLength - position < TFRecordReader.HEADER_BYTES) {
      return position == fileLength;
    }
    byte[] header = new byte[TFRecordReader.HEADER_BYTES];
    file.readFully(position, header, 0, header.length);
    return crc.of(header, 0, 8) == (int) Wire.INT_LE.get(header, 8);
  }
}
