package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.RecordType;
import io.gridflow.tfrecord.hadoop.Codec;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The Spark data source {@code tfrecord}.
 *
 * <p>A file format of Spark's first interface: internal to Spark, but its oldest and steadiest, and
 * it brings all save modes, partitions, {@code _metadata}, splits and streams.
 */
public class TFRecordFileFormat implements FileFormat, DataSourceRegister, Serializable {
  private static final long serialVersionUID = 1L;
  private static final Logger LOG = LoggerFactory.getLogger(TFRecordFileFormat.class);

  /** The column of records of bytes. */
  static final String BYTES_COLUMN = "byteArray";

  @Override
  public String shortName() {
    return "tfrecord";
  }

  @Override
  public Option<StructType> inferSchema(
      SparkSession session,
      scala.collection.immutable.Map<String, String> given,
      Seq<FileStatus> files) {
    Options options = options(session, given);
    if (options.recordType == RecordType.BYTE_ARRAY) {
      return Option.apply(new StructType().add(BYTES_COLUMN, DataTypes.BinaryType));
    }
    Configuration hadoop =
        ((org.apache.spark.sql.classic.SparkSession) session)
            .sessionState()
            .newHadoopConfWithOptions(given);
    JavaSparkContext spark = JavaSparkContext.fromSparkContext(session.sparkContext());
    List<FileStatus> all = CollectionConverters.asJava(files);
    return Option.apply(
        new SchemaInference(options, spark.broadcast(new SerializableConfiguration(hadoop)))
            .infer(spark, all));
  }

  @Override
  public boolean isSplitable(
      SparkSession session, scala.collection.immutable.Map<String, String> given, Path path) {
    Options options = options(session, given);
    return options.splittable
        && FileReader.codec(options, path, session.sparkContext().hadoopConfiguration()).isNone();
  }

  @Override
  public Function1<PartitionedFile, Iterator<InternalRow>> buildReaderWithPartitionValues(
      SparkSession session,
      StructType dataSchema,
      StructType partitionSchema,
      StructType requiredSchema,
      Seq<Filter> filters,
      scala.collection.immutable.Map<String, String> given,
      Configuration hadoop) {
    Options options = options(session, given);
    RowReader.check(dataSchema, options);
    Broadcast<SerializableConfiguration> configuration =
        JavaSparkContext.fromSparkContext(session.sparkContext())
            .broadcast(new SerializableConfiguration(hadoop));
    boolean ansi = Boolean.parseBoolean(session.conf().get("spark.sql.ansi.enabled"));
    return new FileReader(
        dataSchema, requiredSchema, partitionSchema, options, ansi, configuration);
  }

  @Override
  public OutputWriterFactory prepareWrite(
      SparkSession session,
      Job job,
      scala.collection.immutable.Map<String, String> given,
      StructType schema) {
    Options options = options(session, given);
    if (options.recordType == RecordType.BYTE_ARRAY) {
      if (schema.size() != 1 || !schema.apply(0).dataType().equals(DataTypes.BinaryType)) {
        throw new IllegalArgumentException(
            "with recordType ByteArray rows must have exactly one column, of type BINARY, got "
                + schema.sql()
                + ".");
      }
    } else {
      RowEncoder.check(schema, options.recordType == RecordType.SEQUENCE_EXAMPLE);
    }
    if (options.compression != null
        && !Codec.ofName(options.compression, job.getConfiguration()).isKnownToTensorFlow()) {
      LOG.warn(
          "TensorFlow can't read TFRecord files with compression '{}'; it reads gzip and deflate.",
          options.compression);
    }
    Path path = FileOutputFormat.getOutputPath(job);
    return new RecordWriterFactory(options, path == null ? "" : path.toString());
  }

  @Override
  public boolean supportDataType(DataType type) {
    DataType leaf = type;
    while (leaf instanceof ArrayType array) {
      leaf = array.elementType();
    }
    return ColumnType.of(leaf) != null;
  }

  private static Options options(
      SparkSession session, scala.collection.immutable.Map<String, String> given) {
    Map<String, String> java = CollectionConverters.asJava(given);
    return new Options(
        java,
        session.conf().get("spark.sql.columnNameOfCorruptRecord"),
        Boolean.parseBoolean(session.conf().get("spark.sql.files.ignoreCorruptFiles")));
  }

  // Spark compares formats to recognise plans that it has cached.

  @Override
  public boolean equals(Object other) {
    return other instanceof TFRecordFileFormat;
  }

  @Override
  public int hashCode() {
    return TFRecordFileFormat.class.hashCode();
  }

  /** How Spark's messages name the format. */
  @Override
  public String toString() {
    return "TFRecord";
  }
}
