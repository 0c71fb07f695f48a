package io.gridflow.tfrecord;

/** The list that a feature holds. The order is that of {@code tf.train.Feature}'s fields. */
public enum Kind {
  /** No list at all: the feature says nothing. */
  NONE("no values"),
  /** A {@code BytesList}. */
  BYTES("BytesList"),
  /** A {@code FloatList}. */
  FLOAT("FloatList"),
  /** An {@code Int64List}. */
  INT64("Int64List");

  private static final Kind[] BY_FIELD = values();

  private final String label;

  Kind(String label) {
    this.label = label;
  }

  /** The name of the list's message. */
  public String label() {
    return label;
  }

  /** The kind that a column has when its features have two: Int64List, FloatList, BytesList. */
  static Kind wider(Kind a, Kind b) {
    return a.width() >= b.width() ? a : b;
  }

  private int width() {
    return switch (this) {
      case NONE -> 0;
      case INT64 -> 1;
      case FLOAT -> 2;
      case BYTES -> 3;
    };
  }

  static Kind ofField(int field) {
    return BY_FIELD[field];
  }
}
