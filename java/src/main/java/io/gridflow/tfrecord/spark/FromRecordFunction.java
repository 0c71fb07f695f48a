package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.MalformedExampleException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** The bytes of a record to a struct. Null for null; an error for bytes that are no record. */
final class FromRecordFunction implements ScalarFunction<InternalRow> {
  private static final long serialVersionUID = 1L;

  private final String name;
  private final StructType features;
  private final boolean sequence;
  private transient UnsafeRowWriter row;
  private transient RowBuilder builder;

  FromRecordFunction(String name, StructType features, boolean sequence) {
    this.name = name;
    this.features = features;
    this.sequence = sequence;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.BinaryType, features};
  }

  @Override
  public DataType resultType() {
    // Any feature may be absent.
    return asNullable(features);
  }

  private static StructType asNullable(StructType type) {
    StructType nullable = new StructType();
    for (var field : type.fields()) {
      nullable = nullable.add(field.name(), nullable(field.dataType()), true);
    }
    return nullable;
  }

  private static DataType nullable(DataType type) {
    return type instanceof ArrayType array
        ? DataTypes.createArrayType(nullable(array.elementType()), true)
        : type;
  }

  @Override
  public String name() {
    return name;
  }

  // Synchronized, as Spark may evaluate one plan's expression in several threads of the driver.
  @Override
  public synchronized InternalRow produceResult(InternalRow input) {
    if (input.isNullAt(0)) {
      return null;
    }
    if (builder == null) {
      List<RowBuilder.Column> columns = new ArrayList<>();
      for (int i = 0; i < features.size(); i++) {
        columns.add(
            new RowBuilder.Column(
                features.apply(i).name(), i, ColumnType.of(features.apply(i).dataType())));
      }
      row = new UnsafeRowWriter(features.size(), 1 << 10);
      builder = new RowBuilder(columns, sequence, new RowBuilder.Rules(false, true), row);
    }
    byte[] bytes = input.getBinary(0);
    row.reset();
    row.zeroOutNullBytes();
    try {
      builder.write(bytes, 0, bytes.length);
    } catch (MalformedExampleException e) {
      throw Failures.unchecked(name + ": " + e.getMessage(), e);
    }
    return row.getRow().copy();
  }
}
