package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.RecordType;
import io.gridflow.tfrecord.hadoop.Codec;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.datasources.OutputWriter;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.TaskFailureListener;

/** What a task does to open a file for its rows. */
final class RecordWriterFactory extends OutputWriterFactory {
  private static final long serialVersionUID = 1L;

  private final Options options;

  /** Where the job writes; used only if each executor writes on its own disk. */
  private final String jobPath;

  RecordWriterFactory(Options options, String jobPath) {
    this.options = options;
    this.jobPath = jobPath;
  }

  private Codec codec(Configuration configuration) {
    return options.compression == null
        ? Codec.none()
        : Codec.ofName(options.compression, configuration);
  }

  @Override
  public String getFileExtension(TaskAttemptContext context) {
    return ".tfrecord" + codec(context.getConfiguration()).suffix();
  }

  @Override
  public OutputWriter newInstance(String path, StructType schema, TaskAttemptContext context) {
    RowEncoder encoder =
        options.recordType == RecordType.BYTE_ARRAY
            ? null
            : new RowEncoder(schema, options.recordType == RecordType.SEQUENCE_EXAMPLE);
    Configuration configuration = context.getConfiguration();
    try {
      OutputStream out =
          options.writeLocally ? openLocally(new Path(path)) : open(new Path(path), configuration);
      return new RecordWriter(path, codec(configuration).compress(out), encoder);
    } catch (IOException e) {
      throw Failures.unchecked("creating " + path + ": " + e.getMessage(), e);
    }
  }

  private static OutputStream open(Path path, Configuration configuration) throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    if (files instanceof ChecksumFileSystem checked) {
      // On local disks Hadoop adds a checksum for every 512 bytes, which took half of the time.
      // Every record has its own.
      files = checked.getRawFileSystem();
    }
    return files.create(path, false);
  }

  /**
   * Opens a file on this executor's own disk. Spark's committer would look for it on the driver, so
   * the file gets its name here, when the task ends well.
   */
  private OutputStream openLocally(Path staged) throws IOException {
    java.nio.file.Path folder = java.nio.file.Path.of(new Path(jobPath).toUri().getPath());
    java.nio.file.Path target = folder.resolve(staged.getName());
    // Between the job's folder and the file there may be those of partition columns.
    StringBuilder partition = new StringBuilder();
    for (Path up = staged.getParent();
        up != null && up.getName().contains("=");
        up = up.getParent()) {
      partition.insert(0, up.getName() + "/");
    }
    if (partition.length() > 0) {
      target = folder.resolve(partition.toString()).resolve(staged.getName());
    }
    TaskContext task = TaskContext.get();
    java.nio.file.Path unfinished =
        target.resolveSibling("." + staged.getName() + "." + task.taskAttemptId());
    Files.createDirectories(target.getParent());
    OutputStream out = Files.newOutputStream(unfinished);
    boolean[] failed = {false};
    java.nio.file.Path finished = target;
    TaskFailureListener onFailure = (context, error) -> failed[0] = true;
    TaskCompletionListener onCompletion =
        context -> {
          try {
            if (failed[0] || context.isInterrupted()) {
              Files.deleteIfExists(unfinished);
            } else {
              Files.move(unfinished, finished, StandardCopyOption.ATOMIC_MOVE);
            }
          } catch (IOException e) {
            throw Failures.unchecked("finishing " + finished + ": " + e.getMessage(), e);
          }
        };
    task.addTaskFailureListener(onFailure);
    task.addTaskCompletionListener(onCompletion);
    return out;
  }
}
