package com.linkedin.spark.datasources.tfrecord;

import io.gridflow.tfrecord.spark.TFRecordFileFormat;

/** The data source under a name that existing jobs use. */
public class DefaultSource extends TFRecordFileFormat {
  private static final long serialVersionUID = 1L;
}
