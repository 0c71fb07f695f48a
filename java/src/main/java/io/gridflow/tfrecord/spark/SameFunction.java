package io.gridflow.tfrecord.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;

/** {@code pack} for columns that Spark already passes to Python efficiently: unchanged. */
final class SameFunction implements ScalarFunction<Object> {
  private static final long serialVersionUID = 1L;

  private final DataType type;

  SameFunction(DataType type) {
    this.type = type;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {type};
  }

  @Override
  public DataType resultType() {
    return type;
  }

  @Override
  public String name() {
    return "pack";
  }

  @Override
  public Object produceResult(InternalRow input) {
    return input.isNullAt(0) ? null : input.get(0, type);
  }
}
