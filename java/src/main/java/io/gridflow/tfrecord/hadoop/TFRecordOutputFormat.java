package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.TFRecordWriter;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.mapreduce.RecordWriter;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.util.ReflectionUtils;

/**
 * Writes TFRecord files from MapReduce and from Spark's {@code saveAsNewAPIHadoopFile}: keys are
 * the records' bytes, values are null.
 *
 * <p>Compressed when the job asks for it ({@code mapreduce.output.fileoutputformat.compress} and
 * {@code .compress.codec}; gzip unless another codec is named).
 */
public class TFRecordOutputFormat extends FileOutputFormat<BytesWritable, NullWritable> {
  @Override
  public RecordWriter<BytesWritable, NullWritable> getRecordWriter(TaskAttemptContext context)
      throws IOException {
    Configuration configuration = context.getConfiguration();
    Codec codec = Codec.none();
    if (getCompressOutput(context)) {
      Class<? extends CompressionCodec> type = getOutputCompressorClass(context, GzipCodec.class);
      codec = Codec.of(ReflectionUtils.newInstance(type, configuration));
    }
    Path file = getDefaultWorkFile(context, codec.suffix());
    TFRecordWriter writer =
        new TFRecordWriter(codec.compress(file.getFileSystem(configuration).create(file, false)));
    return new RecordWriter<>() {
      @Override
      public void write(BytesWritable key, NullWritable value) throws IOException {
        writer.write(key.getBytes(), 0, key.getLength());
      }

      @Override
      public void close(TaskAttemptContext closing) throws IOException {
        writer.close();
      }
    };
  }
}
