package io.gridflow.inference;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/** The node of a physical plan that predicts. */
public final class PredictExec extends SparkPlan {
  private final Question question;
  private final Seq<Attribute> inputs;
  private final Seq<Attribute> kept;
  private final Attribute prediction;
  private final SparkPlan child;
  private transient Map<String, SQLMetric> metrics;

  /** Public, as Spark copies plans by their constructors. */
  public PredictExec(
      Question question,
      Seq<Attribute> inputs,
      Seq<Attribute> kept,
      Attribute prediction,
      SparkPlan child) {
    this.question = question;
    this.inputs = inputs;
    this.kept = kept;
    this.prediction = prediction;
    this.child = child;
  }

  @Override
  public RDD<InternalRow> doExecute() {
    List<Attribute> below = Scala.list(child.output());
    StructType schema = new StructType();
    for (Attribute attribute : below) {
      schema = schema.add(attribute.name(), stored(attribute.dataType()), true);
    }
    Work work =
        new Work(
            question,
            schema,
            places(Scala.list(inputs), below),
            places(Scala.list(kept), below),
            conf().sessionLocalTimeZone(),
            Measured.of(metrics()));
    return child.execute().toJavaRDD().mapPartitions(work, true).rdd();
  }

  /** What tasks need. */
  record Work(
      Question question,
      StructType schema,
      List<Integer> inputs,
      List<Integer> kept,
      String timeZone,
      Measured measured)
      implements FlatMapFunction<Iterator<InternalRow>, InternalRow> {
    @Override
    public Iterator<InternalRow> call(Iterator<InternalRow> rows) {
      return new Rows(this, rows, TaskContext.get());
    }
  }

  /** What Spark's UI shows of the node. */
  record Measured(
      SQLMetric rows, SQLMetric reading, SQLMetric waiting, SQLMetric model, SQLMetric rate)
      implements java.io.Serializable {
    static Map<String, SQLMetric> made(SparkContext context) {
      java.util.Map<String, SQLMetric> all = new LinkedHashMap<>();
      all.put("numOutputRows", SQLMetrics.createMetric(context, "number of output rows"));
      all.put("readingTime", SQLMetrics.createNanoTimingMetric(context, "time reading rows", -1));
      all.put(
          "waitingTime",
          SQLMetrics.createNanoTimingMetric(context, "time waiting for the model", -1));
      all.put("modelTime", SQLMetrics.createNanoTimingMetric(context, "time in the model", -1));
      all.put("rowRate", SQLMetrics.createAverageMetric(context, "rows per second of a task"));
      return Scala.map(all);
    }

    static Measured of(Map<String, SQLMetric> all) {
      return new Measured(
          all.apply("numOutputRows"),
          all.apply("readingTime"),
          all.apply("waitingTime"),
          all.apply("modelTime"),
          all.apply("rowRate"));
    }
  }

  /** As which type values of another one lie in rows. */
  private static DataType stored(DataType type) {
    return type instanceof UserDefinedType<?> user ? user.sqlType() : type;
  }

  private static List<Integer> places(List<Attribute> wanted, List<Attribute> below) {
    List<Integer> places = new ArrayList<>();
    for (Attribute each : wanted) {
      int place = 0;
      while (!below.get(place).exprId().equals(each.exprId())) {
        place++;
      }
      places.add(place);
    }
    return places;
  }

  @Override
  public synchronized Map<String, SQLMetric> metrics() {
    if (metrics == null) {
      metrics = Measured.made(sparkContext());
    }
    return metrics;
  }

  @Override
  public Seq<Attribute> output() {
    return Scala.with(kept, prediction);
  }

  @Override
  public AttributeSet producedAttributes() {
    return AttributeSet.apply(prediction);
  }

  @Override
  public Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return child.outputOrdering();
  }

  @Override
  public String nodeName() {
    return "Predict";
  }

  @Override
  public String simpleString(int maxFields) {
    return "Predict "
        + question
        + "("
        + inputs.mkString(", ")
        + ") AS "
        + prediction
        + ", batches of "
        + question.batchRows();
  }

  @Override
  public Seq<SparkPlan> children() {
    return Scala.seq(List.of(child));
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new PredictExec(question, inputs, kept, prediction, children.apply(0));
  }

  @Override
  public int productArity() {
    return 5;
  }

  @Override
  public Object productElement(int place) {
    return switch (place) {
      case 0 -> question;
      case 1 -> inputs;
      case 2 -> kept;
      case 3 -> prediction;
      default -> child;
    };
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof PredictExec;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof PredictExec that && Scala.areEqual(this, that);
  }

  @Override
  public int hashCode() {
    return Scala.hash(this);
  }
}
