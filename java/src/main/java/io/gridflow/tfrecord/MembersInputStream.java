package io.gridflow.tfrecord;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.Objects;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import java.util.zip.ZipException;

/**
 * Inflates gzip members or zlib streams that stand one behind the other, as of {@code cat} or pigz.
 * Behind one comes the end of the file, a whole other one, or zeros that pad a gzip file; anything
 * else is an error.
 *
 * <p>(The JDK's streams lose data without an error: {@code GZIPInputStream} takes a damaged header
 * of a later member for the end of the file, and {@code InflaterInputStream} stops after the first
 * stream.)
 */
final class MembersInputStream extends InputStream {
  /** Flags of a member's header (RFC 1952). */
  private static final int HEADER_CRC = 2;

  private static final int EXTRA = 4;
  private static final int NAME = 8;
  private static final int COMMENT = 16;
  private static final int RESERVED = 0xe0;

  private final InputStream in;
  private final boolean isGzip;
  private final Inflater inflater;
  private final CRC32 crc = new CRC32();
  private final byte[] compressed;
  private int at;
  private int filled;

  /** Whether a member has begun and not ended yet. */
  private boolean isInside;

  private boolean hasEnded;

  MembersInputStream(InputStream in, boolean isGzip, int bufferBytes) {
    this.in = in;
    this.isGzip = isGzip;
    this.inflater = new Inflater(isGzip);
    this.compressed = new byte[bufferBytes];
  }

  @Override
  public int read() throws IOException {
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
  }

  @Override
  public int read(byte[] into, int offset, int count) throws IOException {
    Objects.checkFromIndexSize(offset, count, into.length);
    if (count == 0) {
      return 0;
    }
    try {
      while (isInside || begin()) {
        int inflated = inflater.inflate(into, offset, count);
        if (inflated > 0) {
          if (isGzip) {
            crc.update(into, offset, inflated);
          }
          return inflated;
        }
        if (inflater.needsDictionary()) {
          throw new ZipException("the zlib stream needs a dictionary");
        }
        if (inflater.finished()) {
          end();
        } else if (inflater.needsInput()) {
          at = filled;
          if (!fill()) {
            throw cut();
          }
          inflater.setInput(compressed, 0, filled);
        }
      }
      return -1;
    } catch (DataFormatException e) {
      throw new ZipException("not a " + kind() + ": " + e.getMessage());
    }
  }

  /** Begins the next member; false at the end of the file. */
  private boolean begin() throws IOException {
    boolean isPadded = isGzip && hasEnded;
    while (at < filled || fill()) {
      if (isPadded && compressed[at] == 0) {
        at++;
        continue;
      }
      if (isGzip) {
        readHeader();
      }
      inflater.reset();
      inflater.setInput(compressed, at, filled - at);
      isInside = true;
      return true;
    }
    return false;
  }

  private void end() throws IOException {
    at = filled - inflater.getRemaining();
    if (isGzip) {
      long checksum = crc.getValue();
      if (number(4) != checksum || number(4) != (inflater.getBytesWritten() & 0xffffffffL)) {
        throw new ZipException("the checksum or length of a gzip member differs");
      }
    }
    isInside = false;
    hasEnded = true;
  }

  private void readHeader() throws IOException {
    crc.reset();
    if (next() != 0x1f || next() != 0x8b) {
      throw new ZipException(
          hasEnded ? "bytes that are no gzip member follow one" : "not a gzip member");
    }
    int method = next();
    int flags = next();
    if (method != 8 || (flags & RESERVED) != 0) {
      throw new ZipException(
          "a gzip member has the unknown method " + method + " or flags " + flags);
    }
    number(6); // time, level, operating system
    if ((flags & EXTRA) != 0) {
      for (long left = number(2); left > 0; left--) {
        next();
      }
    }
    if ((flags & NAME) != 0) {
      skipText();
    }
    if ((flags & COMMENT) != 0) {
      skipText();
    }
    long expected = crc.getValue() & 0xffff;
    if ((flags & HEADER_CRC) != 0 && number(2) != expected) {
      throw new ZipException("the checksum of a gzip member's header differs");
    }
    crc.reset();
  }

  private void skipText() throws IOException {
    while (next() != 0) {}
  }

  /** Reads a number of some bytes, little endian. */
  private long number(int bytes) throws IOException {
    long number = 0;
    for (int i = 0; i < bytes; i++) {
      number |= (long) next() << (8 * i);
    }
    return number;
  }

  /** Reads a byte of a header or trailer. */
  private int next() throws IOException {
    if (at == filled && !fill()) {
      throw cut();
    }
    crc.update(compressed[at]);
    return compressed[at++] & 0xff;
  }

  private boolean fill() throws IOException {
    int read = in.read(compressed, 0, compressed.length);
    at = 0;
    filled = Math.max(read, 0);
    return read > 0;
  }

  private EOFException cut() {
    return new EOFException("the file ends inside a " + kind());
  }

  private String kind() {
    return isGzip ? "gzip member" : "zlib stream";
  }

  @Override
  public void close() throws IOException {
    inflater.end();
    in.close();
  }
}
