package io.gridflow.adapt;

import org.apache.spark.sql.catalyst.InternalRow;

/** The least and the greatest number. */
final class Extremes extends Gathering {
  private final int column;
  private final NumberType type;
  private long least = Long.MAX_VALUE;
  private long greatest = Long.MIN_VALUE;

  Extremes(int place, int column, NumberType type) {
    super(place, column);
    this.column = column;
    this.type = type;
  }

  @Override
  void take(InternalRow row) {
    long value = type.integer(row, column);
    least = Math.min(least, value);
    greatest = Math.max(greatest, value);
  }

  @Override
  byte[] state() {
    return rows() == 0 ? new byte[0] : new State(2 * Long.BYTES).add(least).add(greatest).bytes();
  }
}
