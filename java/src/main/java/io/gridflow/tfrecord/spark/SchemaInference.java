package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.FeatureTypes;
import io.gridflow.tfrecord.MalformedExampleException;
import io.gridflow.tfrecord.RecordType;
import io.gridflow.tfrecord.TFRecordReader;
import io.gridflow.tfrecord.hadoop.RecordFile;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Finds the schema of files by reading them all, or a sample of their parts, in a Spark job. */
final class SchemaInference implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final Logger LOG = LoggerFactory.getLogger(SchemaInference.class);

  /** A task of fewer bytes than this costs more than it saves. */
  private static final long LEAST_BYTES = 4L << 20;

  private static final long MOST_BYTES = 128L << 20;

  private record Part(String path, long start, long end, long fileLength) implements Serializable {}

  /** What one task, and in the end the job, has found. */
  private record Found(FeatureTypes types, boolean malformed) implements Serializable {
    Found merge(Found other) {
      return new Found(types.merge(other.types), malformed || other.malformed);
    }

    byte[] toBytes() throws IOException {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
        out.writeObject(this);
      }
      return bytes.toByteArray();
    }

    static Found of(byte[] bytes) {
      try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes))) {
        return (Found) in.readObject();
      } catch (IOException | ClassNotFoundException e) {
        throw new IllegalStateException("a task's result can't be read", e);
      }
    }
  }

  private final Options options;
  private final Broadcast<SerializableConfiguration> configuration;

  SchemaInference(Options options, Broadcast<SerializableConfiguration> configuration) {
    this.options = options;
    this.configuration = configuration;
  }

  /** Returns the schema of files, columns sorted by name; null if no feature has a kind. */
  StructType infer(JavaSparkContext spark, List<FileStatus> files) {
    List<Part> parts = sample(parts(files, spark.defaultParallelism()));
    if (parts.isEmpty()) {
      return null;
    }
    long bytes = parts.stream().mapToLong(part -> part.end - part.start + LEAST_BYTES).sum();
    long tasks = Math.max(spark.defaultParallelism(), bytes / MOST_BYTES);
    // Bytes, as the threads of Spark that take results don't know the classes of a jar that came as
    // a session's artifact.
    Found found =
        spark
            .parallelize(parts, (int) Math.min(tasks, parts.size()))
            .mapPartitions(mine -> List.of(read(mine).toBytes()).iterator())
            .collect()
            .stream()
            .map(Found::of)
            .reduce(Found::merge)
            .orElseThrow();
    StructType schema = new StructType();
    for (var feature : found.types.byName().entrySet()) {
      schema = schema.add(feature.getKey(), sparkType(feature.getValue()));
    }
    if (found.malformed && options.mode == Options.Mode.PERMISSIVE) {
      schema = schema.add(options.corruptColumn, DataTypes.BinaryType);
    }
    return schema.isEmpty() ? null : schema;
  }

  private List<Part> parts(List<FileStatus> files, int parallelism) {
    Configuration hadoop = configuration.value().value();
    long total = files.stream().mapToLong(FileStatus::getLen).sum();
    long partBytes = Math.min(MOST_BYTES, Math.max(LEAST_BYTES, total / parallelism + 1));
    List<Part> parts = new ArrayList<>();
    files.stream()
        .sorted(Comparator.comparing(file -> file.getPath().toString()))
        .forEach(
            file -> {
              long length = file.getLen();
              boolean whole =
                  !options.splittable
                      || !FileReader.codec(options, file.getPath(), hadoop).isNone();
              long step = whole ? Math.max(length, 1) : partBytes;
              for (long start = 0; start < length; start += step) {
                long end = Math.min(length, start + step);
                parts.add(new Part(file.getPath().toString(), start, end, length));
              }
            });
    return parts;
  }

  /** Evenly spaced parts, always the same ones. */
  private List<Part> sample(List<Part> parts) {
    if (options.samplingRatio == 1) {
      return parts;
    }
    int wanted = (int) Math.ceil(parts.size() * options.samplingRatio);
    List<Part> some = new ArrayList<>();
    for (int i = 0; i < wanted; i++) {
      some.add(parts.get((int) ((long) i * parts.size() / wanted)));
    }
    return some;
  }

  private Found read(Iterator<Part> parts) throws IOException {
    FeatureTypes.Collector collector =
        new FeatureTypes.Collector(options.recordType == RecordType.SEQUENCE_EXAMPLE);
    boolean malformed = false;
    while (parts.hasNext()) {
      malformed |= read(parts.next(), collector);
    }
    return new Found(collector.types(), malformed);
  }

  private boolean read(Part part, FeatureTypes.Collector collector) throws IOException {
    boolean malformed = false;
    Configuration hadoop = configuration.value().value();
    Path path = new Path(part.path);
    try (RecordFile records =
        RecordFile.open(
            path,
            hadoop,
            FileReader.codec(options, path, hadoop),
            part.start,
            part.end,
            part.fileLength,
            options.bufferBytes,
            options.checkCrc)) {
      TFRecordReader record = records.record();
      while (true) {
        try {
          if (!records.next()) {
            return malformed;
          }
          collector.add(record.buffer(), record.offset(), record.length());
        } catch (IOException e) {
          boolean ofOneRecord = RowReader.isOfOneRecord(e);
          if (!ofOneRecord && options.ignoreCorruptFiles) {
            LOG.warn("The rest of {} is left out of the schema: {}", part.path, e.getMessage());
            return malformed;
          }
          if (options.mode == Options.Mode.FAILFAST || !ofOneRecord) {
            String hint = e instanceof MalformedExampleException ? "; is recordType right?" : "";
            throw new IOException(
                String.format(
                    "%s, in %s, record at byte %d%s",
                    e.getMessage(), part.path, record.recordPosition(), hint),
                Failures.portable(e));
          }
          malformed = true;
        }
      }
    }
  }

  private DataType sparkType(FeatureTypes.Type type) {
    DataType spark =
        switch (type.kind()) {
          case INT64 -> DataTypes.LongType;
          case FLOAT -> DataTypes.FloatType;
          default -> options.binaryAsBinary ? DataTypes.BinaryType : DataTypes.StringType;
        };
    for (int i = 0; i < type.depth(); i++) {
      spark = DataTypes.createArrayType(spark);
    }
    return spark;
  }
}
