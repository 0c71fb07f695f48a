package io.gridflow.adapt;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.Platform;

/** How often each integer occurs. */
final class Integers extends Counted {
  private final int column;
  private final NumberType type;
  private final byte[] value = new byte[Long.BYTES];

  Integers(int place, int column, boolean needsDocuments, NumberType type) {
    super(place, column, needsDocuments);
    this.column = column;
    this.type = type;
  }

  @Override
  void take(InternalRow row) {
    Platform.putLong(value, Platform.BYTE_ARRAY_OFFSET, type.integer(row, column));
    count(value, Platform.BYTE_ARRAY_OFFSET, Long.BYTES);
  }

  @Override
  Row row(Counts full, int token) {
    return RowFactory.create(
        place, null, full.number(token), full.count(token), full.documents(token), null);
  }
}
