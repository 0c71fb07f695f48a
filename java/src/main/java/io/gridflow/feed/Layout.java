package io.gridflow.feed;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.types.StructType;

/**
 * What the tasks have to know.
 *
 * @param root see {@link Segments}
 * @param name see {@link Segments}
 * @param schema of the rows
 * @param tagPlace see {@link Segments}
 * @param parts the datasets
 * @param timeZone the session's
 * @param isFinal see {@link Segments}
 */
record Layout(
    String root,
    String name,
    StructType schema,
    int tagPlace,
    List<Part> parts,
    String timeZone,
    boolean isFinal)
    implements Serializable {
  /** The columns of a dataset: their places in the rows, and their names. */
  record Part(List<Integer> places, List<String> names) implements Serializable {}
}
