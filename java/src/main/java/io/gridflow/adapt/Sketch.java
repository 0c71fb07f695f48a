package io.gridflow.adapt;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.unsafe.array.LongArray;
import org.apache.spark.unsafe.memory.MemoryBlock;
import org.apache.spark.util.collection.unsafe.sort.RadixSort;

/**
 * The values of one partition, as the {@code Sketch} of quantiles.py, which tells how and why: the
 * same values in the same order give the same bytes.
 */
final class Sketch {
  private static final int SIZE = 16;
  private static final int POINTS = 4;

  private final int points;
  private final float[] waiting;
  private int size;

  /** Sorted buffers by the power of two that each value counts for; null where there is none. */
  private final List<float[]> levels = new ArrayList<>();

  private int offset;

  Sketch(double error) {
    points = (int) Math.ceil(POINTS / error);
    waiting = new float[(int) Math.ceil(SIZE / error)];
  }

  /** Takes a value into account; NaN is the greatest. */
  void add(float value) {
    waiting[size++] = value;
    if (size == waiting.length) {
      carry(sorted());
      size = 0;
    }
  }

  /** What is waiting, by Spark's radix sort, which is faster than Java's. */
  private float[] sorted() {
    long[] keys = new long[2 * size];
    for (int i = 0; i < size; i++) {
      keys[i] = sortable(waiting[i]);
    }
    LongArray array = new LongArray(MemoryBlock.fromLongArray(keys));
    int begin = RadixSort.sort(array, size, Integer.BYTES, Long.BYTES - 1, false, true);
    float[] sorted = new float[size];
    for (int i = 0; i < size; i++) {
      sorted[i] = value(array.get(begin + i));
    }
    return sorted;
  }

  private void carry(float[] sorted) {
    float[] buffer = sorted;
    for (int level = 0; level < levels.size(); level++) {
      float[] there = levels.get(level);
      if (there == null) {
        levels.set(level, buffer);
        return;
      }
      levels.set(level, null);
      buffer = everyOther(there, buffer);
      // From the first and from the second in turn, so that the errors go both ways.
      offset = 1 - offset;
    }
    levels.add(buffer);
  }

  /** Every other value of two sorted buffers of one length. */
  private float[] everyOther(float[] one, float[] two) {
    float[] kept = new float[one.length];
    for (int i = 0, j = 0, k = 0; k < 2 * kept.length; k++) {
      boolean isOne = j == two.length || (i < one.length && Float.compare(one[i], two[j]) <= 0);
      float value = isOne ? one[i++] : two[j++];
      if ((k & 1) == offset) {
        kept[k >> 1] = value;
      }
    }
    return kept;
  }

  /** How many values there were, and some that stand for as many each. */
  byte[] state() {
    int there = size;
    long count = size;
    for (int level = 0; level < levels.size(); level++) {
      float[] buffer = levels.get(level);
      if (buffer != null) {
        there += buffer.length;
        count += (long) buffer.length << level;
      }
    }
    if (there == 0) {
      return new byte[0];
    }
    float[] values = there > points ? chosen(there, count) : all(there);
    State state = new State(Long.BYTES + values.length * Float.BYTES).add(count);
    state.add(values);
    return state.bytes();
  }

  private float[] all(int there) {
    float[] values = Arrays.copyOf(waiting, there);
    int end = size;
    for (float[] buffer : levels) {
      if (buffer != null) {
        System.arraycopy(buffer, 0, values, end, buffer.length);
        end += buffer.length;
      }
    }
    return values;
  }

  /** The values at equally distant ranks. */
  private float[] chosen(int there, long count) {
    // A value and its level in one number, which sorts as the value does.
    long[] sorted = new long[there];
    int end = 0;
    for (int i = 0; i < size; i++) {
      sorted[end++] = sortable(waiting[i]);
    }
    for (int level = 0; level < levels.size(); level++) {
      if (levels.get(level) != null) {
        for (float value : levels.get(level)) {
          sorted[end++] = sortable(value) | level;
        }
      }
    }
    Arrays.sort(sorted);
    float[] values = new float[points];
    double step = (double) count / points;
    long passed = 0;
    int at = -1;
    for (int i = 0; i < points; i++) {
      double rank = (i + 0.5) * step * (1 - 1e-12);
      while (passed < rank && at < there - 1) {
        at++;
        passed += 1L << (sorted[at] & 0xff);
      }
      values[i] = value(sorted[at]);
    }
    return values;
  }

  private static long sortable(float value) {
    int bits = Float.floatToIntBits(value);
    return (long) (bits ^ ((bits >> 31) & Integer.MAX_VALUE)) << 32;
  }

  private static float value(long sortable) {
    int bits = (int) (sortable >> 32);
    return Float.intBitsToFloat(bits ^ ((bits >> 31) & Integer.MAX_VALUE));
  }
}
