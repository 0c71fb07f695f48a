import io.gridflow.tfrecord.ExampleEncoder;
import io.gridflow.tfrecord.ExampleParser;
import io.gridflow.tfrecord.FeatureDecoder;
import io.gridflow.tfrecord.hadoop.TFRecordInputFormat;
import io.gridflow.tfrecord.hadoop.TFRecordOutputFormat;
import java.io.IOException;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;

/**
 * MapReduce over TFRecord files: counts the Examples of each label, writes Examples with the counts.
 *
 * <pre>
 * javac -cp gridflow-tfrecord.jar:$(hadoop classpath) LabelCount.java
 * java -cp .:gridflow-tfrecord.jar:$(hadoop classpath) LabelCount IN OUT
 * </pre>
 */
public final class LabelCount {
  /** An Example to its label. */
  public static final class LabelMapper
      extends Mapper<BytesWritable, NullWritable, LongWritable, LongWritable> {
    private static final LongWritable ONE = new LongWritable(1);
    private final ExampleParser parser = ExampleParser.of(List.of("label"), false);
    private final FeatureDecoder decoder = new FeatureDecoder();
    private final LongWritable label = new LongWritable();

    @Override
    protected void map(BytesWritable record, NullWritable nothing, Context context)
        throws IOException, InterruptedException {
      parser.parse(record.getBytes(), 0, record.getLength());
      if (parser.place(0) == ExampleParser.Place.ABSENT) {
        return;
      }
      decoder.open(parser.buffer(0), parser.start(0), parser.end(0));
      decoder.int64s();
      label.set(decoder.int64Buffer()[0]);
      context.write(label, ONE);
    }
  }

  /** The ones of a label to their sum. */
  public static final class SumReducer
      extends Reducer<LongWritable, LongWritable, BytesWritable, NullWritable> {
    private final ExampleEncoder encoder = new ExampleEncoder();

    @Override
    protected void reduce(LongWritable label, Iterable<LongWritable> ones, Context context)
        throws IOException, InterruptedException {
      long count = 0;
      for (LongWritable one : ones) {
        count += one.get();
      }
      encoder.reset().putInt64("label", label.get()).putInt64("count", count);
      context.write(new BytesWritable(encoder.toByteArray()), NullWritable.get());
    }
  }

  private LabelCount() {}

  public static void main(String[] args) throws Exception {
    Job job = Job.getInstance(new Configuration(), "labels");
    job.setJarByClass(LabelCount.class);
    job.setInputFormatClass(TFRecordInputFormat.class);
    job.setMapperClass(LabelMapper.class);
    job.setMapOutputKeyClass(LongWritable.class);
    job.setMapOutputValueClass(LongWritable.class);
    job.setReducerClass(SumReducer.class);
    job.setOutputKeyClass(BytesWritable.class);
    job.setOutputValueClass(NullWritable.class);
    job.setOutputFormatClass(TFRecordOutputFormat.class);
    FileInputFormat.addInputPath(job, new Path(args[0]));
    FileOutputFormat.setOutputPath(job, new Path(args[1]));
    System.exit(job.waitForCompletion(true) ? 0 : 1);
  }
}
