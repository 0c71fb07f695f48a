package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.SplitReader;
import io.gridflow.tfrecord.TFRecordReader;
import java.io.Closeable;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** The records of a range of a file of a Hadoop file system, or of a whole compressed file. */
public final class RecordFile implements Closeable {
  private final SplitReader split;
  private final TFRecordReader reader;

  private RecordFile(SplitReader split, TFRecordReader reader) {
    this.split = split;
    this.reader = reader;
  }

  /**
   * Opens a range.
   *
   * @param codec how the file is compressed; if it is, the range must be the whole file
   * @param fileLength the file's length in bytes
   * @param bufferBytes see {@link TFRecordReader}
   */
  public static RecordFile open(
      Path path,
      Configuration configuration,
      Codec codec,
      long start,
      long end,
      long fileLength,
      int bufferBytes,
      boolean checkCrc)
      throws IOException {
    FileSystem fileSystem = path.getFileSystem(configuration);
    FSDataInputStream in = fileSystem.open(path);
    try {
      if (codec.isNone()) {
        // Thousands of small files must not cost a large buffer each.
        int buffer = (int) Math.min(bufferBytes, Math.max(fileLength, 1));
        SplitReader split =
            new SplitReader(
                new HadoopBytes(in, fileLength), path.toString(), start, end, buffer, checkCrc);
        return new RecordFile(split, split.record());
      }
      return new RecordFile(
          null, new TFRecordReader(codec.decompress(in), 0, bufferBytes, checkCrc));
    } catch (IOException | RuntimeException e) {
      in.close();
      throw e;
    }
  }

  /** Goes to the next record. */
  public boolean next() throws IOException {
    return split == null ? reader.next() : split.next();
  }

  /** The reader that stands on the record. */
  public TFRecordReader record() {
    return reader;
  }

  @Override
  public void close() throws IOException {
    if (split == null) {
      reader.close();
    } else {
      split.close();
    }
  }
}
