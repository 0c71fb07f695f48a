package org.tensorflow.hadoop.io;

import io.gridflow.tfrecord.hadoop.mapred.TFRecordOutputFormat;

/** {@link TFRecordOutputFormat} of the interface {@code mapred} under its old name. */
public class TFRecordFileOutputFormatV1 extends TFRecordOutputFormat {}
