package io.gridflow.feed;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Collections;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * What a task does: asked for its first row, it writes all that there are to files, and has none.
 * Where nobody takes files it gives the rows on as they are.
 *
 * <p>Not before it is asked: Spark makes this iterator, and only then starts the Python worker that
 * the files are for.
 */
final class Writing<T> implements Iterator<InternalRow> {
  /** Takes rows into account, one or several. */
  @FunctionalInterface
  interface Adding<T> {
    void add(Outlets outlets, T rows) throws IOException, Handover.Over;
  }

  /** Gives rows one by one. */
  @FunctionalInterface
  interface Rows<T> {
    Iterator<InternalRow> of(T rows);
  }

  private final Layout layout;
  private Iterator<T> source;
  private final Adding<T> adding;
  private final Rows<T> rows;
  private boolean hasBegun;
  private Iterator<InternalRow> given = Collections.emptyIterator();

  Writing(Layout layout, Iterator<T> source, Adding<T> adding, Rows<T> rows) {
    this.layout = layout;
    this.source = source;
    this.adding = adding;
    this.rows = rows;
  }

  @Override
  public boolean hasNext() {
    if (!hasBegun) {
      hasBegun = true;
      Handover handover = Handover.of(layout, TaskContext.get());
      if (handover.begins()) {
        write(handover);
        source = Collections.emptyIterator(); // what is left, if somebody ended early, isn't wanted
      }
    }
    while (!given.hasNext() && source.hasNext()) {
      given = rows.of(source.next());
    }
    return given.hasNext();
  }

  @Override
  public InternalRow next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    return given.next();
  }

  private void write(Handover handover) {
    try (Outlets outlets = new Outlets(layout, handover)) {
      while (source.hasNext()) {
        adding.add(outlets, source.next());
      }
      outlets.end();
    } catch (Handover.Over over) {
      // Whoever takes the files has ended, and knows why: it needs no more rows.
    } catch (IOException error) {
      if (!handover.failed(error)) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
