package io.gridflow.inference;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;

/** A model as it is sent to executors. Called by Python, by these names. */
public final class Predictions {
  private static final int PIECE_BYTES = 1 << 26;

  private final String title;
  private final String key;
  private final String python;
  private final Map<String, String> environment;
  private final List<String> files;
  private final byte[] description;
  private final Broadcast<byte[][]> content;
  private final SparkSession session;

  /**
   * Of a model.
   *
   * @param content the file that has its content
   */
  public Predictions(
      org.apache.spark.sql.SparkSession session,
      String title,
      String key,
      String python,
      Map<String, String> environment,
      List<String> files,
      byte[] description,
      String content)
      throws IOException {
    this.session = (SparkSession) session;
    this.title = title;
    this.key = key;
    this.python = python;
    this.environment = Map.copyOf(environment);
    this.files = List.copyOf(files);
    this.description = description;
    this.content =
        JavaSparkContext.fromSparkContext(this.session.sparkContext()).broadcast(read(content));
    Predicting.teach(this.session);
  }

  private static byte[][] read(String path) throws IOException {
    List<byte[]> pieces = new ArrayList<>();
    try (InputStream file = Files.newInputStream(Path.of(path))) {
      byte[] next = file.readNBytes(PIECE_BYTES);
      while (next.length > 0) {
        pieces.add(next);
        next = file.readNBytes(PIECE_BYTES);
      }
    }
    return pieces.toArray(new byte[0][]);
  }

  /**
   * The frame with a column more.
   *
   * @param asked what is wanted of the model, for Python
   * @param type of the column, as JSON
   */
  public Dataset<Row> frame(
      Dataset<Row> frame,
      List<Column> inputs,
      String name,
      byte[] asked,
      int rows,
      int batchRows,
      String type) {
    Predicting.teach((SparkSession) frame.sparkSession()); // of a stream's batch it is another one
    Question question =
        new Question(
            title,
            key,
            python,
            environment,
            files,
            description,
            content,
            asked,
            rows,
            batchRows,
            DataType.fromJson(type));
    List<Expression> children = new ArrayList<>();
    inputs.forEach(each -> children.add(ExpressionUtils.expression(each)));
    Expression predicted = new Predicted(question, Scala.seq(children));
    return frame.select(functions.col("*"), ExpressionUtils.column(predicted).as(name));
  }
}
