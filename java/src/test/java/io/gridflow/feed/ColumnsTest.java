package io.gridflow.feed;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ColumnsTest {
  private static final StructType SCHEMA =
      new StructType()
          .add("flag", DataTypes.BooleanType)
          .add("tiny", DataTypes.ByteType)
          .add("small", DataTypes.ShortType)
          .add("whole", DataTypes.IntegerType)
          .add("big", DataTypes.LongType)
          .add("single", DataTypes.FloatType)
          .add("real", DataTypes.DoubleType)
          .add("day", DataTypes.DateType)
          .add("text", DataTypes.StringType)
          .add("bytes", DataTypes.BinaryType)
          .add("even", DataTypes.createArrayType(DataTypes.FloatType))
          .add("uneven", DataTypes.createArrayType(DataTypes.LongType))
          .add("fields", new StructType().add("a", DataTypes.IntegerType));

  @TempDir Path folder;

  private static InternalRow drawn(Random random, double nulls) {
    Object[] values = {
      random.nextBoolean(),
      (byte) random.nextInt(),
      (short) random.nextInt(),
      random.nextInt(),
      random.nextLong(),
      random.nextFloat(),
      random.nextDouble(),
      random.nextInt(9999),
      UTF8String.fromString("ä".repeat(random.nextInt(4))),
      "b".repeat(random.nextInt(4)).getBytes(StandardCharsets.UTF_8),
      new GenericArrayData(new float[] {random.nextFloat(), random.nextFloat()}),
      new GenericArrayData(random.longs(random.nextInt(4)).toArray()),
      new GenericInternalRow(new Object[] {random.nextInt()}),
    };
    for (int i = 0; i < values.length; i++) {
      values[i] = random.nextDouble() < nulls ? null : values[i];
    }
    return new GenericInternalRow(values);
  }

  private static Layout layout(boolean isFinal) {
    List<Integer> places = new ArrayList<>();
    for (int i = 0; i < SCHEMA.size(); i++) {
      places.add(i);
    }
    Layout.Part part = new Layout.Part(places, List.of(SCHEMA.fieldNames()));
    return new Layout("", "rows", SCHEMA, -1, List.of(part), "UTC", isFinal);
  }

  /** What a file has of these rows: the types, and each column's values. */
  private List<String> written(Layout layout, List<InternalRow> rows, ColumnarBatch batch)
      throws IOException {
    Path path = Files.createTempFile(folder, "rows", ".arrow");
    Files.delete(path);
    try (BufferAllocator allocator = new RootAllocator()) {
      Layout.Part part = layout.parts().get(0);
      List<Column> columns =
          Column.of(
              layout.schema(),
              part.places(),
              part.names(),
              layout.timeZone(),
              layout.isFinal(),
              allocator);
      List<Field> fields = new ArrayList<>();
      List<ArrowFieldNode> nodes = new ArrayList<>();
      List<ArrowBuf> buffers = new ArrayList<>();
      for (int round = 0; round < 2; round++) { // memory is used again
        columns.forEach(Column::clear);
        fields.clear();
        nodes.clear();
        buffers.clear();
        for (Column column : columns) {
          rows.forEach(column::add);
          if (batch != null) {
            column.add(batch, 0, 3);
            column.add(batch, 3, batch.numRows() - 3);
          }
          fields.add(column.finish(nodes, buffers));
        }
      }
      try (SegmentFile file = new SegmentFile(path, new Schema(fields));
          ArrowRecordBatch all =
              new ArrowRecordBatch(
                  rows.size() + (batch == null ? 0 : batch.numRows()), nodes, buffers)) {
        file.write(all);
        file.end();
      }
      columns.forEach(Column::close);
    }
    return read(path);
  }

  private static List<String> read(Path path) throws IOException {
    List<String> found = new ArrayList<>();
    try (BufferAllocator allocator = new RootAllocator();
        FileChannel channel = FileChannel.open(path);
        ArrowFileReader reader = new ArrowFileReader(channel, allocator)) {
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      assertTrue(reader.loadNextBatch());
      for (FieldVector vector : root.getFieldVectors()) {
        Field field = root.getSchema().findField(vector.getName()); // vectors rename items
        StringBuilder values = new StringBuilder(field.toString());
        for (int i = 0; i < root.getRowCount(); i++) {
          Object value = vector.getObject(i);
          values
              .append('|')
              .append(value instanceof byte[] b ? new String(b, StandardCharsets.UTF_8) : value);
        }
        found.add(values.toString());
      }
    }
    return found;
  }

  private static List<InternalRow> rows(int count, double nulls) {
    Random random = new Random(count);
    List<InternalRow> rows = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      rows.add(drawn(random, nulls));
    }
    return rows;
  }

  private static List<InternalRow> unsafe(List<InternalRow> rows) {
    UnsafeProjection projection = UnsafeProjection.create(SCHEMA);
    List<InternalRow> copies = new ArrayList<>();
    rows.forEach(row -> copies.add(projection.apply(row).copy()));
    return copies;
  }

  @Test
  void allKindsOfRowsGiveTheSameFile() throws IOException {
    for (double nulls : new double[] {0, 0.3}) {
      for (boolean isFinal : new boolean[] {false, true}) {
        List<InternalRow> rows = rows(70, nulls);
        List<String> expected = written(layout(isFinal), rows, null);
        assertEquals(expected, written(layout(isFinal), unsafe(rows), null));
      }
    }
  }

  @Test
  void valuesAreThoseThatWereGiven() throws IOException {
    List<InternalRow> rows = rows(9, 0);
    List<String> found = written(layout(false), rows, null);
    for (int place : new int[] {0, 1, 2, 3, 4, 5, 6, 8}) {
      StringBuilder expected = new StringBuilder();
      for (InternalRow row : rows) {
        expected.append('|').append(row.get(place, SCHEMA.apply(place).dataType()));
      }
      assertTrue(found.get(place).endsWith(expected.toString()), found.get(place));
    }
    assertTrue(found.get(11).contains("uneven: List<element: Int(64, true)>"), found.get(11));
  }

  @Test
  void columnsWithoutNullsHaveTheFormOfTheSpool() throws IOException {
    List<String> without = written(layout(true), rows(9, 0), null);
    assertTrue(without.get(0).startsWith("flag: Int(8, false)"), without.get(0));
    assertTrue(without.get(7).startsWith("day: Int(32, true)"), without.get(7));
    assertTrue(without.get(10).startsWith("even: FixedSizeList(2)<item: "), without.get(10));
    List<String> with = written(layout(true), rows(50, 0.3), null);
    assertTrue(with.get(0).startsWith("flag: Bool"), with.get(0));
    assertTrue(with.get(7).startsWith("day: Date(DAY)"), with.get(7));
    assertTrue(with.get(10).startsWith("even: List<element: "), with.get(10));
  }

  /** In bulk where values lie beside each other; with dictionaries and nulls one by one. */
  @Test
  void batchesOfColumnsGiveWhatTheirRowsGive() throws IOException {
    for (boolean hasDictionary : new boolean[] {false, true}) {
      for (boolean hasNulls : new boolean[] {false, true}) {
        try (ColumnarBatch batch = batch(hasDictionary, hasNulls)) {
          List<InternalRow> rows = new ArrayList<>();
          batch.rowIterator().forEachRemaining(row -> rows.add(row.copy()));
          for (boolean isFinal : new boolean[] {false, true}) {
            List<String> expected = written(layout(isFinal), rows, null);
            assertEquals(expected, written(layout(isFinal), List.of(), batch));
          }
        }
      }
    }
  }

  private static ColumnarBatch batch(boolean hasDictionary, boolean hasNulls) {
    int count = 40;
    OnHeapColumnVector[] vectors = OnHeapColumnVector.allocateColumns(count, SCHEMA);
    for (int row = 0; row < count; row++) {
      vectors[0].putBoolean(row, row % 3 == 0);
      vectors[1].putByte(row, (byte) row);
      vectors[2].putShort(row, (short) -row);
      vectors[3].putInt(row, 7 * row);
      vectors[4].putLong(row, -9L * row);
      vectors[5].putFloat(row, row / 7F);
      vectors[6].putDouble(row, row / 9.0);
      vectors[7].putInt(row, row);
      vectors[8].putByteArray(row, "x".repeat(row % 5).getBytes(StandardCharsets.UTF_8));
      vectors[9].putByteArray(row, new byte[row % 4]);
      // The arrays of every other row lie behind all others.
      vectors[10].putArray(row, row % 2 == 0 ? row : 2 * count - row - 1, 2);
      vectors[11].putArray(row, row, row % 3);
      vectors[12].getChild(0).putInt(row, row);
    }
    for (int item = 0; item < 2 * count; item++) {
      vectors[10].getChild(0).reserve(2 * count + 2);
      vectors[11].getChild(0).reserve(2 * count + 2);
      vectors[10].getChild(0).putFloat(item, item / 3F);
      vectors[11].getChild(0).putLong(item, 5L * item);
    }
    if (hasDictionary) {
      WritableColumnVector numbers = vectors[3].reserveDictionaryIds(count);
      for (int row = 0; row < count; row++) {
        numbers.putInt(row, row % 3);
      }
      vectors[3].setDictionary(new Thrice());
    }
    if (hasNulls) {
      for (int row = 1; row < count; row += 4) {
        for (OnHeapColumnVector vector : vectors) {
          vector.putNull(row);
        }
      }
      vectors[11].getChild(0).putNull(5);
    }
    return new ColumnarBatch(vectors, count);
  }

  /** A dictionary of numbers. */
  private static final class Thrice
      implements org.apache.spark.sql.execution.vectorized.Dictionary {
    @Override
    public int decodeToInt(int id) {
      return 3 * id;
    }

    @Override
    public long decodeToLong(int id) {
      return 3L * id;
    }

    @Override
    public float decodeToFloat(int id) {
      return 3F * id;
    }

    @Override
    public double decodeToDouble(int id) {
      return 3.0 * id;
    }

    @Override
    public byte[] decodeToBinary(int id) {
      throw new UnsupportedOperationException();
    }
  }

  @Test
  void memoryGrowsAndKeepsWhatItHas() {
    try (BufferAllocator allocator = new RootAllocator();
        Memory memory = new Memory(allocator)) {
      for (int i = 0; i < 5000; i++) {
        memory.appendInt(i);
      }
      assertEquals(20_000, memory.filled().readableBytes());
      assertEquals(4999, memory.filled().getInt(4 * 4999));
      assertThrows(ArithmeticException.class, () -> memory.append(Long.MAX_VALUE));
      memory.clear();
      assertEquals(0, memory.filled().readableBytes());
    }
  }
}
