package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.ExampleParser;
import io.gridflow.tfrecord.FeatureDecoder;
import io.gridflow.tfrecord.Kind;
import io.gridflow.tfrecord.MalformedExampleException;
import io.gridflow.tfrecord.StepReader;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeArrayWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeWriter;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.Platform;

/**
 * Writes the features of serialized Examples into Spark's rows, with one copy of the bytes and no
 * object per value.
 *
 * <p>Not safe for use by several threads.
 */
final class RowBuilder {
  /** A column that is read from a feature. */
  record Column(String name, int ordinal, ColumnType type) {}

  /** How values are treated that don't fit. */
  record Rules(boolean firstOfMany, boolean ansi) {}

  private final Column[] columns;
  private final Rules rules;
  private final boolean sequence;
  private final ExampleParser parser;
  private final FeatureDecoder decoder = new FeatureDecoder();
  private final StepReader steps = new StepReader();
  private final UnsafeRowWriter row;

  /** One for each size of element; the arrays of a row, and the inner arrays in those. */
  private final UnsafeArrayWriter[] arrays = new UnsafeArrayWriter[9];

  private final UnsafeArrayWriter[] innerArrays = new UnsafeArrayWriter[9];
  private final UnsafeArrayWriter outerArray;
  private final UnsafeRowWriter vector;
  private final UnsafeArrayWriter vectorValues;

  RowBuilder(List<Column> columns, boolean sequence, Rules rules, UnsafeRowWriter row) {
    this.columns = columns.toArray(Column[]::new);
    this.rules = rules;
    this.sequence = sequence;
    this.row = row;
    this.parser = ExampleParser.of(columns.stream().map(Column::name).toList(), sequence);
    this.outerArray = new UnsafeArrayWriter(row, 8);
    for (int bytes = 1; bytes <= 8; bytes *= 2) {
      arrays[bytes] = new UnsafeArrayWriter(row, bytes);
      innerArrays[bytes] = new UnsafeArrayWriter(outerArray, bytes);
    }
    this.vector = new UnsafeRowWriter(row, 4);
    this.vectorValues = new UnsafeArrayWriter(vector, 8);
  }

  /** Writes the columns of a record into the row, whose null bits are all clear. */
  void write(byte[] bytes, int offset, int length) throws MalformedExampleException {
    parser.parse(bytes, offset, length);
    for (int i = 0; i < columns.length; i++) {
      Column column = columns[i];
      switch (parser.place(i)) {
        case ABSENT -> row.setNullAt(column.ordinal);
        case FEATURES -> writeFeature(column, i);
        case FEATURE_LISTS -> writeSteps(column, i);
      }
    }
  }

  private void writeFeature(Column column, int number) throws MalformedExampleException {
    ColumnType type = column.type;
    Kind kind = decoder.open(parser.buffer(number), parser.start(number), parser.end(number));
    if (kind == Kind.NONE) {
      row.setNullAt(column.ordinal);
      return;
    }
    checkKind(column, kind);
    if (type.depth == 0) {
      int count = decode(kind);
      if (count == 0) {
        row.setNullAt(column.ordinal);
      } else if (count == 1 || rules.firstOfMany) {
        writeElement(row, column.ordinal, column, 0);
      } else {
        throw unfit(
            column,
            "has "
                + count
                + " values where the type holds one; declare it as an"
                + " array, or set multiValueScalar to 'first'");
      }
    } else if (type.depth == 2) {
      throw unfit(
          column,
          sequence
              ? "is in the record's context, where a list has no steps; declare it as an array"
              : "is an array of arrays, which only a SequenceExample can hold (recordType)");
    } else if (type.vector) {
      writeVector(column);
    } else {
      int before = row.cursor();
      writeArray(arrays[type.element.bytes], column, decode(kind));
      row.setOffsetAndSizeFromPreviousCursor(column.ordinal, before);
    }
  }

  private void writeSteps(Column column, int number) throws MalformedExampleException {
    ColumnType type = column.type;
    if (type.depth == 0 || type.vector) {
      throw unfit(column, "is a feature list with steps; declare it as an array of arrays");
    }
    byte[] buffer = parser.buffer(number);
    int start = parser.start(number);
    int end = parser.end(number);
    int count = steps.count(buffer, start, end);
    steps.open(buffer, start, end);
    int before = row.cursor();
    UnsafeArrayWriter outer = type.depth == 2 ? outerArray : arrays[type.element.bytes];
    outer.initialize(count);
    for (int step = 0; step < count; step++) {
      steps.next();
      Kind kind = decoder.open(buffer, steps.start(), steps.end());
      if (kind == Kind.NONE) {
        setNull(outer, type.depth == 2 ? 8 : type.element.bytes, step);
        continue;
      }
      checkKind(column, kind);
      int values = decode(kind);
      if (type.depth == 2) {
        int innerBefore = outer.cursor();
        writeArray(innerArrays[type.element.bytes], column, values);
        outer.setOffsetAndSizeFromPreviousCursor(step, innerBefore);
      } else if (values == 1 || (values > 1 && rules.firstOfMany)) {
        writeElement(outer, step, column, 0);
      } else {
        throw unfit(
            column,
            "has "
                + values
                + " values in step "
                + step
                + " where the type holds one; declare it as an array of arrays");
      }
    }
    row.setOffsetAndSizeFromPreviousCursor(column.ordinal, before);
  }

