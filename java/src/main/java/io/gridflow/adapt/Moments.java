package io.gridflow.adapt;

import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Means and sums of squared differences from them, of rows in chunks, which are put together by the
 * formula of Chan, Golub and LeVeque (1979), as in tokens.py.
 */
final class Moments extends Gathering {
  private static final int CHUNK = 1024;

  private final int[] columns;
  private final NumberType[] types;
  private final double[][] waiting;
  private int size;
  private long count;
  private final double[] means;
  private final double[] squares;

  Moments(int place, int[] columns, NumberType[] types) {
    super(place, columns);
    this.columns = columns;
    this.types = types;
    this.waiting = new double[columns.length][CHUNK];
    this.means = new double[columns.length];
    this.squares = new double[columns.length];
  }

  @Override
  void take(InternalRow row) {
    for (int i = 0; i < columns.length; i++) {
      waiting[i][size] = types[i].real(row, columns[i]);
    }
    if (++size == CHUNK) {
      merge();
    }
  }

  private void merge() {
    if (size == 0) {
      return;
    }
    long total = count + size;
    for (int i = 0; i < columns.length; i++) {
      double sum = 0;
      for (int j = 0; j < size; j++) {
        sum += waiting[i][j];
      }
      double mean = sum / size;
      double square = 0;
      for (int j = 0; j < size; j++) {
        double apart = waiting[i][j] - mean;
        square += apart * apart;
      }
      double apart = mean - means[i];
      squares[i] += square + apart * apart * ((double) count * size / total);
      means[i] += apart * ((double) size / total);
    }
    count = total;
    size = 0;
  }

  /** How many numbers tell the shape, the count, the shape of a row, means and squares. */
  @Override
  byte[] state() {
    merge();
    int width = columns.length;
    if (count == 0) {
      return new State(3 * Long.BYTES).add(2).add(0).add(0).bytes();
    }
    int shape = width == 1 ? 1 : 2;
    State state = new State((1 + shape) * Long.BYTES + 2 * width * Double.BYTES);
    state.add(shape).add(count);
    if (width > 1) {
      state.add(width);
    }
    state.add(means);
    state.add(squares);
    return state.bytes();
  }
}
