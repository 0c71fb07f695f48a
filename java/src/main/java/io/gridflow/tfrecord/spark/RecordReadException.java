package io.gridflow.tfrecord.spark;

/** A record can't be read; the message names the file and the record's place. */
public class RecordReadException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** Creates the exception. */
  public RecordReadException(String message, Throwable cause) {
    super(message, cause);
  }
}
