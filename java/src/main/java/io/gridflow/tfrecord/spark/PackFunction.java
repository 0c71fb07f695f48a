package io.gridflow.tfrecord.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

/**
 * An array of numbers as its bytes, for Python: Spark writes the elements of arrays to Arrow one by
 * one, and bytes at once.
 *
 * <p>The result is a struct, whose first field is named after the elements' type and holds them in
 * the machine's order; the second holds a byte for each element, 1 for a null, and is null where
 * the array holds no null. A null array gives null.
 */
public final class PackFunction implements ScalarFunction<InternalRow> {
  /** What the name of the first field begins with. */
  static final String PREFIX = "__gridflow_packed_";

  private static final long serialVersionUID = 1L;

  private final ArrayType type;
  private final int width;

  PackFunction(ArrayType type) {
    this.type = type;
    this.width = width(type);
  }

  /** The bytes of an element; 0 for types whose arrays aren't packed. */
  static int width(DataType type) {
    if (!(type instanceof ArrayType array)) {
      return 0;
    }
    DataType element = array.elementType();
    if (element instanceof ShortType) {
      return Short.BYTES;
    }
    if (element instanceof IntegerType || element instanceof FloatType) {
      return Integer.BYTES;
    }
    return element instanceof LongType || element instanceof DoubleType ? Long.BYTES : 0;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {type};
  }

  @Override
  public DataType resultType() {
    return new StructType()
        .add(PREFIX + type.elementType().simpleString(), DataTypes.BinaryType, true)
        .add("nulls", DataTypes.BinaryType, true);
  }

  @Override
  public String name() {
    return "pack";
  }

  /** What Spark's generated code calls, without a row around the argument. */
  public InternalRow invoke(ArrayData array) {
    if (array == null) {
      return null;
    }
    int elements = array.numElements();
    byte[] values = new byte[Math.multiplyExact(elements, width)];
    boolean hasNulls = false;
    if (array instanceof UnsafeArrayData unsafe) {
      int words = (elements + 63) / 64;
      long bitset = unsafe.getBaseOffset() + Long.BYTES;
      for (int word = 0; word < words && !hasNulls; word++) {
        hasNulls = Platform.getLong(unsafe.getBaseObject(), bitset + (long) word * Long.BYTES) != 0;
      }
      Platform.copyMemory(
          unsafe.getBaseObject(),
          bitset + (long) words * Long.BYTES,
          values,
          Platform.BYTE_ARRAY_OFFSET,
          values.length);
    } else {
      for (int i = 0; i < elements; i++) {
        if (array.isNullAt(i)) {
          hasNulls = true;
        } else {
          put(values, i, array);
        }
      }
    }
    return new GenericInternalRow(new Object[] {values, hasNulls ? nulls(array) : null});
  }

  @Override
  public InternalRow produceResult(InternalRow input) {
    return invoke(input.isNullAt(0) ? null : input.getArray(0));
  }

  private void put(byte[] values, int i, ArrayData array) {
    long at = Platform.BYTE_ARRAY_OFFSET + (long) i * width;
    DataType element = type.elementType();
    if (element instanceof FloatType) {
      Platform.putFloat(values, at, array.getFloat(i));
    } else if (element instanceof DoubleType) {
      Platform.putDouble(values, at, array.getDouble(i));
    } else if (element instanceof IntegerType) {
      Platform.putInt(values, at, array.getInt(i));
    } else if (element instanceof LongType) {
      Platform.putLong(values, at, array.getLong(i));
    } else {
      Platform.putShort(values, at, array.getShort(i));
    }
  }

  private static byte[] nulls(ArrayData array) {
    byte[] nulls = new byte[array.numElements()];
    for (int i = 0; i < nulls.length; i++) {
      nulls[i] = (byte) (array.isNullAt(i) ? 1 : 0);
    }
    return nulls;
  }
}
