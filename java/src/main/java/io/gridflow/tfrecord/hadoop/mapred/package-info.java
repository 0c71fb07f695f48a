/** TFRecord for Hadoop's older interface, {@code org.apache.hadoop.mapred}. */
package io.gridflow.tfrecord.hadoop.mapred;
