package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.CorruptRecordException;
import io.gridflow.tfrecord.Kind;
import io.gridflow.tfrecord.MalformedExampleException;
import io.gridflow.tfrecord.RecordType;
import io.gridflow.tfrecord.TFRecordReader;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Makes rows of records: the columns that are asked for, then the partition's values.
 *
 * <p>Not safe for use by several threads.
 */
final class RowReader {
  private static final int INITIAL_ROW_BYTES = 1 << 13;

  private final UnsafeRowWriter row;
  private final int dataColumns;
  private final RowBuilder builder;

  /** Judges the columns that are not asked for, where the verdict on the whole record counts. */
  private final RowBuilder judge;

  private final UnsafeRowWriter judged;
  private final boolean bytesColumn;
  private final int corruptOrdinal;
  private final PartitionValues partition;

  RowReader(
      StructType dataSchema,
      StructType required,
      StructType partitionSchema,
      InternalRow partitionValues,
      Options options,
      boolean ansi) {
    dataColumns = required.size();
    row = new UnsafeRowWriter(dataColumns + partitionSchema.size(), INITIAL_ROW_BYTES);
    partition = new PartitionValues(partitionSchema, partitionValues, dataColumns);
    boolean sequence = options.recordType == RecordType.SEQUENCE_EXAMPLE;
    RowBuilder.Rules rules = new RowBuilder.Rules(options.firstOfMany, ansi);
    String corrupt = options.mode == Options.Mode.PERMISSIVE ? options.corruptColumn : null;
    corruptOrdinal = corrupt == null ? -1 : ordinalOf(required, corrupt);
    bytesColumn = options.recordType == RecordType.BYTE_ARRAY;
    List<RowBuilder.Column> columns = columns(required, corrupt);
    if (bytesColumn) {
      builder = null;
      judge = null;
      judged = null;
      return;
    }
    builder = columns.isEmpty() ? null : new RowBuilder(columns, sequence, rules, row);
    // Else whether a record is dropped, or called corrupt, would depend on the columns asked for.
    boolean judgesAll = options.mode == Options.Mode.DROPMALFORMED || corruptOrdinal >= 0;
    List<RowBuilder.Column> others = judgesAll ? columns(dataSchema, corrupt) : new ArrayList<>();
    others.removeIf(other -> columns.stream().anyMatch(c -> c.name().equals(other.name())));
    if (judgesAll && (builder == null || !others.isEmpty())) {
      judged = new UnsafeRowWriter(dataSchema.size(), INITIAL_ROW_BYTES);
      judge = new RowBuilder(others, sequence, rules, judged);
    } else {
      judged = null;
      judge = null;
    }
  }

  private static int ordinalOf(StructType schema, String name) {
    for (int i = 0; i < schema.size(); i++) {
      if (schema.apply(i).name().equals(name)) {
        return i;
      }
    }
    return -1;
  }

  private static List<RowBuilder.Column> columns(StructType schema, String corrupt) {
    List<RowBuilder.Column> columns = new ArrayList<>();
    for (int i = 0; i < schema.size(); i++) {
      StructField field = schema.apply(i);
      if (!field.name().equals(corrupt)) {
        columns.add(new RowBuilder.Column(field.name(), i, ColumnType.of(field.dataType())));
      }
    }
    return columns;
  }

  /**
   * Checks a schema to read.
   *
   * @throws IllegalArgumentException if the record type or a column's type can't give it
   */
  static void check(StructType schema, Options options) {
    for (StructField field : schema.fields()) {
      if (options.mode == Options.Mode.PERMISSIVE && field.name().equals(options.corruptColumn)) {
        DataType type = field.dataType();
        if (!(type instanceof BinaryType) && !(type instanceof StringType)) {
          throw new IllegalArgumentException(
              "column '"
                  + field.name()
                  + "' takes corrupt records as bytes, so its type must be"
                  + " BINARY or STRING, got "
                  + type.sql()
                  + ".");
        }
        continue;
      }
      ColumnType type = ColumnType.of(field.dataType());
      if (type == null) {
        throw new IllegalArgumentException(
            "column '"
                + field.name()
                + "' has the type "
                + field.dataType().sql()
                + ", which a feature can't provide.");
      }
      boolean bytes = options.recordType == RecordType.BYTE_ARRAY;
      if (bytes && (type.depth > 0 || type.element.kind != Kind.BYTES)) {
        throw new IllegalArgumentException(
            "with recordType ByteArray the one column must be BINARY, got '"
                + field.name()
                + "' "
                + type
                + ".");
      }
      if (type.depth == 2 && options.recordType == RecordType.EXAMPLE) {
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

  /** Makes a row without looking at the record, when no column of it is asked for. */
  boolean needsNoRecord() {
    return builder == null && judge == null && !(bytesColumn && dataColumns > 0);
  }

  /** The row of the record that the reader stands on. Valid until the next call. */
  UnsafeRow read(TFRecordReader record) throws MalformedExampleException {
    row.reset();
    row.zeroOutNullBytes();
    if (judge != null) {
      judged.reset();
      judged.zeroOutNullBytes();
      judge.write(record.buffer(), record.offset(), record.length());
    }
    if (bytesColumn) {
      for (int i = 0; i < dataColumns; i++) {
        if (i == corruptOrdinal) {
          row.setNullAt(i);
        } else {
          row.write(i, record.buffer(), record.offset(), record.length());
        }
      }
    } else if (builder != null) {
      builder.write(record.buffer(), record.offset(), record.length());
    }
    if (corruptOrdinal >= 0) {
      row.setNullAt(corruptOrdinal);
    }
    return finished();
  }

  /** The row of a record that can't be read: all null but for the column of corrupt records. */
  UnsafeRow corrupt(TFRecordReader record) {
    row.reset();
    row.zeroOutNullBytes();
    for (int i = 0; i < dataColumns; i++) {
      if (i == corruptOrdinal) {
        row.write(i, record.buffer(), record.offset(), record.length());
      } else {
        row.setNullAt(i);
      }
    }
    return finished();
  }

  private UnsafeRow finished() {
    partition.write(row);
    return row.getRow();
  }

  /** Whether reading may go on behind a failure, when the mode tolerates bad records. */
  static boolean isOfOneRecord(Exception e) {
    return e instanceof MalformedExampleException
        || (e instanceof CorruptRecordException damaged && damaged.skippable());
  }
}
