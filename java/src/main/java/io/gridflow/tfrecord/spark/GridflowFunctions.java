package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.RecordType;
import java.util.Locale;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of the SQL functions between rows and serialized records; {@code
 * spark.sql.catalog.gridflow} is to be set to this class's name.
 *
 * <ul>
 *   <li>{@code gridflow.to_example(struct(*))} and {@code gridflow.to_sequence_example(struct(*))}
 *       give the bytes of a record whose features are the struct's fields.
 *   <li>{@code gridflow.from_example(bytes, CAST(NULL AS STRUCT<x: ARRAY<FLOAT>, y: BIGINT>))} and
 *       {@code gridflow.from_sequence_example} give a struct; the second argument only tells its
 *       type.
 *   <li>{@code gridflow.pack(column)} is what Python gets of a column: {@link PackFunction} of
 *       arrays of numbers, the column itself of others.
 * </ul>
 */
public final class GridflowFunctions implements FunctionCatalog {
  private static final String[] NAMES = {
    "to_example", "to_sequence_example", "from_example", "from_sequence_example", "pack"
  };

  private String name = "gridflow";

  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap options) {
    name = catalogName;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    Identifier[] identifiers = new Identifier[NAMES.length];
    for (int i = 0; i < NAMES.length; i++) {
      identifiers[i] = Identifier.of(new String[0], NAMES[i]);
    }
    return identifiers;
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    return switch (identifier.name().toLowerCase(Locale.ROOT)) {
      case "to_example" -> new ToRecord(RecordType.EXAMPLE);
      case "to_sequence_example" -> new ToRecord(RecordType.SEQUENCE_EXAMPLE);
      case "from_example" -> new FromRecord(RecordType.EXAMPLE);
      case "from_sequence_example" -> new FromRecord(RecordType.SEQUENCE_EXAMPLE);
      case "pack" -> new Pack();
      default -> throw new NoSuchFunctionException(identifier);
    };
  }

  private static final class ToRecord implements UnboundFunction {
    private final RecordType type;

    ToRecord(RecordType type) {
      this.type = type;
    }

    @Override
    public BoundFunction bind(StructType arguments) {
      if (arguments.size() != 1
          || !(arguments.apply(0).dataType() instanceof StructType features)) {
        throw new UnsupportedOperationException(description());
      }
      boolean sequence = type == RecordType.SEQUENCE_EXAMPLE;
      try {
        RowEncoder.check(features, sequence);
      } catch (IllegalArgumentException e) {
        throw new UnsupportedOperationException(e.getMessage(), e);
      }
      return new ToRecordFunction(name(), features, sequence);
    }

    @Override
    public String description() {
      return name() + "(struct(columns…)): the columns as a serialized " + type.label();
    }

    @Override
    public String name() {
      return type == RecordType.EXAMPLE ? "to_example" : "to_sequence_example";
    }
  }

  private static final class FromRecord implements UnboundFunction {
    private final RecordType type;

    FromRecord(RecordType type) {
      this.type = type;
    }

    @Override
    public BoundFunction bind(StructType arguments) {
      if (arguments.size() != 2
          || !(arguments.apply(0).dataType() instanceof BinaryType)
          || !(arguments.apply(1).dataType() instanceof StructType features)) {
        throw new UnsupportedOperationException(description());
      }
      boolean sequence = type == RecordType.SEQUENCE_EXAMPLE;
      try {
        RowEncoder.check(features, sequence);
      } catch (IllegalArgumentException e) {
        throw new UnsupportedOperationException(e.getMessage(), e);
      }
      return new FromRecordFunction(name(), features, sequence);
    }

    @Override
    public String description() {
      return name()
          + "(binary, CAST(NULL AS STRUCT<…>)): a serialized "
          + type.label()
          + " as a struct of that type";
    }

    @Override
    public String name() {
      return type == RecordType.EXAMPLE ? "from_example" : "from_sequence_example";
    }
  }

  private static final class Pack implements UnboundFunction {
    @Override
    public BoundFunction bind(StructType arguments) {
      if (arguments.size() != 1) {
        throw new UnsupportedOperationException(description());
      }
      DataType type = arguments.apply(0).dataType();
      return PackFunction.width(type) > 0
          ? new PackFunction((ArrayType) type)
          : new SameFunction(type);
    }

    @Override
    public String description() {
      return name() + "(column): an array of numbers as bytes, for Python; others as they are";
    }

    @Override
    public String name() {
      return "pack";
    }
  }
}
