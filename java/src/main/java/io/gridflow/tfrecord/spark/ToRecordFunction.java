package io.gridflow.tfrecord.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** A struct to the bytes of a record. */
final class ToRecordFunction implements ScalarFunction<byte[]> {
  private static final long serialVersionUID = 1L;

  private final String name;
  private final StructType features;
  private final boolean sequence;
  private transient RowEncoder encoder;

  ToRecordFunction(String name, StructType features, boolean sequence) {
    this.name = name;
    this.features = features;
    this.sequence = sequence;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {features};
  }

  @Override
  public DataType resultType() {
    return DataTypes.BinaryType;
  }

  @Override
  public String name() {
    return name;
  }

  // Synchronized, as Spark may evaluate one plan's expression in several threads of the driver.
  @Override
  public synchronized byte[] produceResult(InternalRow input) {
    if (input.isNullAt(0)) {
      return null;
    }
    if (encoder == null) {
      encoder = new RowEncoder(features, sequence);
    }
    return encoder.encode(input.getStruct(0, features.size())).toByteArray();
  }
}
