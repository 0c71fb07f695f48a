package io.gridflow.feed;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The values of one column, as Arrow has them, until they are written. */
abstract class Column implements AutoCloseable {
  final int place;
  final String name;
  final Nulls nulls;
  private int rows;

  Column(int place, String name, BufferAllocator allocator) {
    this.place = place;
    this.name = name;
    this.nulls = new Nulls(allocator);
  }

  /** See {@link Batch}. */
  static List<Column> of(
      StructType schema,
      List<Integer> places,
      List<String> names,
      String timeZone,
      boolean isFinal,
      BufferAllocator allocator) {
    List<Column> columns = new ArrayList<>();
    for (int i = 0; i < places.size(); i++) {
      int place = places.get(i);
      DataType type = schema.apply(place).dataType();
      columns.add(of(type, place, names.get(i), timeZone, isFinal, allocator));
    }
    return columns;
  }

  private static Column of(
      DataType type,
      int place,
      String name,
      String timeZone,
      boolean isFinal,
      BufferAllocator allocator) {
    Kind kind = Kind.of(type);
    if (kind != null) {
      return new Numbers(place, name, kind, kind.typeOf(type, timeZone), isFinal, allocator);
    } else if (type instanceof BooleanType) {
      return new Booleans(place, name, isFinal, allocator);
    } else if (type instanceof StringType || type instanceof BinaryType) {
      return new Texts(place, name, type instanceof StringType, allocator);
    } else if (type instanceof ArrayType array && Arrays.kind(array) != null) {
      return new Arrays(place, name, Arrays.kind(array), isFinal, allocator);
    }
    return new Others(place, name, type, timeZone, allocator);
  }

  /** Takes a row's value, and keeps no part of it: Spark uses it again. */
  final void add(InternalRow row) {
    if (row.isNullAt(place)) {
      addNull(row);
    } else {
      take(row);
    }
    rows++;
  }

  /** Takes the values of some rows. */
  final void add(ColumnarBatch batch, int first, int more) {
    ColumnVector vector = batch.column(place);
    if (!vector.hasNull() && copy(vector, first, more)) {
      rows += more;
      return;
    }
    for (int row = first; row < first + more; row++) {
      add(batch.getRow(row));
    }
  }

  /** Takes a row's value, which isn't null. */
  abstract void take(InternalRow row);

  /** Takes a row whose value is null. */
  void addNull(InternalRow row) {
    nulls.set(rows);
    addEmpty();
  }

  /** Takes a value that means nothing. */
  abstract void addEmpty();

  /** Takes values without nulls in bulk, if it can. */
  boolean copy(ColumnVector vector, int first, int more) {
    return false;
  }

  /** Whether a vector's values lie beside each other. */
  static boolean isPlain(ColumnVector vector) {
    return vector instanceof WritableColumnVector writable && !writable.hasDictionary();
  }

  /** About how many bytes there are. */
  abstract long bytes();

  /** Adds what Arrow wants to know of the column and its memory; returns its type. */
  abstract Field finish(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers);

  /** Adds how many rows there are, and which of them are null: the first of what Arrow wants. */
  final void finishNulls(List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    nodes.add(nulls.node(rows));
    buffers.add(nulls.bits(rows));
  }

  /** Forgets all values. */
  void clear() {
    nulls.clear();
    rows = 0;
  }

  @Override
  public void close() {
    nulls.close();
  }

  final int rows() {
    return rows;
  }

  final Field field(ArrowType type, Map<String, String> facts, Field... items) {
    return new Field(name, new FieldType(true, type, null, facts), List.of(items));
  }
}
