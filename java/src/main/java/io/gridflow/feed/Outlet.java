package io.gridflow.feed;

import java.io.IOException;
import java.nio.file.Path;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Writes the rows of one dataset, batch by batch, to one file after another. */
final class Outlet implements AutoCloseable {
  /**
   * Of a batch at most, but for its last row: what lies in the processor's cache is copied once.
   */
  private static final long BATCH_BYTES = 4L << 20;

  /**
   * Rows of a batch at most. The first ones have fewer: who waits for rows gets some soon, whatever
   * it takes to compute one. How many doesn't depend on time where rows are spooled, as a training
   * that is resumed has to find the same batches; where they go elsewhere a batch needn't be full.
   */
  private static final int SPOOLED_ROWS = 1 << 13;

  private static final int PUSHED_ROWS = 1 << 16;
  private static final int FIRST_BATCH_ROWS = 1 << 10;

  /**
   * Of a file, as {@code segment_bytes} of spool/writer.py. The first ones are smaller, and so are
   * those that weren't waited for: where whoever takes them rests, as rows give way to something
   * else, this task is to rest as well.
   */
  private static final long FILE_BYTES = 32L << 20;

  private static final long FIRST_FILE_BYTES = 1L << 20;

  /**
   * Rows of columns that are taken between two looks at how many bytes there are: no more than
   * would fill the batch if they were like those before, and of the first ones few.
   */
  private static final int PIECE_ROWS = 1 << 10;

  private static final int FIRST_PIECE_ROWS = 1 << 4;

  /** Rows between two looks at the time. */
  private static final int LOOK_ROWS = 64;

  private final int dataset;
  private final boolean isFinal;
  private final Handover handover;
  private final Pace pace = new Pace();
  private final Batch batch;
  private int batchRows = FIRST_BATCH_ROWS;

  /** About how many bytes a row has; 0 before the first. */
  private long rowBytes;

  private Path path;
  private SegmentFile file;
  private long fileBytes = FIRST_FILE_BYTES;

  Outlet(Layout layout, int dataset, Handover handover, BufferAllocator allocator) {
    this.dataset = dataset;
    this.handover = handover;
    this.isFinal = layout.isFinal();
    Layout.Part part = layout.parts().get(dataset);
    this.batch =
        new Batch(
            layout.schema(),
            part.places(),
            part.names(),
            layout.timeZone(),
            layout.isFinal(),
            allocator);
  }

  void add(InternalRow row) throws IOException, Handover.Over {
    batch.add(row);
    flushIfFull();
  }

  void add(ColumnarBatch given) throws IOException, Handover.Over {
    int first = 0;
    while (first < given.numRows()) {
      int room = batchRows - batch.rows();
      int more = Math.min(Math.min(given.numRows() - first, room), pieceRows());
      batch.add(given, first, more);
      first += more;
      rowBytes = batch.bytes() / batch.rows() + 1;
      flushIfFull();
    }
  }

  private int pieceRows() {
    if (rowBytes == 0) {
      return FIRST_PIECE_ROWS;
    }
    return (int) Math.min(PIECE_ROWS, (BATCH_BYTES - batch.bytes()) / rowBytes + 1);
  }

  private void flushIfFull() throws IOException, Handover.Over {
    if (batch.rows() >= batchRows
        || batch.bytes() >= BATCH_BYTES
        || (!isFinal && batch.rows() % LOOK_ROWS == 0 && pace.isDue())) {
      flush();
    }
  }

  private void flush() throws IOException, Handover.Over {
    if (batch.rows() == 0) {
      return;
    }
    try (Batch.Written written = batch.finish()) {
      if (file != null && !file.schema().equals(written.schema())) {
        endFile();
      }
      if (file == null) {
        path = handover.next(dataset);
        file = new SegmentFile(path, written.schema());
      }
      file.write(written.batch());
    }
    batch.clear();
    batchRows = Math.min(2 * batchRows, isFinal ? SPOOLED_ROWS : PUSHED_ROWS);
    // Where rows go elsewhere, whoever gets a batch keeps its file.
    if (!isFinal || file.bytes() >= fileBytes || pace.isDue()) {
      endFile();
    }
  }

  private void endFile() throws IOException, Handover.Over {
    if (file != null) {
      boolean isFull = file.bytes() >= fileBytes;
      file.end();
      file = null;
      if (!handover.handOver(path, dataset)) {
        fileBytes = FIRST_FILE_BYTES;
      } else if (isFull) {
        fileBytes = Math.min(2 * fileBytes, FILE_BYTES);
      }
      pace.note();
    }
  }

  void end() throws IOException, Handover.Over {
    flush();
    endFile();
  }

  @Override
  public void close() {
    if (file != null) {
      file.close();
    }
    batch.close();
  }
}
