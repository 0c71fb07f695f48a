package io.gridflow.tfrecord;

import java.io.IOException;

/** The frames of a TFRecord file are damaged: a checksum differs, or the file ends too early. */
public class CorruptRecordException extends IOException {
  private static final long serialVersionUID = 1L;

  private final long position;
  private final boolean skippable;

  /**
   * Creates the exception.
   *
   * @param message what is wrong, with the position
   * @param position offset in bytes of the damaged record's frame in the uncompressed file
   * @param skippable whether the next record's place is known all the same
   */
  public CorruptRecordException(String message, long position, boolean skippable) {
    super(message);
    this.position = position;
    this.skippable = skippable;
  }

  /** Offset in bytes of the damaged record's frame in the uncompressed file. */
  public long position() {
    return position;
  }

  /**
   * Whether only the record's own bytes are damaged: its length is sound, and a reader may go on
   * with the next record.
   */
  public boolean skippable() {
    return skippable;
  }
}
