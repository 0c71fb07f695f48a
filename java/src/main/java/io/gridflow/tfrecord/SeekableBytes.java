package io.gridflow.tfrecord;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;

/** A file that can be read at any position, independent of the file system. */
public interface SeekableBytes extends Closeable {
  /** Length of the file in bytes. */
  long length() throws IOException;

  /**
   * Reads exactly {@code count} bytes from a place, without moving any stream.
   *
   * @throws EOFException if the file ends before
   */
  void readFully(long position, byte[] into, int offset, int count) throws IOException;

  /** Opens a stream that starts at a place. It is closed together with this object. */
  InputStream streamFrom(long position) throws IOException;
}
