package io.gridflow.tfrecord;

import java.io.Closeable;
import java.io.IOException;

/**
 * Reads the records of one range of an uncompressed file: those whose frame begins in it.
 *
 * <p>The reader of a range that does not begin at 0 looks for the first record by {@link
 * RecordBoundaries}. TFRecord bytes inside a record could mislead it. So each reader, when it
 * arrives behind its end, also computes where the reader of the next range begins, and fails if
 * that is another place than its own. The first reader is right, so by induction all that finished
 * have read exactly the records of the file. A reader that is closed before its end checks nothing;
 * where results of such readers are used, all readers before it have finished (Spark's {@code
 * take}), or any records would do.
 */
public final class SplitReader implements Closeable {
  private final SeekableBytes file;
  private final String name;
  private final long end;
  private final long fileLength;
  private final TFRecordReader reader;
  private final boolean searched;
  private boolean checked;

  /**
   * Opens a range.
   *
   * @param file closed by {@link #close}
   * @param name for messages
   * @param start first byte of the range
   * @param end first byte behind the range
   * @param bufferBytes see {@link TFRecordReader}
   * @param checkCrc see {@link TFRecordReader}; boundaries are always found by checksums
   */
  public SplitReader(
      SeekableBytes file, String name, long start, long end, int bufferBytes, boolean checkCrc)
      throws IOException {
    this.file = file;
    this.name = name;
    this.fileLength = file.length();
    this.end = Math.min(end, fileLength);
    long first = new RecordBoundaries(file).atOrAfter(start);
    this.searched = first > 0;
    // A reader whose range holds no record has nothing to add to what the one before it checked.
    this.checked = first >= this.end;
    this.reader = new TFRecordReader(file.streamFrom(first), first, bufferBytes, checkCrc);
  }

  /**
   * Goes to the next record of the range.
   *
   * @throws CorruptRecordException see {@link TFRecordReader#next}
   * @throws IOException also if the boundary at the end of the range is ambiguous
   */
  public boolean next() throws IOException {
    if (reader.position() < end && nextOfRange()) {
      return true;
    }
    if (!checked && end < fileLength) {
      checked = true;
      long here = reader.position();
      long following = new RecordBoundaries(file).atOrAfter(end);
      if (following != here) {
        throw new IOException(
            String.format(
                "ambiguous split boundary in %s: the record after byte %d begins at %d by reading"
                    + " on and at %d by looking for it. A record holds TFRecord bytes itself, or"
                    + " is damaged. Set the option splittable to false.",
                name, end, here, following));
      }
    }
    return false;
  }

  private boolean nextOfRange() throws IOException {
    try {
      return reader.next();
    } catch (CorruptRecordException e) {
      if (!searched || e.skippable()) {
        throw e;
      }
      // Behind the last record inside a record there is no frame: this looks like damage, too.
      throw new CorruptRecordException(
          e.getMessage()
              + "; if records hold TFRecord bytes themselves, set the option splittable to false",
          e.position(),
          false);
    }
  }

  /** The reader that stands on the record. */
  public TFRecordReader record() {
    return reader;
  }

  @Override
  public void close() throws IOException {
    try (SeekableBytes closing = file) {
      reader.close();
    }
  }
}
