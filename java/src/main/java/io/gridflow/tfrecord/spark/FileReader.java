package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.hadoop.Codec;
import io.gridflow.tfrecord.hadoop.RecordFile;
import java.io.IOException;
import java.io.Serializable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.TaskContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction1;

/** What a task does with each range of a file: open it and give its rows. */
final class FileReader extends AbstractFunction1<PartitionedFile, Iterator<InternalRow>>
    implements Serializable {
  private static final long serialVersionUID = 1L;

  private final StructType dataSchema;
  private final StructType required;
  private final StructType partitionSchema;
  private final Options options;
  private final boolean ansi;
  private final Broadcast<SerializableConfiguration> configuration;

  FileReader(
      StructType dataSchema,
      StructType required,
      StructType partitionSchema,
      Options options,
      boolean ansi,
      Broadcast<SerializableConfiguration> configuration) {
    this.dataSchema = dataSchema;
    this.required = required;
    this.partitionSchema = partitionSchema;
    this.options = options;
    this.ansi = ansi;
    this.configuration = configuration;
  }

  @Override
  public Iterator<InternalRow> apply(PartitionedFile file) {
    Configuration hadoop = configuration.value().value();
    Path path = file.toPath();
    RowReader rows =
        new RowReader(dataSchema, required, partitionSchema, file.partitionValues(), options, ansi);
    long end = file.start() + file.length();
    try {
      RecordFile records =
          RecordFile.open(
              path,
              hadoop,
              codec(options, path, hadoop),
              file.start(),
              end,
              Math.max(file.fileSize(), end),
              options.bufferBytes,
              options.checkCrc);
      RecordIterator iterator =
          new RecordIterator(records, rows, options.mode, file.urlEncodedPath());
      TaskContext task = TaskContext.get();
      if (task != null) {
        TaskCompletionListener closing = context -> iterator.close();
        task.addTaskCompletionListener(closing);
      }
      return iterator;
    } catch (IOException e) {
      throw Failures.unchecked(e.getMessage(), e);
    }
  }

  /** The codec that the options name, else the one that the file's suffix tells. */
  static Codec codec(Options options, Path path, Configuration hadoop) {
    return options.compression == null
        ? Codec.ofFile(path, hadoop)
        : Codec.ofName(options.compression, hadoop);
  }
}
