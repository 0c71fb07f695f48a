package org.tensorflow.hadoop.io;

import io.gridflow.tfrecord.hadoop.TFRecordOutputFormat;

/** {@link TFRecordOutputFormat} under its old name. */
public class TFRecordFileOutputFormat extends TFRecordOutputFormat {}
