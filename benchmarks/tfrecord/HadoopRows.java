import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.tensorflow.example.BytesList;
import org.tensorflow.example.Example;
import org.tensorflow.example.Feature;
import org.tensorflow.example.Features;
import org.tensorflow.example.FloatList;
import org.tensorflow.example.Int64List;
import org.tensorflow.hadoop.io.TFRecordFileInputFormat;
import org.tensorflow.hadoop.io.TFRecordFileOutputFormat;

/** What a user had before: tensorflow-hadoop's formats, protobuf objects, an RDD of rows. */
public final class HadoopRows {
  private HadoopRows() {}

  public static Dataset<Row> read(SparkSession spark, String path, StructType schema) {
    JavaSparkContext context = JavaSparkContext.fromSparkContext(spark.sparkContext());
    JavaRDD<Row> rows =
        context
            .newAPIHadoopFile(
                path,
                TFRecordFileInputFormat.class,
                BytesWritable.class,
                NullWritable.class,
                context.hadoopConfiguration())
            .map(pair -> row(Example.parseFrom(pair._1.copyBytes()), schema));
    return spark.createDataFrame(rows, schema);
  }

  private static Row row(Example example, StructType schema) {
    Map<String, Feature> features = example.getFeatures().getFeatureMap();
    Object[] cells = new Object[schema.size()];
    for (int i = 0; i < cells.length; i++) {
      Feature feature = features.get(schema.apply(i).name());
      DataType type = schema.apply(i).dataType();
      boolean list = type instanceof ArrayType;
      DataType leaf = list ? ((ArrayType) type).elementType() : type;
      List<?> values;
      if (leaf instanceof LongType) {
        values = feature.getInt64List().getValueList();
      } else if (leaf instanceof FloatType) {
        values = feature.getFloatList().getValueList();
      } else {
        List<Object> bytes = new ArrayList<>();
        for (com.google.protobuf.ByteString value : feature.getBytesList().getValueList()) {
          bytes.add(leaf instanceof StringType ? value.toStringUtf8() : value.toByteArray());
        }
        values = bytes;
      }
      cells[i] = list ? values.toArray() : values.get(0);
    }
    return RowFactory.create(cells);
  }

  public static void write(Dataset<Row> frame, String path) {
    StructType schema = frame.schema();
    JavaPairRDD<BytesWritable, NullWritable> records =
        frame
            .toJavaRDD()
            .mapToPair(
                row ->
                    new scala.Tuple2<>(
                        new BytesWritable(example(row, schema).toByteArray()), NullWritable.get()));
    records.saveAsNewAPIHadoopFile(
        path, BytesWritable.class, NullWritable.class, TFRecordFileOutputFormat.class);
  }

  private static Example example(Row row, StructType schema) {
    Map<String, Feature> features = new HashMap<>();
    for (int i = 0; i < schema.size(); i++) {
      DataType type = schema.apply(i).dataType();
      boolean list = type instanceof ArrayType;
      DataType leaf = list ? ((ArrayType) type).elementType() : type;
      List<Object> values = list ? row.getList(i) : List.of(row.get(i));
      Feature.Builder feature = Feature.newBuilder();
      if (leaf instanceof LongType) {
        Int64List.Builder builder = Int64List.newBuilder();
        values.forEach(value -> builder.addValue((Long) value));
        feature.setInt64List(builder);
      } else if (leaf instanceof FloatType) {
        FloatList.Builder builder = FloatList.newBuilder();
        values.forEach(value -> builder.addValue((Float) value));
        feature.setFloatList(builder);
      } else {
        BytesList.Builder builder = BytesList.newBuilder();
        values.forEach(
            value ->
                builder.addValue(
                    value instanceof String
                        ? com.google.protobuf.ByteString.copyFromUtf8((String) value)
                        : com.google.protobuf.ByteString.copyFrom((byte[]) value)));
        feature.setBytesList(builder);
      }
      features.put(schema.apply(i).name(), feature.build());
    }
    return Example.newBuilder()
        .setFeatures(Features.newBuilder().putAllFeature(features))
        .build();
  }
}