  private int decode(Kind kind) throws MalformedExampleException {
    return switch (kind) {
      case INT64 -> decoder.int64s();
      case FLOAT -> decoder.floats();
      case BYTES -> decoder.byteValues();
      case NONE -> 0;
    };
  }

  private void writeArray(UnsafeArrayWriter array, Column column, int count)
      throws MalformedExampleException {
    // A writer's cursor is an offset as Platform counts, the array's own header included.
    long data = array.cursor() + (long) UnsafeArrayData.calculateHeaderPortionInBytes(count);
    array.initialize(count);
    switch (column.type.element) {
      case FLOAT ->
          Platform.copyMemory(
              decoder.floatBuffer(),
              Platform.BYTE_ARRAY_OFFSET + (long) decoder.floatOffset(),
              array.getBuffer(),
              data,
              4L * count);
      case LONG ->
          Platform.copyMemory(
              decoder.int64Buffer(),
              Platform.LONG_ARRAY_OFFSET,
              array.getBuffer(),
              data,
              8L * count);
      default -> {
        for (int i = 0; i < count; i++) {
          writeElement(array, i, column, i);
        }
      }
    }
  }

  private void writeElement(UnsafeWriter to, int ordinal, Column column, int index)
      throws MalformedExampleException {
    switch (column.type.element) {
      case LONG -> to.write(ordinal, decoder.int64Buffer()[index]);
      case INT ->
          to.write(ordinal, (int) ranged(column, index, Integer.MIN_VALUE, Integer.MAX_VALUE));
      case SHORT ->
          to.write(ordinal, (short) ranged(column, index, Short.MIN_VALUE, Short.MAX_VALUE));
      case BYTE -> to.write(ordinal, (byte) ranged(column, index, Byte.MIN_VALUE, Byte.MAX_VALUE));
      case BOOLEAN -> to.write(ordinal, ranged(column, index, 0, 1) == 1);
      case FLOAT -> to.write(ordinal, decoder.floatAt(index));
      case DOUBLE -> to.write(ordinal, (double) decoder.floatAt(index));
      case DECIMAL -> writeDecimal(to, ordinal, column, decoder.floatAt(index));
      case STRING, BINARY ->
          to.write(
              ordinal,
              decoder.bytesBuffer(),
              decoder.bytesStart(index),
              decoder.bytesLength(index));
    }
  }

  private long ranged(Column column, int index, long least, long most)
      throws MalformedExampleException {
    long value = decoder.int64Buffer()[index];
    if (value < least || value > most) {
      throw unfit(column, "has the value " + value + ", which is out of the type's range");
    }
    return value;
  }

  private void writeDecimal(UnsafeWriter to, int ordinal, Column column, float value)
      throws MalformedExampleException {
    int precision = column.type.precision;
    int scale = column.type.scale;
    if (Float.isFinite(value)) {
      BigDecimal rounded = new BigDecimal((double) value).setScale(scale, RoundingMode.HALF_UP);
      if (rounded.precision() <= precision) {
        to.write(ordinal, Decimal.apply(rounded, precision, scale), precision, scale);
        return;
      }
    }
    if (rules.ansi) {
      throw unfit(column, "has the value " + value + ", which overflows the type");
    }
    // A null decimal of high precision keeps its space; the writer sees to it.
    if (precision <= Decimal.MAX_LONG_DIGITS()) {
      to.setNull8Bytes(ordinal);
    } else {
      to.write(ordinal, (Decimal) null, precision, scale);
    }
  }

  private void writeVector(Column column) throws MalformedExampleException {
    int count = decoder.floats();
    int before = row.cursor();
    vector.resetRowWriter();
    vector.write(0, (byte) 1);
    vector.setNullAt(1);
    vector.setNullAt(2);
    int valuesBefore = vector.cursor();
    vectorValues.initialize(count);
    for (int i = 0; i < count; i++) {
      vectorValues.write(i, (double) decoder.floatAt(i));
    }
    vector.setOffsetAndSizeFromPreviousCursor(3, valuesBefore);
    row.setOffsetAndSizeFromPreviousCursor(column.ordinal, before);
  }

  private static void setNull(UnsafeWriter to, int bytes, int ordinal) {
    switch (bytes) {
      case 1 -> to.setNull1Bytes(ordinal);
      case 2 -> to.setNull2Bytes(ordinal);
      case 4 -> to.setNull4Bytes(ordinal);
      default -> to.setNull8Bytes(ordinal);
    }
  }

  private static void checkKind(Column column, Kind kind) throws MalformedExampleException {
    if (kind != column.type.element.kind) {
      throw unfit(
          column,
          "is a " + kind.label() + ", the type needs a " + column.type.element.kind.label());
    }
  }

  private static MalformedExampleException unfit(Column column, String what) {
    return new MalformedExampleException(
        String.format(Locale.ROOT, "column '%s' (%s) %s", column.name, column.type, what));
  }
}
