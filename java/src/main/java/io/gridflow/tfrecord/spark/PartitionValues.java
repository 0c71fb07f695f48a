package io.gridflow.tfrecord.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Writes a partition's values behind the columns of a record. */
final class PartitionValues {
  private final Object[] values;
  private final DecimalType[] decimals;
  private final int firstOrdinal;

  PartitionValues(StructType schema, InternalRow row, int firstOrdinal) {
    this.firstOrdinal = firstOrdinal;
    values = new Object[schema.size()];
    decimals = new DecimalType[schema.size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = row.isNullAt(i) ? null : row.get(i, schema.apply(i).dataType());
      decimals[i] = schema.apply(i).dataType() instanceof DecimalType decimal ? decimal : null;
    }
  }

  /** Writes all values. Which type a column has shows in its value: dates are ints, and so on. */
  void write(UnsafeRowWriter row) {
    for (int i = 0; i < values.length; i++) {
      int ordinal = firstOrdinal + i;
      Object value = values[i];
      if (value == null) {
        row.setNullAt(ordinal);
      } else if (value instanceof UTF8String text) {
        row.write(ordinal, text);
      } else if (value instanceof Integer number) {
        row.write(ordinal, number.intValue());
      } else if (value instanceof Long number) {
        row.write(ordinal, number.longValue());
      } else if (value instanceof Boolean bool) {
        row.write(ordinal, bool.booleanValue());
      } else if (value instanceof Double number) {
        row.write(ordinal, number.doubleValue());
      } else if (value instanceof Float number) {
        row.write(ordinal, number.floatValue());
      } else if (value instanceof Short number) {
        row.write(ordinal, number.shortValue());
      } else if (value instanceof Byte number) {
        row.write(ordinal, number.byteValue());
      } else if (value instanceof byte[] bytes) {
        row.write(ordinal, bytes);
      } else if (value instanceof Decimal decimal) {
        row.write(ordinal, decimal, decimals[i].precision(), decimals[i].scale());
      } else {
        throw new IllegalArgumentException(
            "a partition column of " + value.getClass().getName() + " is not supported");
      }
    }
  }
}
