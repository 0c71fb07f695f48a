package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordReader;
import java.io.Closeable;
import java.io.IOException;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;

/** What the readers of both of Hadoop's interfaces share: the records of one split. */
public final class TFRecordRecordReader implements Closeable {
  /** Size in bytes of the read buffer; ours is never below 256 KiB. */
  public static final String BUFFER_KEY = "io.file.buffer.size";

  /** Whether to check checksums; the default is true. */
  public static final String CRC_KEY = "tensorflow.read.crc32check";

  /** Whether uncompressed files are split; the default is true. */
  public static final String SPLITTABLE_KEY = "gridflow.tfrecord.splittable";

  private final RecordFile records;
  private final Path path;
  private final long start;
  private final long end;

  private TFRecordRecordReader(RecordFile records, Path path, long start, long end) {
    this.records = records;
    this.path = path;
    this.start = start;
    this.end = end;
  }

  /** Opens a split. */
  public static TFRecordRecordReader open(
      Path path, long start, long length, Configuration configuration) throws IOException {
    long fileLength = path.getFileSystem(configuration).getFileStatus(path).getLen();
    int buffer =
        Math.max(
            configuration.getInt(BUFFER_KEY, TFRecordReader.DEFAULT_BUFFER_BYTES),
            TFRecordReader.DEFAULT_BUFFER_BYTES);
    RecordFile records =
        RecordFile.open(
            path,
            configuration,
            Codec.ofFile(path, configuration),
            start,
            start + length,
            fileLength,
            buffer,
            configuration.getBoolean(CRC_KEY, true));
    return new TFRecordRecordReader(records, path, start, start + length);
  }

  /** Whether a file can be read in parts. */
  public static boolean isSplittable(Path path, Configuration configuration) {
    return configuration.getBoolean(SPLITTABLE_KEY, true)
        && Codec.ofFile(path, configuration).isNone();
  }

  /** Goes to the next record. */
  public boolean next() throws IOException {
    try {
      return records.next();
    } catch (IOException e) {
      throw new IOException(e.getMessage() + ", in " + path, e);
    }
  }

  /** Copies the record into a writable that is used again and again. */
  public void into(BytesWritable key) {
    TFRecordReader record = records.record();
    key.set(record.buffer(), record.offset(), record.length());
  }

  /** The record in a writable of its own, whose array is exactly as long as the record. */
  public BytesWritable fresh() {
    TFRecordReader record = records.record();
    return new BytesWritable(
        Arrays.copyOfRange(record.buffer(), record.offset(), record.offset() + record.length()));
  }

  /** Where the next record begins in the file. */
  public long position() {
    return records.record().position();
  }

  /** The part of the split that was read, from 0 to 1. */
  public float progress() {
    return end <= start
        ? 1
        : Math.min(1, Math.max(0, (position() - start) / (float) (end - start)));
  }

  @Override
  public void close() throws IOException {
    records.close();
  }
}
