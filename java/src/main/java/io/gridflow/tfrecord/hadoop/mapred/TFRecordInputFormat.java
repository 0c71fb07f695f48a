package io.gridflow.tfrecord.hadoop.mapred;

import io.gridflow.tfrecord.hadoop.TFRecordRecordReader;
import java.io.IOException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapred.FileInputFormat;
import org.apache.hadoop.mapred.FileSplit;
import org.apache.hadoop.mapred.InputSplit;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.JobConfigurable;
import org.apache.hadoop.mapred.RecordReader;
import org.apache.hadoop.mapred.Reporter;

/** Reads TFRecord files: keys are the records' bytes, values are null. */
public class TFRecordInputFormat extends FileInputFormat<BytesWritable, NullWritable>
    implements JobConfigurable {
  private JobConf job = new JobConf(false);

  @Override
  public void configure(JobConf configured) {
    job = configured;
  }

  @Override
  protected boolean isSplitable(FileSystem fileSystem, Path file) {
    return TFRecordRecordReader.isSplittable(file, job);
  }

  @Override
  public RecordReader<BytesWritable, NullWritable> getRecordReader(
      InputSplit split, JobConf configuration, Reporter reporter) throws IOException {
    FileSplit file = (FileSplit) split;
    TFRecordRecordReader records =
        TFRecordRecordReader.open(file.getPath(), file.getStart(), file.getLength(), configuration);
    return new RecordReader<>() {
      @Override
      public boolean next(BytesWritable key, NullWritable value) throws IOException {
        if (!records.next()) {
          return false;
        }
        records.into(key);
        return true;
      }

      @Override
      public BytesWritable createKey() {
        return new BytesWritable();
      }

      @Override
      public NullWritable createValue() {
        return NullWritable.get();
      }

      @Override
      public long getPos() {
        return records.position();
      }

      @Override
      public float getProgress() {
        return records.progress();
      }

      @Override
      public void close() throws IOException {
        records.close();
      }
    };
  }
}
