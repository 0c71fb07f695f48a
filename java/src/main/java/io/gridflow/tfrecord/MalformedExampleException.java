package io.gridflow.tfrecord;

import java.io.IOException;

/** The bytes of a record aren't a valid {@code tf.train.Example} or {@code SequenceExample}. */
public class MalformedExampleException extends IOException {
  private static final long serialVersionUID = 1L;

  /** Creates the exception with what is wrong. */
  public MalformedExampleException(String message) {
    super(message);
  }
}
