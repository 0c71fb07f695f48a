/**
 * TFRecord as Hadoop's input and output format, for {@code mapreduce} here and for {@code mapred}
 * in the package below.
 */
package io.gridflow.tfrecord.hadoop;
