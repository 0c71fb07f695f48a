package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.ExampleEncoder;
import io.gridflow.tfrecord.Kind;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.bitset.BitSetMethods;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Serializes Spark's rows as Examples or SequenceExamples.
 *
 * <p>Not safe for use by several threads.
 */
final class RowEncoder {
  private static final VarHandle FLOAT_LE =
      MethodHandles.byteArrayViewVarHandle(float[].class, ByteOrder.LITTLE_ENDIAN);

  private final boolean sequence;
  private final String[] names;
  private final byte[][] keys;
  private final ColumnType[] types;
  private final ExampleEncoder encoder = new ExampleEncoder();
  private long[] longs = new long[64];

  RowEncoder(StructType schema, boolean sequence) {
    this.sequence = sequence;
    int columns = schema.size();
    names = schema.fieldNames();
    keys = new byte[columns][];
    types = new ColumnType[columns];
    for (int i = 0; i < columns; i++) {
      keys[i] = names[i].getBytes(StandardCharsets.UTF_8);
      types[i] = ColumnType.of(schema.apply(i).dataType());
    }
  }

  /**
   * Checks a schema to write.
   *
   * @throws IllegalArgumentException if a column can't be held by such a record
   */
  static void check(StructType schema, boolean sequence) {
    for (StructField field : schema.fields()) {
      ColumnType type = ColumnType.of(field.dataType());
      if (type == null) {
        throw new IllegalArgumentException(
            "column '"
                + field.name()
                + "' has the type "
                + field.dataType().sql()
                + ", which an Example can't hold; cast it to a number, a string or an array of"
                + " those (a timestamp: unix_micros(column)).");
      }
      if (type.depth == 2 && !sequence) {
        throw new IllegalArgumentException(
            "column '"
                + field.name()
                + "' is "
                + type
                + ", an array of arrays, which an Example"
                + " can't hold; set recordType to SequenceExample.");
      }
    }
  }

  /** Serializes a row; the bytes are in the encoder until the next call. */
  ExampleEncoder encode(InternalRow row) {
    // From the last column to the first, as the encoder writes backwards.
    if (sequence) {
      encoder.beginSequence();
      for (int i = types.length - 1; i >= 0; i--) {
        if (types[i].depth == 2 && !row.isNullAt(i)) {
          putSteps(i, row.getArray(i));
        }
      }
      encoder.beginContext();
    } else {
      encoder.reset();
    }
    for (int i = types.length - 1; i >= 0; i--) {
      if (types[i].depth < 2 && !row.isNullAt(i)) {
        ColumnType type = types[i];
        int end = encoder.mark();
        if (type.vector) {
          prependVector(i, row.getStruct(i, 4));
        } else if (type.depth == 1) {
          prependArray(i, row.getArray(i));
        } else {
          prependValue(i, row, i);
        }
        encoder.closeFeature(keys[i], type.element.kind, end);
      }
    }
    encoder.finish();
    return encoder;
  }

  private void putSteps(int column, ArrayData steps) {
    int end = encoder.beginSteps();
    for (int step = steps.numElements() - 1; step >= 0; step--) {
      if (steps.isNullAt(step)) {
        throw nullElement(column, step);
      }
      int stepEnd = encoder.mark();
      prependArray(column, steps.getArray(step));
      encoder.closeStep(types[column].element.kind, stepEnd);
    }
    encoder.closeSteps(keys[column], end);
  }

  private void prependArray(int column, ArrayData array) {
    int count = array.numElements();
    checkNulls(column, array, count);
    ColumnType type = types[column];
    if (type.element.kind == Kind.BYTES) {
      for (int i = count - 1; i >= 0; i--) {
        prependValue(column, array, i);
      }
    } else if (type.element.kind == Kind.INT64) {
      if (count > longs.length) {
        longs = new long[Math.max(count, 2 * longs.length)];
      }
      for (int i = 0; i < count; i++) {
        longs[i] = integer(type.element, array, i);
      }
      encoder.prependInt64s(longs, count);
    } else if (count > 0) {
      int at = encoder.prependFloatSpace(count);
      if (type.element == ColumnType.Element.FLOAT && array instanceof UnsafeArrayData unsafe) {
        Platform.copyMemory(
            unsafe.getBaseObject(),
            unsafe.getBaseOffset() + UnsafeArrayData.calculateHeaderPortionInBytes(count),
            encoder.buffer(),
            Platform.BYTE_ARRAY_OFFSET + (long) at,
            4L * count);
      } else {
        for (int i = 0; i < count; i++) {
          FLOAT_LE.set(encoder.buffer(), at + 4 * i, decimalNumber(column, array, i));
        }
      }
    }
  }

