package io.gridflow.inference;

import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.types.DataType;

/**
 * What tasks want to know, and of which model.
 *
 * @param title what the model is called in plans, logs and errors
 * @param key equal for models that one process can serve
 * @param python the executors' Python
 * @param environment variables of the model's process, beside the executor's
 * @param files names of Python files that Spark has sent to the executors
 * @param description of the model, for Python
 * @param content of the model's file or folder
 * @param asked what is wanted of the model, for Python
 * @param rows of a batch at most
 * @param batchRows rows of a call of the model at most
 * @param type of a prediction
 */
@SuppressWarnings("ArrayRecordComponent") // it has an equality of its own
record Question(
    String title,
    String key,
    String python,
    Map<String, String> environment,
    List<String> files,
    byte[] description,
    Broadcast<byte[][]> content,
    byte[] asked,
    int rows,
    int batchRows,
    DataType type)
    implements Serializable {

  /** Equal questions have equal answers: Spark compares plans to find what it has in its cache. */
  @Override
  public boolean equals(Object other) {
    return other instanceof Question that
        && key.equals(that.key)
        && Arrays.equals(asked, that.asked)
        && type.equals(that.type);
  }

  @Override
  public int hashCode() {
    return Objects.hash(key, Arrays.hashCode(asked), type);
  }

  @Override
  public String toString() {
    return title;
  }
}
