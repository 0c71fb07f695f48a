package io.gridflow.tfrecord.spark;

/** The data source under the name {@code tfrecords}, that of spark-tensorflow-connector. */
public class TFRecordsFileFormat extends TFRecordFileFormat {
  private static final long serialVersionUID = 1L;

  @Override
  public String shortName() {
    return "tfrecords";
  }
}