  private void checkNulls(int column, ArrayData array, int count) {
    if (array instanceof UnsafeArrayData unsafe
        && !BitSetMethods.anySet(
            unsafe.getBaseObject(), unsafe.getBaseOffset() + 8, (count + 63) / 64)) {
      return;
    }
    for (int i = 0; i < count; i++) {
      if (array.isNullAt(i)) {
        throw nullElement(column, i);
      }
    }
  }

  private IllegalArgumentException nullElement(int column, int index) {
    return new IllegalArgumentException(
        String.format(
            Locale.ROOT,
            "column '%s' (%s): element %d is null, and the lists of an Example hold no nulls;"
                + " use array_compact or coalesce before writing.",
            names[column],
            types[column],
            index));
  }

  private void prependValue(int column, SpecializedGetters from, int ordinal) {
    ColumnType type = types[column];
    switch (type.element.kind) {
      case INT64 -> encoder.prependInt64(integer(type.element, from, ordinal));
      case FLOAT -> encoder.prependFloat(decimalNumber(column, from, ordinal));
      default -> {
        if (from instanceof UnsafeRow row) {
          // The bytes where they lie: getBinary would copy them once more.
          long place = row.getLong(ordinal);
          int size = (int) place;
          int at = encoder.prependBytesSpace(size);
          Platform.copyMemory(
              row.getBaseObject(),
              row.getBaseOffset() + (place >>> 32),
              encoder.buffer(),
              Platform.BYTE_ARRAY_OFFSET + (long) at,
              size);
        } else if (type.element == ColumnType.Element.STRING) {
          UTF8String text = from.getUTF8String(ordinal);
          int at = encoder.prependBytesSpace(text.numBytes());
          text.writeToMemory(encoder.buffer(), Platform.BYTE_ARRAY_OFFSET + (long) at);
        } else {
          byte[] bytes = from.getBinary(ordinal);
          encoder.prependBytesValue(bytes, 0, bytes.length);
        }
      }
    }
  }

  private static long integer(ColumnType.Element element, SpecializedGetters from, int ordinal) {
    return switch (element) {
      case LONG -> from.getLong(ordinal);
      case INT -> from.getInt(ordinal);
      case SHORT -> from.getShort(ordinal);
      case BYTE -> from.getByte(ordinal);
      case BOOLEAN -> from.getBoolean(ordinal) ? 1 : 0;
      default -> throw new IllegalStateException(element + " is not an integer type");
    };
  }

  private float decimalNumber(int column, SpecializedGetters from, int ordinal) {
    ColumnType type = types[column];
    return switch (type.element) {
      case FLOAT -> from.getFloat(ordinal);
      case DOUBLE -> narrowed(column, from.getDouble(ordinal));
      case DECIMAL ->
          from.getDecimal(ordinal, type.precision, type.scale).toJavaBigDecimal().floatValue();
      default -> throw new IllegalStateException(type.element + " is not a floating-point type");
    };
  }

  /** A double as the float that an Example holds; an infinite one only if the double is. */
  private float narrowed(int column, double value) {
    float narrow = (float) value;
    if (Float.isInfinite(narrow) && !Double.isInfinite(value)) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "column '%s' (%s): the value %s doesn't fit into the 32 bits of a FloatList's"
                  + " numbers; scale it before writing.",
              names[column],
              types[column],
              value));
    }
    return narrow;
  }

  /** A vector as Spark stores it: type (0 sparse, 1 dense), size, indices, values. */
  private void prependVector(int column, InternalRow vector) {
    ArrayData values = vector.getArray(3);
    boolean dense = vector.getByte(0) == 1;
    int size = dense ? values.numElements() : vector.getInt(1);
    if (size == 0) {
      return;
    }
    int at = encoder.prependFloatSpace(size);
    byte[] buffer = encoder.buffer();
    if (dense) {
      for (int i = 0; i < size; i++) {
        FLOAT_LE.set(buffer, at + 4 * i, narrowed(column, values.getDouble(i)));
      }
    } else {
      Arrays.fill(buffer, at, at + 4 * size, (byte) 0);
      ArrayData indices = vector.getArray(2);
      for (int i = 0; i < indices.numElements(); i++) {
        FLOAT_LE.set(buffer, at + 4 * indices.getInt(i), narrowed(column, values.getDouble(i)));
      }
    }
  }
}
