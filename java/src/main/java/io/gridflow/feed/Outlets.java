package io.gridflow.feed;

import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The files of all datasets that a task has rows of. */
final class Outlets implements AutoCloseable {
  private final int tagPlace;
  private final BufferAllocator allocator;
  private final Outlet[] outlets;

  Outlets(Layout layout, Handover handover) {
    tagPlace = layout.tagPlace();
    allocator = ArrowUtils.rootAllocator().newChildAllocator("gridflow", 0, Long.MAX_VALUE);
    outlets = new Outlet[layout.parts().size()];
    for (int i = 0; i < outlets.length; i++) {
      outlets[i] = new Outlet(layout, i, handover, allocator);
    }
  }

  void add(InternalRow row) throws IOException, Handover.Over {
    outlets[tagPlace < 0 ? 0 : row.getByte(tagPlace)].add(row);
  }

  /** Of rows in columns, all are of one dataset. */
  void add(ColumnarBatch batch) throws IOException, Handover.Over {
    outlets[0].add(batch);
  }

  /** Hands over what is left. */
  void end() throws IOException, Handover.Over {
    for (Outlet outlet : outlets) {
      outlet.end();
    }
  }

  @Override
  public void close() {
    for (Outlet outlet : outlets) {
      outlet.close();
    }
    allocator.close();
  }
}
