package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.Kind;
import java.io.Serializable;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.UserDefinedType;

/**
 * What a Spark type means in an Example: the type of single values, and how deep they are nested.
 */
final class ColumnType implements Serializable {
  private static final long serialVersionUID = 1L;

  /** The type of single values, and the bytes that one takes in an array of Spark's rows. */
  enum Element {
    LONG(Kind.INT64, 8),
    INT(Kind.INT64, 4),
    SHORT(Kind.INT64, 2),
    BYTE(Kind.INT64, 1),
    BOOLEAN(Kind.INT64, 1),
    FLOAT(Kind.FLOAT, 4),
    DOUBLE(Kind.FLOAT, 8),
    DECIMAL(Kind.FLOAT, 8),
    STRING(Kind.BYTES, 8),
    BINARY(Kind.BYTES, 8);

    final Kind kind;
    final int bytes;

    Element(Kind kind, int bytes) {
      this.kind = kind;
      this.bytes = bytes;
    }
  }

  final Element element;

  /** 0 for a value, 1 for an array, 2 for an array of arrays. */
  final int depth;

  /** An ML vector: doubles in Spark's rows, floats in an Example. Depth 1. */
  final boolean vector;

  final int precision;
  final int scale;

  private final String sql;

  private ColumnType(DataType type, Element element, int depth, boolean vector) {
    this.element = element;
    this.depth = depth;
    this.vector = vector;
    this.sql = type.sql();
    DataType leaf = type;
    while (leaf instanceof ArrayType array) {
      leaf = array.elementType();
    }
    precision = leaf instanceof DecimalType decimal ? decimal.precision() : 0;
    scale = leaf instanceof DecimalType decimal ? decimal.scale() : 0;
  }

  /** The meaning of a Spark type, null if it has none. */
  static ColumnType of(DataType type) {
    if (type instanceof UserDefinedType<?> && type.getClass().getSimpleName().equals("VectorUDT")) {
      return new ColumnType(type, Element.DOUBLE, 1, true);
    }
    int depth = 0;
    DataType leaf = type;
    while (leaf instanceof ArrayType array) {
      leaf = array.elementType();
      depth++;
    }
    Element element = elementOf(leaf);
    return element == null || depth > 2 ? null : new ColumnType(type, element, depth, false);
  }

  private static Element elementOf(DataType type) {
    if (type instanceof LongType) {
      return Element.LONG;
    } else if (type instanceof IntegerType) {
      return Element.INT;
    } else if (type instanceof ShortType) {
      return Element.SHORT;
    } else if (type instanceof ByteType) {
      return Element.BYTE;
    } else if (type instanceof BooleanType) {
      return Element.BOOLEAN;
    } else if (type instanceof FloatType) {
      return Element.FLOAT;
    } else if (type instanceof DoubleType) {
      return Element.DOUBLE;
    } else if (type instanceof DecimalType) {
      return Element.DECIMAL;
    } else if (type instanceof StringType) {
      return Element.STRING;
    } else if (type instanceof BinaryType) {
      return Element.BINARY;
    }
    return null;
  }

  /** The type in SQL. */
  @Override
  public String toString() {
    return sql;
  }
}
