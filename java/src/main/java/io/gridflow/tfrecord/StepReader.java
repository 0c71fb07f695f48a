package io.gridflow.tfrecord;

/**
 * Walks over the steps of a serialized {@code tf.train.FeatureList}: each is a Feature.
 *
 * <p>Not safe for use by several threads.
 */
public final class StepReader {
  private final Wire wire = new Wire();
  private byte[] bytes;
  private int next;
  private int end;
  private int start;
  private int length;

  /** Opens a serialized FeatureList. */
  public void open(byte[] b, int listStart, int listEnd) {
    bytes = b;
    next = listStart;
    end = listEnd;
  }

  /** Goes to the next step; false behind the last. */
  public boolean next() throws MalformedExampleException {
    while (next < end) {
      int p = wire.tag(bytes, next, end);
      if (wire.tag == Wire.FIELD_1_BYTES) {
        start = wire.length(bytes, p, end);
        length = wire.length;
        next = start + length;
        return true;
      }
      next = wire.skip(bytes, p, end, wire.tag);
    }
    return false;
  }

  /** Counts the steps of a serialized FeatureList. */
  public int count(byte[] b, int listStart, int listEnd) throws MalformedExampleException {
    open(b, listStart, listEnd);
    int steps = 0;
    while (next()) {
      steps++;
    }
    return steps;
  }

  /** The array that holds the step. */
  public byte[] buffer() {
    return bytes;
  }

  /** Where the step's Feature begins. */
  public int start() {
    return start;
  }

  /** Where the step's Feature ends. */
  public int end() {
    return start + length;
  }

  /** Checks all steps of a FeatureList and returns the widest of their kinds. */
  static Kind check(FeatureDecoder decoder, byte[] b, int start, int end)
      throws MalformedExampleException {
    StepReader steps = new StepReader();
    steps.open(b, start, end);
    Kind widest = Kind.NONE;
    while (steps.next()) {
      Kind kind = decoder.open(b, steps.start(), steps.end());
      decoder.values();
      widest = Kind.wider(widest, kind);
    }
    return widest;
  }
}
