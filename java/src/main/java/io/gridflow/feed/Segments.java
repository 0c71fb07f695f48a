package io.gridflow.feed;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecutionRDD;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * A DataFrame whose tasks write their rows to files, where a Python worker takes these, instead of
 * giving them on.
 *
 * <p>Called by Python, by these names.
 */
public final class Segments {
  private final org.apache.spark.sql.classic.Dataset<Row> frame;
  private final String root;
  private final String name;
  private final int tagPlace;
  private final boolean isFinal;
  private final List<Layout.Part> parts = new ArrayList<>();

  /**
   * Of a DataFrame's rows, none so far.
   *
   * @param root where tasks find the folders of those that take the files; empty: where Spark has
   *     its own
   * @param name what the folders' names begin with; the number of the task's attempt follows
   * @param tagPlace the column that tells a row's dataset by its number; -1 where there is one
   *     alone
   * @param isFinal whether columns without nulls are written as the spool has them, or always as
   *     Spark gives them to Python
   */
  public Segments(Dataset<Row> frame, String root, String name, int tagPlace, boolean isFinal) {
    this.frame = (org.apache.spark.sql.classic.Dataset<Row>) frame;
    this.root = root;
    this.name = name;
    this.tagPlace = tagPlace;
    this.isFinal = isFinal;
  }

  /** The next dataset: its columns' places in the DataFrame, and their names. */
  public void dataset(List<Integer> places, List<String> names) {
    parts.add(new Layout.Part(List.copyOf(places), List.copyOf(names)));
  }

  /**
   * The DataFrame: its partitions are those of the rows. They have none, or, where nobody takes the
   * files, all. Spark jobs that the rows need before their last stage run here.
   */
  public Dataset<Row> frame() {
    QueryExecution query = frame.queryExecution();
    SparkSession session = frame.sparkSession();
    Layout layout =
        new Layout(
            root,
            name,
            frame.schema(),
            tagPlace,
            List.copyOf(parts),
            session.sessionState().conf().sessionLocalTimeZone(),
            isFinal);
    SparkPlan columnar = tagPlace < 0 ? columnar(query.executedPlan()) : null;
    RDD<InternalRow> written =
        columnar == null
            ? query.toRdd().toJavaRDD().mapPartitions(new OfRows(layout)).rdd()
            : new SQLExecutionRDD(
                columnar.executeColumnar().toJavaRDD().mapPartitions(new OfBatches(layout)).rdd(),
                session.sessionState().conf());
    return session.internalCreateDataFrame(written, frame.schema(), false);
  }

  /** What gives the plan's rows in batches of columns; null where they are made as rows. */
  private static SparkPlan columnar(SparkPlan plan) {
    SparkPlan top =
        plan instanceof AdaptiveSparkPlanExec adaptive ? adaptive.finalPhysicalPlan() : plan;
    if (top instanceof WholeStageCodegenExec compiled) {
      top = compiled.child();
    }
    if (top instanceof ColumnarToRowExec rows) {
      top = rows.child();
    }
    if (top instanceof InputAdapter adapter) {
      top = adapter.child();
    }
    return top.supportsColumnar() ? top : null;
  }

  private record OfRows(Layout layout)
      implements FlatMapFunction<Iterator<InternalRow>, InternalRow> {
    @Override
    public Iterator<InternalRow> call(Iterator<InternalRow> rows) {
      return new Writing<>(layout, rows, Outlets::add, row -> List.of(row).iterator());
    }
  }

  private record OfBatches(Layout layout)
      implements FlatMapFunction<Iterator<ColumnarBatch>, InternalRow> {
    @Override
    public Iterator<InternalRow> call(Iterator<ColumnarBatch> batches) {
      return new Writing<>(layout, batches, Outlets::add, ColumnarBatch::rowIterator);
    }
  }
}
