/**
 * TFRecord files and the {@code tf.train.Example} and {@code SequenceExample} messages in them,
 * with nothing but the JDK.
 *
 * <ul>
 *   <li>{@link io.gridflow.tfrecord.TFRecordReader} and {@link
 *       io.gridflow.tfrecord.TFRecordWriter}: the frames, as bytes.
 *   <li>{@link io.gridflow.tfrecord.SplitReader}: the records of one range of a file.
 *   <li>{@link io.gridflow.tfrecord.ExampleCursor}: record after record, features by name.
 *   <li>{@link io.gridflow.tfrecord.ExampleEncoder}: features to bytes.
 *   <li>{@link io.gridflow.tfrecord.ExampleParser} and {@link io.gridflow.tfrecord.FeatureDecoder}:
 *       the layer below, without an object per value.
 * </ul>
 */
package io.gridflow.tfrecord;
