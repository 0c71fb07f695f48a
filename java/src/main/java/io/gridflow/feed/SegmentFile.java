package io.gridflow.feed;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.dictionary.DictionaryProvider;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.util.ArrowUtils;

/** An Arrow file of batches whose memory is not that of vectors. */
final class SegmentFile implements AutoCloseable {
  /** Gives what Arrow has for its own vectors. */
  private static final class Writer extends ArrowFileWriter {
    Writer(VectorSchemaRoot root, FileChannel channel) {
      super(root, new DictionaryProvider.MapDictionaryProvider(), channel);
    }

    void write(ArrowRecordBatch batch) throws IOException {
      writeRecordBatch(batch);
    }
  }

  private final FileChannel channel;
  private final VectorSchemaRoot root;
  private final Writer writer;

  SegmentFile(Path path, Schema schema) throws IOException {
    channel = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    BufferAllocator allocator = ArrowUtils.rootAllocator();
    root = VectorSchemaRoot.create(schema, allocator); // takes no memory
    writer = new Writer(root, channel);
    writer.start();
  }

  Schema schema() {
    return root.getSchema();
  }

  long bytes() {
    return writer.bytesWritten();
  }

  void write(ArrowRecordBatch batch) throws IOException {
    writer.write(batch);
  }

  /** Makes the file whole. */
  void end() throws IOException {
    writer.end();
    close();
  }

  /** Leaves the file as it is. */
  @Override
  public void close() {
    try {
      channel.close();
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    } finally {
      root.close();
    }
  }
}
