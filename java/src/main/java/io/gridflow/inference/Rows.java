package io.gridflow.inference;

import io.gridflow.feed.Batch;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.util.TaskCompletionListener;

/** The rows of a task, with predictions: while the model computes one batch, the next is read. */
final class Rows implements Iterator<InternalRow> {
  /** A batch isn't filled further than this: Arrow's texts have 2 GiB at most. */
  private static final long MOST_BYTES = 1L << 30;

  /** Enough bytes for a batch of as many rows as the model takes in a call, or a multiple. */
  private static final long ENOUGH_BYTES = 1L << 20;

  private final PredictExec.Work work;
  private final Iterator<InternalRow> source;
  private final TaskContext task;
  private final UnsafeProjection kept;
  private final UnsafeProjection predicted;
  private final UnsafeRowJoiner joiner;

  /** Whether rows are kept as they are. */
  private final boolean areWhole;

  private final List<Slot> slots = new ArrayList<>();
  private final Deque<Slot> free = new ArrayDeque<>();
  private final Deque<Slot> sent = new ArrayDeque<>();
  private final long began = System.nanoTime();
  private BufferAllocator allocator;
  private ModelProcess process;
  private ModelProcess.Line line;
  private Slot served;
  private long rows;

  Rows(PredictExec.Work work, Iterator<InternalRow> source, TaskContext task) {
    this.work = work;
    this.source = source;
    this.task = task;
    List<Expression> columns = new ArrayList<>();
    StructType schema = new StructType();
    boolean areAll = work.kept().size() == work.schema().size();
    for (int place : work.kept()) {
      StructField field = work.schema().apply(place);
      areAll &= place == columns.size();
      columns.add(new BoundReference(place, field.dataType(), true));
      schema = schema.add(field);
    }
    areWhole = areAll;
    kept = UnsafeProjection.create(Scala.<Expression>seq(columns));
    predicted = UnsafeProjection.create(new DataType[] {work.question().type()});
    joiner =
        GenerateUnsafeRowJoiner.create(
            schema, new StructType().add("prediction", work.question().type(), true));
    task.addTaskCompletionListener((TaskCompletionListener) ended -> close());
  }

  @Override
  public boolean hasNext() {
    while (served == null || !served.hasNext()) {
      try {
        if (!advance()) {
          return false;
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
    return true;
  }

  @Override
  public InternalRow next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    rows++;
    work.measured().rows().add(1);
    return served.next();
  }

  /** Sends the batches that there is room for, and takes the next predictions; false at the end. */
  private boolean advance() throws IOException {
    if (served != null) {
      served.clear();
      free.add(served);
      served = null;
    }
    long start = System.nanoTime();
    while ((line == null || !free.isEmpty()) && source.hasNext()) {
      if (line == null) {
        work.measured().reading().add(System.nanoTime() - start);
        open();
        start = System.nanoTime();
      }
      Slot slot = free.remove();
      slot.fill();
      line.send(slot.number, slot.write());
      sent.add(slot);
    }
    long filled = System.nanoTime();
    work.measured().reading().add(filled - start);
    if (sent.isEmpty()) {
      close();
      return false;
    }
    Slot slot = sent.remove();
    ModelProcess.Answer answer = line.await(task);
    work.measured().waiting().add(System.nanoTime() - filled);
    work.measured().model().add(answer.nanos());
    slot.take();
    served = slot;
    return true;
  }

  private void open() throws IOException {
    long start = System.nanoTime();
    process = ModelProcesses.take(work.question(), task);
    line = process.open(work.question(), task);
    allocator = ArrowUtils.rootAllocator().newChildAllocator("gridflow", 0, Long.MAX_VALUE);
    for (int number = 0; number < ModelProcess.SLOTS; number++) {
      slots.add(new Slot(number));
    }
    free.addAll(slots);
    work.measured().waiting().add(System.nanoTime() - start);
  }

  /** At the end of the rows or of the task, whatever ends it. */
  private void close() {
    try {
      closeSlots();
    } finally {
      if (line != null) {
        line.close();
      }
      if (process != null) {
        ModelProcesses.giveBack(process);
        process = null;
      }
    }
  }

  private void closeSlots() {
    if (allocator == null) {
      return;
    }
    slots.forEach(Slot::close);
    slots.clear();
    free.clear();
    sent.clear();
    served = null;
    allocator.close();
    allocator = null;
    long nanos = Math.max(System.nanoTime() - began, 1);
    work.measured().rate().set(Math.round(10e9 * rows / nanos)); // Spark wants it tenfold
  }

  /** One of the two batches of a task: its rows, and their predictions once there are some. */
  private final class Slot {
    private final int number;
    private final Batch batch;
    private final List<UnsafeRow> taken = new ArrayList<>();
    private Values values;
    private int at;

    Slot(int number) {
      this.number = number;
      List<String> names = new ArrayList<>();
      for (int i = 0; i < work.inputs().size(); i++) {
        names.add(Integer.toString(i));
      }
      batch = new Batch(work.schema(), work.inputs(), names, work.timeZone(), false, allocator);
    }

    void fill() {
      int most = work.question().rows();
      int step = work.question().batchRows();
      while (source.hasNext()) {
        InternalRow row = source.next();
        batch.add(row);
        boolean isKept = areWhole && row instanceof UnsafeRow;
        taken.add((isKept ? (UnsafeRow) row : kept.apply(row)).copy());
        int count = batch.rows();
        if (count >= most || (count % step == 0 && batch.bytes() >= ENOUGH_BYTES)) {
          break;
        }
        if (batch.bytes() >= MOST_BYTES) {
          break;
        }
      }
    }

    long write() throws IOException {
      return batch.write(line.input(number));
    }

    void take() throws IOException {
      values = new Values(line.output(number), work.question().type(), predicted, allocator);
      if (values.rows() != taken.size()) {
        throw new IOException(values.rows() + " predictions came for " + taken.size() + " rows");
      }
    }

    boolean hasNext() {
      return at < taken.size();
    }

    InternalRow next() {
      UnsafeRow row = taken.set(at, null);
      UnsafeRow prediction = values.get(at++);
      return work.kept().isEmpty() ? prediction : joiner.join(row, prediction);
    }

    void clear() {
      if (values != null) {
        values.close();
        values = null;
      }
      batch.clear();
      taken.clear();
      at = 0;
    }

    void close() {
      clear();
      batch.close();
    }
  }
}
