/**
 * The Spark data source {@code tfrecord}, and SQL functions between rows and serialized Examples.
 *
 * <p>Spark's internals that this leans on are named in few classes: {@link
 * io.gridflow.tfrecord.spark.TFRecordFileFormat} the file format, {@code RowBuilder} the layout of
 * rows, {@code RowEncoder} the way back.
 */
package io.gridflow.tfrecord.spark;
