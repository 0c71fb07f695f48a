package org.tensorflow.hadoop.io;

import io.gridflow.tfrecord.hadoop.TFRecordInputFormat;

/**
 * {@link TFRecordInputFormat} under its old name. As before, each key is an object of its own whose
 * array is exactly as long as the record: jobs use {@code key.getBytes()} without the length.
 */
public class TFRecordFileInputFormat extends TFRecordInputFormat {
  @Override
  protected boolean reusesKeys() {
    return false;
  }
}
