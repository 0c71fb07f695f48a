package io.gridflow.adapt;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * What layers need to know about a DataFrame's columns. Wants are numbered in the order in which
 * they are added; columns are given by their index in the DataFrame.
 *
 * <p>Called by Python, by these names.
 */
public final class Wants implements FlatMapFunction<Iterator<InternalRow>, Row> {
  /** As {@code PART} of tokens.py, but for the tokens' type: no text is decoded here. */
  private static final StructType PART =
      new StructType()
          .add("want", DataTypes.IntegerType, false)
          .add("token", DataTypes.BinaryType)
          .add("number", DataTypes.LongType)
          .add("n", DataTypes.LongType)
          .add("documents", DataTypes.LongType)
          .add("state", DataTypes.BinaryType);

  private static final long serialVersionUID = 1L;

  private final transient Dataset<Row> frame;
  private final StructType schema;
  private final List<Want> wants = new ArrayList<>();

  /** Of a DataFrame's columns nothing, so far. */
  public Wants(Dataset<Row> frame) {
    this.frame = frame;
    this.schema = frame.schema();
  }

  /** Mean and variance of a column of numbers, or of several side by side. */
  public void moments(List<Integer> columns) {
    int[] places = ints(columns);
    NumberType[] types = new NumberType[places.length];
    for (int i = 0; i < places.length; i++) {
      types[i] = type(places[i]);
    }
    wants.add(place -> new Moments(place, places, types));
  }

  /** Quantiles of a column of numbers, whose ranks are wrong by a part of all values. */
  public void quantiles(int column, double error) {
    NumberType type = type(column);
    wants.add(place -> new Quantiles(place, column, type, error));
  }

  /** The least and the greatest number of a column of integers. */
  public void extremes(int column) {
    NumberType type = type(column);
    wants.add(place -> new Extremes(place, column, type));
  }

  /** How often each value occurs in a column of integers or strings. */
  public void values(int column, boolean needsDocuments) {
    if (schema.apply(column).dataType() instanceof org.apache.spark.sql.types.StringType) {
      wants.add(place -> new Strings(place, column, needsDocuments));
    } else {
      NumberType type = type(column);
      wants.add(place -> new Integers(place, column, needsDocuments, type));
    }
  }

  /**
   * How often each token occurs in a column of texts.
   *
   * @param split "whitespace", "character", or null for a text that is one token
   * @param ngrams how many tokens are put together
   */
  public void tokens(
      int column,
      boolean needsDocuments,
      boolean lower,
      boolean stripPunctuation,
      String split,
      List<Integer> ngrams) {
    Split how = Split.of(split);
    int[] widths = ints(ngrams);
    wants.add(
        place ->
            new Texts(
                place, column, needsDocuments, new Cutter(lower, stripPunctuation, how), widths));
  }

  /** The parts of all partitions, as they come: a token may have several. */
  public Dataset<Row> parts() {
    RDD<InternalRow> rows =
        ((org.apache.spark.sql.classic.Dataset<Row>) frame).queryExecution().toRdd();
    return frame.sparkSession().createDataFrame(rows.toJavaRDD().mapPartitions(this), PART);
  }

  @Override
  public Iterator<Row> call(Iterator<InternalRow> rows) {
    Gathering[] gathered = new Gathering[wants.size()];
    for (int i = 0; i < gathered.length; i++) {
      gathered[i] = wants.get(i).begin(i);
    }
    return new Parts(rows, gathered);
  }

  private NumberType type(int column) {
    return NumberType.of(schema.apply(column).dataType());
  }

  private static int[] ints(List<Integer> numbers) {
    return numbers.stream().mapToInt(Integer::intValue).toArray();
  }
}
