package io.gridflow.adapt;

import org.apache.spark.sql.catalyst.InternalRow;

/** Values that stand for all of a column. */
final class Quantiles extends Gathering {
  private final int column;
  private final NumberType type;
  private final Sketch sketch;

  Quantiles(int place, int column, NumberType type, double error) {
    super(place, column);
    this.column = column;
    this.type = type;
    this.sketch = new Sketch(error);
  }

  @Override
  void take(InternalRow row) {
    sketch.add(type.single(row, column));
  }

  @Override
  byte[] state() {
    return sketch.state();
  }
}
