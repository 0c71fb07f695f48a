package io.gridflow.inference;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;

/** The predictions for a batch, as rows of one column. */
final class Values implements AutoCloseable {
  private final ArrowStreamReader reader;
  private final ColumnarBatch batch;
  private final UnsafeProjection projection;
  private final GenericInternalRow one = new GenericInternalRow(1);

  /** Where arrays of numbers are copied as a whole; null where they aren't. */
  private final ListVector arrays;

  private final int width;

  Values(FileChannel channel, DataType type, UnsafeProjection projection, BufferAllocator allocator)
      throws IOException {
    this.projection = projection;
    reader = new ArrowStreamReader(channel.position(0), allocator);
    FieldVector vector = load();
    batch =
        new ColumnarBatch(
            new ColumnVector[] {new ArrowColumnVector(vector)}, vector.getValueCount());
    width = type instanceof ArrayType array ? width(array.elementType()) : 0;
    boolean isPlain =
        width > 0
            && vector instanceof ListVector list
            && list.getDataVector() instanceof BaseFixedWidthVector items
            && !(items instanceof BitVector)
            && items.getNullCount() == 0;
    arrays = isPlain ? (ListVector) vector : null;
  }

  private FieldVector load() throws IOException {
    try {
      if (!reader.loadNextBatch()) {
        throw new IOException("the model's process sent no predictions");
      }
      return reader.getVectorSchemaRoot().getVector(0);
    } catch (IOException | RuntimeException error) {
      close();
      throw error;
    }
  }

  /** Bytes of a number in an array; 0 for anything else. */
  private static int width(DataType type) {
    boolean isNumber =
        type instanceof ByteType
            || type instanceof ShortType
            || type instanceof IntegerType
            || type instanceof LongType
            || type instanceof FloatType
            || type instanceof DoubleType;
    return isNumber && !(type instanceof BooleanType) ? type.defaultSize() : 0;
  }

  int rows() {
    return batch.numRows();
  }

  /** A row's prediction; the next one takes its memory. */
  UnsafeRow get(int row) {
    if (arrays == null) {
      return projection.apply(batch.getRow(row));
    }
    one.update(0, arrays.isNull(row) ? null : array(row));
    return projection.apply(one);
  }

  private UnsafeArrayData array(int row) {
    int begin = arrays.getElementStartIndex(row);
    int count = arrays.getElementEndIndex(row) - begin;
    int header = UnsafeArrayData.calculateHeaderPortionInBytes(count);
    byte[] bytes = new byte[(int) (((long) header + (long) count * width + 7) / 8 * 8)];
    Platform.putLong(bytes, Platform.BYTE_ARRAY_OFFSET, count);
    Platform.copyMemory(
        null,
        arrays.getDataVector().getDataBuffer().memoryAddress() + (long) begin * width,
        bytes,
        Platform.BYTE_ARRAY_OFFSET + (long) header,
        (long) count * width);
    UnsafeArrayData array = new UnsafeArrayData();
    array.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
    return array;
  }

  @Override
  public void close() {
    try {
      reader.close(false); // the channel is used again
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
