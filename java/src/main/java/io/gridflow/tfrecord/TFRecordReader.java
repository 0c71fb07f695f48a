package io.gridflow.tfrecord;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.Objects;

/**
 * Reads the records of a TFRecord stream, one after the other, each as a slice of one buffer.
 *
 * <p>A frame is the length (8 bytes, little endian), its masked CRC32C (4), the bytes, and theirs
 * (4).
 *
 * <pre>{@code
 * try (TFRecordReader reader = new TFRecordReader(Files.newInputStream(path))) {
 *   while (reader.next()) {
 *     use(reader.buffer(), reader.offset(), reader.length());
 *   }
 * }
 * }</pre>
 *
 * <p>The slice is valid until the next call of {@link #next}. A file that ends inside a frame is
 * damaged, even if only one stray byte follows the last record. Not safe for use by several
 * threads.
 */
public final class TFRecordReader implements Closeable {
  /** Bytes before a record: its length and the length's checksum. */
  public static final int HEADER_BYTES = 12;

  /** Bytes after a record: its checksum. */
  public static final int FOOTER_BYTES = 4;

  /** The longest record that fits a Java array together with its frame. */
  public static final int MAX_RECORD_BYTES = Integer.MAX_VALUE - 64;

  /**
   * Size of the buffer unless another is asked for: 256 KiB, which stays in the processor's cache
   * until it is parsed. With 1 MiB, checking local files takes a third more time.
   */
  public static final int DEFAULT_BUFFER_BYTES = 1 << 18;

  private final InputStream in;
  private final boolean checkCrc;
  private final MaskedCrc32c crc = new MaskedCrc32c();
  private byte[] buffer;
  private int next;
  private int limit;
  private long position;
  private long recordPosition;
  private int offset;
  private int length;

  /** Reads a stream from its beginning, with checksums and a buffer of 256 KiB. */
  public TFRecordReader(InputStream in) {
    this(in, 0, DEFAULT_BUFFER_BYTES, true);
  }

  /**
   * Reads a stream.
   *
   * @param in stands at the beginning of a frame; closed by {@link #close}
   * @param position where that is in the file, for messages and {@link #position}
   * @param bufferBytes size of the buffer at the beginning; it grows with the longest record
   * @param checkCrc whether to check the checksums
   */
  public TFRecordReader(InputStream in, long position, int bufferBytes, boolean checkCrc) {
    this.in = Objects.requireNonNull(in, "in");
    if (bufferBytes <= 0) {
      throw new IllegalArgumentException("bufferBytes must be at least 1, got " + bufferBytes);
    }
    this.position = position;
    this.checkCrc = checkCrc;
    this.buffer = new byte[Math.max(bufferBytes, HEADER_BYTES)];
  }

  /**
   * Goes to the next record.
   *
   * @return false at the end of the stream
   * @throws CorruptRecordException if the frame is damaged. If it is {@linkplain
   *     CorruptRecordException#skippable skippable}, the slice is set to the damaged bytes and the
   *     next call goes on behind them.
   */
  public boolean next() throws IOException {
    recordPosition = position;
    if (!fill(HEADER_BYTES)) {
      if (limit == next) {
        return false;
      }
      throw damaged("the file ends inside a record's header", false);
    }
    long announced = (long) Wire.LONG_LE.get(buffer, next);
    if (checkCrc && crc.of(buffer, next, 8) != (int) Wire.INT_LE.get(buffer, next + 8)) {
      throw damaged("the checksum of a record's length differs" + hint(), false);
    }
    if (announced < 0 || announced > MAX_RECORD_BYTES) {
      throw damaged(
          "a record's length is "
              + Long.toUnsignedString(announced)
              + "; the maximum is "
              + MAX_RECORD_BYTES,
          false);
    }
    int bytes = (int) announced;
    if (!fill(HEADER_BYTES + bytes + FOOTER_BYTES)) {
      throw damaged("the file ends inside a record of " + bytes + " bytes", false);
    }
    offset = next + HEADER_BYTES;
    length = bytes;
    int frame = HEADER_BYTES + bytes + FOOTER_BYTES;
    next += frame;
    position += frame;
    if (checkCrc
        && crc.of(buffer, offset, bytes) != (int) Wire.INT_LE.get(buffer, offset + bytes)) {
      throw damaged("the checksum of a record of " + bytes + " bytes differs", true);
    }
    return true;
  }

  /** The array that holds the record's bytes, from {@link #offset} on. */
  public byte[] buffer() {
    return buffer;
  }

  /** Where the record's bytes begin in {@link #buffer}. */
  public int offset() {
    return offset;
  }

  /** Number of the record's bytes. */
  public int length() {
    return length;
  }

  /** A copy of the record's bytes. */
  public byte[] copy() {
    return Arrays.copyOfRange(buffer, offset, offset + length);
  }

  /** Where the frame of the next record begins in the file. */
  public long position() {
    return position;
  }

  /** Where the frame of this record begins in the file. */
  public long recordPosition() {
    return recordPosition;
  }

  @Override
  public void close() throws IOException {
    in.close();
  }

  /** Makes {@code need} bytes available from {@code next} on; false if the stream ends before. */
  private boolean fill(int need) throws IOException {
    if (limit - next >= need) {
      return true;
    }
    if (next > 0) {
      System.arraycopy(buffer, next, buffer, 0, limit - next);
      limit -= next;
      next = 0;
    }
    while (limit < need) {
      if (limit == buffer.length) {
        // Doubled only as bytes arrive: a wrong length must not allocate gigabytes.
        buffer = Arrays.copyOf(buffer, (int) Math.min(need, 2L * buffer.length));
      }
      int read = in.read(buffer, limit, buffer.length - limit);
      if (read < 0) {
        return false;
      }
      limit += read;
    }
    return true;
  }

  private CorruptRecordException damaged(String what, boolean skippable) {
    return new CorruptRecordException(
        what + " (record at byte " + recordPosition + ")", recordPosition, skippable);
  }

  /** Says what the file probably is, when its very first bytes are those of another format. */
  private String hint() {
    if (recordPosition != 0) {
      return "";
    }
    int first = buffer[next] & 0xff;
    int second = buffer[next + 1] & 0xff;
    if (first == 0x1f && second == 0x8b) {
      return "; the file looks like gzip, read it with compression 'gzip'";
    }
    if (first == 0x78 && ((first << 8) | second) % 31 == 0) {
      return "; the file looks like zlib, read it with compression 'deflate'";
    }
    return "; is it a TFRecord file?";
  }
}
