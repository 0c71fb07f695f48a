package io.gridflow.tfrecord;

import java.io.Closeable;
import java.io.Flushable;
import java.io.IOException;
import java.io.OutputStream;
import java.util.Objects;

/**
 * Writes records into a TFRecord stream.
 *
 * <pre>{@code
 * try (TFRecordWriter writer = new TFRecordWriter(Files.newOutputStream(path))) {
 *   writer.write(new ExampleEncoder().putInt64("label", 7).toByteArray());
 * }
 * }</pre>
 *
 * <p>Not safe for use by several threads.
 */
public final class TFRecordWriter implements Closeable, Flushable {
  private static final int BUFFER_BYTES = 1 << 18;

  private final OutputStream out;
  private final MaskedCrc32c crc = new MaskedCrc32c();
  private final byte[] buffer = new byte[BUFFER_BYTES];
  private int used;
  private long position;
  private boolean closed;

  /** Writes to a stream, which {@link #close} closes. It needs no buffer of its own. */
  public TFRecordWriter(OutputStream out) {
    this.out = Objects.requireNonNull(out, "out");
  }

  /** Appends a record. */
  public void write(byte[] record) throws IOException {
    write(record, 0, record.length);
  }

  /** Appends a record that is a range of an array. */
  public void write(byte[] bytes, int offset, int length) throws IOException {
    Objects.checkFromIndexSize(offset, length, bytes.length);
    reserve(TFRecordReader.HEADER_BYTES);
    Wire.LONG_LE.set(buffer, used, (long) length);
    Wire.INT_LE.set(buffer, used + 8, crc.of(buffer, used, 8));
    used += TFRecordReader.HEADER_BYTES;
    if (length > BUFFER_BYTES - used) {
      drain();
    }
    if (length > BUFFER_BYTES) {
      out.write(bytes, offset, length);
    } else {
      System.arraycopy(bytes, offset, buffer, used, length);
      used += length;
    }
    reserve(TFRecordReader.FOOTER_BYTES);
    Wire.INT_LE.set(buffer, used, crc.of(bytes, offset, length));
    used += TFRecordReader.FOOTER_BYTES;
    position += TFRecordReader.HEADER_BYTES + (long) length + TFRecordReader.FOOTER_BYTES;
  }

  /** Number of bytes of all frames so far. */
  public long position() {
    return position;
  }

  @Override
  public void flush() throws IOException {
    drain();
    out.flush();
  }

  @Override
  public void close() throws IOException {
    if (!closed) {
      closed = true;
      try (OutputStream closing = out) {
        drain();
      }
    }
  }

  private void reserve(int bytes) throws IOException {
    if (bytes > BUFFER_BYTES - used) {
      drain();
    }
  }

  private void drain() throws IOException {
    out.write(buffer, 0, used);
    used = 0;
  }
}
