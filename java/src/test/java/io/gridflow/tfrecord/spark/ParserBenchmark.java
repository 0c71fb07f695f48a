package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.ExampleEncoder;
import io.gridflow.tfrecord.FeatureTypes;
import io.gridflow.tfrecord.TFRecordReader;
import io.gridflow.tfrecord.TFRecordWriter;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.Warmup;
import org.openjdk.jmh.infra.Blackhole;

/**
 * The parser alone, one thread, on 32 MiB in memory; one operation is a pass over all of them, so
 * MiB/s are 32 times operations per second.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.Throughput)
@OutputTimeUnit(TimeUnit.SECONDS)
@Warmup(iterations = 5, time = 2)
@Measurement(iterations = 5, time = 2)
@Fork(value = 2, jvmArgs = "--add-opens=java.base/java.nio=ALL-UNNAMED")
public class ParserBenchmark {
  private static final int BYTES = 32 << 20;

  /** 784 floats and a label; 15 columns of all kinds; pictures of 100 KB. */
  @Param({"floats", "mixed", "images"})
  public String data;

  private byte[] file;
  private RowReader rows;

  /** Makes the file. */
  @Setup
  public void setUp() throws IOException {
    Random random = new Random(1);
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(BYTES + (1 << 20));
    StructType schema = new StructType();
    ExampleEncoder encoder = new ExampleEncoder();
    try (TFRecordWriter writer = new TFRecordWriter(bytes)) {
      while (writer.position() < BYTES) {
        encoder.reset();
        switch (data) {
          case "floats" -> putFloats(encoder, random);
          case "mixed" -> putMixed(encoder, random);
          default -> putImage(encoder, random);
        }
        writer.write(encoder.toByteArray());
      }
    }
    file = bytes.toByteArray();
    FeatureTypes.Collector types = new FeatureTypes.Collector(false);
    try (TFRecordReader reader = reader()) {
      for (int i = 0; i < 100 && reader.next(); i++) {
        types.add(reader.buffer(), reader.offset(), reader.length());
      }
    }
    for (var feature : types.types().byName().entrySet()) {
      var type =
          switch (feature.getValue().kind()) {
            case INT64 -> DataTypes.LongType;
            case FLOAT -> DataTypes.FloatType;
            default -> DataTypes.BinaryType;
          };
      boolean list = feature.getValue().depth() > 0;
      schema = schema.add(feature.getKey(), list ? DataTypes.createArrayType(type) : type);
    }
    Options options = new Options(Map.of(), "_corrupt_record", false);
    rows = new RowReader(schema, schema, new StructType(), InternalRow.empty(), options, true);
  }

  private static void putFloats(ExampleEncoder encoder, Random random) {
    float[] x = new float[784];
    for (int i = 0; i < x.length; i++) {
      x[i] = random.nextFloat();
    }
    encoder.putFloat("x", x).putInt64("label", random.nextInt(10));
  }

  private static void putMixed(ExampleEncoder encoder, Random random) {
    for (int i = 0; i < 5; i++) {
      encoder.putInt64("integer" + i, random.nextInt(1 << (6 * i + 1)));
      encoder.putFloat("number" + i, random.nextFloat());
    }
    for (int i = 0; i < 3; i++) {
      encoder.putText("text" + i, "value-" + random.nextInt(100_000));
    }
    encoder.putInt64("tokens", random.ints(8, 0, 30_000).asLongStream().toArray());
    encoder.putFloat("vector", 1, 2, 3, 4, 5, 6, 7, random.nextFloat());
  }

  private static void putImage(ExampleEncoder encoder, Random random) {
    byte[] image = new byte[100_000];
    random.nextBytes(image);
    encoder.putBytes("image", image).putInt64("label", random.nextInt(1000));
  }

  private TFRecordReader reader() {
    return new TFRecordReader(new ByteArrayInputStream(file));
  }

  /** The bytes and their checksums only. */
  @Benchmark
  public void frames(Blackhole hole) throws IOException {
    TFRecordReader reader = reader();
    while (reader.next()) {
      hole.consume(reader.length());
    }
  }

  /** All columns into Spark's rows. */
  @Benchmark
  public void rows(Blackhole hole) throws IOException {
    TFRecordReader reader = reader();
    while (reader.next()) {
      hole.consume(rows.read(reader));
    }
  }

  /** The types of all features, as inference collects them. */
  @Benchmark
  public void inference(Blackhole hole) throws IOException {
    FeatureTypes.Collector collector = new FeatureTypes.Collector(false);
    TFRecordReader reader = reader();
    while (reader.next()) {
      collector.add(reader.buffer(), reader.offset(), reader.length());
    }
    hole.consume(collector.types());
  }
}
