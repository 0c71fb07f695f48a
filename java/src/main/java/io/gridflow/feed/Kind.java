package io.gridflow.feed;

import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.Platform;

/** How numbers, days and moments lie in memory, the same way in Spark and in Arrow. */
enum Kind {
  BYTE(Byte.BYTES) {
    @Override
    void put(SpecializedGetters from, int place, long address) {
      Platform.putByte(null, address, from.getByte(place));
    }

    @Override
    void copy(ColumnVector from, int first, int count, long address) {
      copy(from.getBytes(first, count), Platform.BYTE_ARRAY_OFFSET, count, address);
    }

    @Override
    void put(ColumnVector from, int place, long address) {
      Platform.putByte(null, address, from.getByte(place));
    }
  },
  SHORT(Short.BYTES) {
    @Override
    void put(SpecializedGetters from, int place, long address) {
      Platform.putShort(null, address, from.getShort(place));
    }

    @Override
    void copy(ColumnVector from, int first, int count, long address) {
      copy(from.getShorts(first, count), Platform.SHORT_ARRAY_OFFSET, count, address);
    }

    @Override
    void put(ColumnVector from, int place, long address) {
      Platform.putShort(null, address, from.getShort(place));
    }
  },
  INT(Integer.BYTES) {
    @Override
    void put(SpecializedGetters from, int place, long address) {
      Platform.putInt(null, address, from.getInt(place));
    }

    @Override
    void copy(ColumnVector from, int first, int count, long address) {
      copy(from.getInts(first, count), Platform.INT_ARRAY_OFFSET, count, address);
    }

    @Override
    void put(ColumnVector from, int place, long address) {
      Platform.putInt(null, address, from.getInt(place));
    }
  },
  LONG(Long.BYTES) {
    @Override
    void put(SpecializedGetters from, int place, long address) {
      Platform.putLong(null, address, from.getLong(place));
    }

    @Override
    void copy(ColumnVector from, int first, int count, long address) {
      copy(from.getLongs(first, count), Platform.LONG_ARRAY_OFFSET, count, address);
    }

    @Override
    void put(ColumnVector from, int place, long address) {
      Platform.putLong(null, address, from.getLong(place));
    }
  },
  FLOAT(Float.BYTES) {
    @Override
    void put(SpecializedGetters from, int place, long address) {
      Platform.putFloat(null, address, from.getFloat(place));
    }

    @Override
    void copy(ColumnVector from, int first, int count, long address) {
      copy(from.getFloats(first, count), Platform.FLOAT_ARRAY_OFFSET, count, address);
    }

    @Override
    void put(ColumnVector from, int place, long address) {
      Platform.putFloat(null, address, from.getFloat(place));
    }
  },
  DOUBLE(Double.BYTES) {
    @Override
    void put(SpecializedGetters from, int place, long address) {
      Platform.putDouble(null, address, from.getDouble(place));
    }

    @Override
    void copy(ColumnVector from, int first, int count, long address) {
      copy(from.getDoubles(first, count), Platform.DOUBLE_ARRAY_OFFSET, count, address);
    }

    @Override
    void put(ColumnVector from, int place, long address) {
      Platform.putDouble(null, address, from.getDouble(place));
    }
  };

  final int width;

  Kind(int width) {
    this.width = width;
  }

  /** The type of Arrow that numbers have which are nothing else. */
  ArrowType type() {
    return switch (this) {
      case FLOAT -> new ArrowType.FloatingPoint(FloatingPointPrecision.SINGLE);
      case DOUBLE -> new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);
      case BYTE, SHORT, INT, LONG -> new ArrowType.Int(width * Byte.SIZE, true);
    };
  }

  /** The kind of a type of Spark's; null where its values lie otherwise. */
  static Kind of(DataType type) {
    if (type instanceof ByteType) {
      return BYTE;
    } else if (type instanceof ShortType) {
      return SHORT;
    } else if (type instanceof IntegerType || type instanceof DateType) {
      return INT;
    } else if (type instanceof LongType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType) {
      return LONG;
    } else if (type instanceof FloatType) {
      return FLOAT;
    }
    return type instanceof DoubleType ? DOUBLE : null;
  }

  /** The type of Arrow by which Spark gives a column of this kind to Python. */
  ArrowType typeOf(DataType type, String timeZone) {
    if (type instanceof DateType) {
      return new ArrowType.Date(DateUnit.DAY);
    } else if (type instanceof TimestampType) {
      return new ArrowType.Timestamp(TimeUnit.MICROSECOND, timeZone);
    } else if (type instanceof TimestampNTZType) {
      return new ArrowType.Timestamp(TimeUnit.MICROSECOND, null);
    }
    return type();
  }

  /** Writes a value of a row, or an item of an array. */
  abstract void put(SpecializedGetters from, int place, long address);

  /** Writes a value of a column, whatever it looks like. */
  abstract void put(ColumnVector from, int place, long address);

  /** Writes values that lie beside each other in a column without a dictionary. */
  abstract void copy(ColumnVector from, int first, int count, long address);

  final void copy(Object array, long offset, int count, long address) {
    Platform.copyMemory(array, offset, null, address, (long) count * width);
  }
}
