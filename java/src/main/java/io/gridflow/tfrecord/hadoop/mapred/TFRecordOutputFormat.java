package io.gridflow.tfrecord.hadoop.mapred;

import io.gridflow.tfrecord.TFRecordWriter;
import io.gridflow.tfrecord.hadoop.Codec;
import java.io.IOException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.mapred.FileOutputFormat;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.RecordWriter;
import org.apache.hadoop.mapred.Reporter;
import org.apache.hadoop.util.Progressable;
import org.apache.hadoop.util.ReflectionUtils;

/** Writes TFRecord files: keys are the records' bytes, values are null. Compresses as asked. */
public class TFRecordOutputFormat extends FileOutputFormat<BytesWritable, NullWritable> {
  @Override
  public RecordWriter<BytesWritable, NullWritable> getRecordWriter(
      FileSystem ignored, JobConf job, String name, Progressable progress) throws IOException {
    Codec codec = Codec.none();
    if (getCompressOutput(job)) {
      Class<? extends CompressionCodec> type = getOutputCompressorClass(job, GzipCodec.class);
      codec = Codec.of(ReflectionUtils.newInstance(type, job));
    }
    Path file = getTaskOutputPath(job, name + codec.suffix());
    TFRecordWriter writer =
        new TFRecordWriter(codec.compress(file.getFileSystem(job).create(file, progress)));
    return new RecordWriter<>() {
      @Override
      public void write(BytesWritable key, NullWritable value) throws IOException {
        writer.write(key.getBytes(), 0, key.getLength());
      }

      @Override
      public void close(Reporter reporter) throws IOException {
        writer.close();
      }
    };
  }
}
