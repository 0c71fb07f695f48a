package io.gridflow.tfrecord;

import java.util.Locale;

/** What the records of a file hold. */
public enum RecordType {
  /** A {@code tf.train.Example}. */
  EXAMPLE("Example"),
  /** A {@code tf.train.SequenceExample}. */
  SEQUENCE_EXAMPLE("SequenceExample"),
  /** Any bytes. */
  BYTE_ARRAY("ByteArray");

  private final String label;

  RecordType(String label) {
    this.label = label;
  }

  /** The name as users write it. */
  public String label() {
    return label;
  }

  /**
   * Finds a type by its name, in any case.
   *
   * @throws IllegalArgumentException if there is none of that name
   */
  public static RecordType of(String name) {
    for (RecordType type : values()) {
      if (type.label.equalsIgnoreCase(name)) {
        return type;
      }
    }
    throw new IllegalArgumentException(
        String.format(
            Locale.ROOT,
            "recordType must be Example, SequenceExample or ByteArray, got '%s'.",
            name));
  }
}
