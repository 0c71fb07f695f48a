package io.gridflow.tfrecord;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** A file of the local disk. */
public final class LocalBytes implements SeekableBytes {
  private final FileChannel channel;

  /** Opens a file for reading. */
  public LocalBytes(Path path) throws IOException {
    channel = FileChannel.open(path, StandardOpenOption.READ);
  }

  @Override
  public long length() throws IOException {
    return channel.size();
  }

  @Override
  public void readFully(long position, byte[] into, int offset, int count) throws IOException {
    ByteBuffer buffer = ByteBuffer.wrap(into, offset, count);
    while (buffer.hasRemaining()) {
      int read = channel.read(buffer, position + (buffer.position() - offset));
      if (read < 0) {
        throw new EOFException("the file ends at " + channel.size());
      }
    }
  }

  @Override
  public InputStream streamFrom(long position) throws IOException {
    channel.position(position);
    return Channels.newInputStream(channel);
  }

  @Override
  public void close() throws IOException {
    channel.close();
  }
}
