package io.gridflow.adapt;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/** How often each string occurs. */
class Strings extends Counted {
  final int column;

  Strings(int place, int column, boolean needsDocuments) {
    super(place, column, needsDocuments);
    this.column = column;
  }

  @Override
  void take(InternalRow row) {
    UTF8String text = row.getUTF8String(column);
    count(text.getBaseObject(), text.getBaseOffset(), text.numBytes());
  }

  @Override
  final Row row(Counts full, int token) {
    return RowFactory.create(
        place, full.token(token), null, full.count(token), full.documents(token), null);
  }
}
