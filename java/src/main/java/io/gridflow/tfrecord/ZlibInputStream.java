package io.gridflow.tfrecord;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.Objects;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import java.util.zip.ZipException;

/**
 * Inflates zlib streams that stand one behind the other. (The JDK's own stream stops silently after
 * the first.)
 */
final class ZlibInputStream extends InputStream {
  private final InputStream in;
  private final Inflater inflater = new Inflater();
  private final byte[] compressed;
  private int filled;

  /** Whether bytes of a stream that hasn't ended yet were read. */
  private boolean inside;

  ZlibInputStream(InputStream in, int bufferBytes) {
    this.in = in;
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
      while (true) {
        int inflated = inflater.inflate(into, offset, count);
        if (inflated > 0) {
          return inflated;
        }
        if (inflater.needsDictionary()) {
          throw new ZipException("the zlib stream needs a dictionary");
        }
        if (inflater.finished()) {
          int rest = inflater.getRemaining();
          int from = filled - rest;
          inflater.reset();
          inflater.setInput(compressed, from, rest);
          inside = rest > 0;
        }
        if (inflater.needsInput() && !fill()) {
          if (inside) {
            throw new EOFException("the file ends inside a zlib stream");
          }
          return -1;
        }
      }
    } catch (DataFormatException e) {
      throw new ZipException("not a zlib stream: " + e.getMessage());
    }
  }

  private boolean fill() throws IOException {
    int read = in.read(compressed, 0, compressed.length);
    if (read <= 0) {
      return false;
    }
    filled = read;
    inside = true;
    inflater.setInput(compressed, 0, read);
    return true;
  }

  @Override
  public void close() throws IOException {
    inflater.end();
    in.close();
  }
}
