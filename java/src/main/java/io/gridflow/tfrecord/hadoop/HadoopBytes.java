package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.SeekableBytes;
import java.io.IOException;
import java.io.InputStream;
import org.apache.hadoop.fs.FSDataInputStream;

/** A file of any Hadoop file system. */
public final class HadoopBytes implements SeekableBytes {
  private final FSDataInputStream in;
  private final long length;

  /**
   * Wraps an open file.
   *
   * @param in closed by {@link #close}
   * @param length its length in bytes, which the caller knows from listing it
   */
  public HadoopBytes(FSDataInputStream in, long length) {
    this.in = in;
    this.length = length;
  }

  @Override
  public long length() {
    return length;
  }

  @Override
  public void readFully(long position, byte[] into, int offset, int count) throws IOException {
    in.readFully(position, into, offset, count);
  }

  @Override
  public InputStream streamFrom(long position) throws IOException {
    in.seek(position);
    return in;
  }

  @Override
  public void close() throws IOException {
    in.close();
  }
}
