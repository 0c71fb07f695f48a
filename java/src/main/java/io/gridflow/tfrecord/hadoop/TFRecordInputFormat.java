package io.gridflow.tfrecord.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.input.FileSplit;

/**
 * Reads TFRecord files in MapReduce and in Spark's {@code newAPIHadoopFile}: keys are the records'
 * bytes, values are null.
 *
 * <p>Uncompressed files are split unless {@value TFRecordRecordReader#SPLITTABLE_KEY} is false. As
 * usual in Hadoop the key is one object that is filled anew for each record.
 */
public class TFRecordInputFormat extends FileInputFormat<BytesWritable, NullWritable> {
  @Override
  public RecordReader<BytesWritable, NullWritable> createRecordReader(
      InputSplit split, TaskAttemptContext context) {
    return new Reader(reusesKeys());
  }

  /** Whether the key is one object for all records. */
  protected boolean reusesKeys() {
    return true;
  }

  @Override
  protected boolean isSplitable(JobContext context, Path file) {
    return TFRecordRecordReader.isSplittable(file, context.getConfiguration());
  }

  private static final class Reader extends RecordReader<BytesWritable, NullWritable> {
    private final boolean reusesKeys;
    private BytesWritable key = new BytesWritable();
    private TFRecordRecordReader records;

    Reader(boolean reusesKeys) {
      this.reusesKeys = reusesKeys;
    }

    @Override
    public void initialize(InputSplit split, TaskAttemptContext context) throws IOException {
      FileSplit file = (FileSplit) split;
      records =
          TFRecordRecordReader.open(
              file.getPath(), file.getStart(), file.getLength(), context.getConfiguration());
    }

    @Override
    public boolean nextKeyValue() throws IOException {
      if (!records.next()) {
        return false;
      }
      if (reusesKeys) {
        records.into(key);
      } else {
        key = records.fresh();
      }
      return true;
    }

    @Override
    public BytesWritable getCurrentKey() {
      return key;
    }

    @Override
    public NullWritable getCurrentValue() {
      return NullWritable.get();
    }

    @Override
    public float getProgress() {
      return records.progress();
    }

    @Override
    public void close() throws IOException {
      if (records != null) {
        records.close();
      }
    }
  }
}
