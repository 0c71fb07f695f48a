package io.gridflow.adapt;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;

/** Spark's numeric types, and how to read each one. */
enum NumberType {
  BOOLEAN,
  BYTE,
  SHORT,
  INT,
  LONG,
  FLOAT,
  DOUBLE;

  static NumberType of(DataType type) {
    if (type instanceof BooleanType) {
      return BOOLEAN;
    } else if (type instanceof ByteType) {
      return BYTE;
    } else if (type instanceof ShortType) {
      return SHORT;
    } else if (type instanceof IntegerType) {
      return INT;
    } else if (type instanceof LongType) {
      return LONG;
    } else if (type instanceof FloatType) {
      return FLOAT;
    } else if (type instanceof DoubleType) {
      return DOUBLE;
    }
    throw new IllegalArgumentException("a column of numbers is needed, got " + type.simpleString());
  }

  /** A number of an integer type. */
  long integer(InternalRow row, int column) {
    return switch (this) {
      case BOOLEAN -> row.getBoolean(column) ? 1 : 0;
      case BYTE -> row.getByte(column);
      case SHORT -> row.getShort(column);
      case INT -> row.getInt(column);
      case LONG -> row.getLong(column);
      case FLOAT, DOUBLE -> throw new IllegalStateException("not an integer type");
    };
  }

  double real(InternalRow row, int column) {
    return switch (this) {
      case FLOAT -> row.getFloat(column);
      case DOUBLE -> row.getDouble(column);
      case BOOLEAN, BYTE, SHORT, INT, LONG -> integer(row, column);
    };
  }

  /** A number, rounded once: a long that became a double before would be rounded twice. */
  float single(InternalRow row, int column) {
    return switch (this) {
      case FLOAT -> row.getFloat(column);
      case DOUBLE -> (float) row.getDouble(column);
      case BOOLEAN, BYTE, SHORT, INT, LONG -> integer(row, column);
    };
  }
}
