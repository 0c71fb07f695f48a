package io.gridflow.adapt;

import java.util.Arrays;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.array.ByteArrayMethods;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/**
 * How often tokens were added, and in how many rows.
 *
 * <p>A hash map of bytes that makes no object for what is added: Spark's own either take objects as
 * keys or want its memory manager and keys of whole words.
 */
final class Counts {
  private static final int SEED = 42;

  /** Bytes that a token takes beside its own. */
  private static final int OVERHEAD = 64;

  /**
   * A token's hash, and in the lower half its number and one, at the first free place from that of
   * its hash on; 0: free. Half of the places stay free.
   */
  private long[] table = new long[1024];

  /** Where each token begins, and the next one. */
  private int[] starts = new int[513];

  private long[] counts = new long[512];

  /** None where they aren't needed: then a token counts for a row of its own each time. */
  private long[] documents;

  private long[] lastRows;
  private byte[] bytes = new byte[4096];
  private int size;

  Counts(boolean needsDocuments) {
    documents = needsDocuments ? new long[512] : null;
    lastRows = needsDocuments ? new long[512] : null;
  }

  /** Counts a token of a row; rows are numbered from 1. */
  void add(Object base, long offset, int length, long row) {
    int hash = Murmur3_x86_32.hashUnsafeBytes2(base, offset, length, SEED);
    int mask = table.length - 1;
    int place = hash & mask;
    int token = -1;
    for (long there = table[place]; there != 0; there = table[place]) {
      if ((int) (there >>> 32) == hash && is((int) there - 1, base, offset, length)) {
        token = (int) there - 1;
        break;
      }
      place = (place + 1) & mask;
    }
    if (token < 0) {
      token = added(base, offset, length);
      table[place] = ((long) hash << 32) | size;
      if (size == counts.length) {
        grow();
      }
    }
    counts[token]++;
    if (documents != null && lastRows[token] != row) {
      lastRows[token] = row;
      documents[token]++;
    }
  }

  private boolean is(int token, Object base, long offset, int length) {
    int start = starts[token];
    return starts[token + 1] - start == length
        && ByteArrayMethods.arrayEquals(
            base, offset, bytes, Platform.BYTE_ARRAY_OFFSET + start, length);
  }

  private int added(Object base, long offset, int length) {
    int start = starts[size];
    int end = Math.addExact(start, length);
    if (end > bytes.length) {
      bytes =
          Arrays.copyOf(bytes, (int) Math.min(2L * end, ByteArrayMethods.MAX_ROUNDED_ARRAY_LENGTH));
    }
    Platform.copyMemory(base, offset, bytes, Platform.BYTE_ARRAY_OFFSET + start, length);
    starts[size + 1] = end;
    return size++;
  }

  private void grow() {
    int room = table.length;
    long[] grown = new long[2 * room];
    int mask = grown.length - 1;
    for (long there : table) {
      if (there != 0) {
        int place = (int) (there >>> 32) & mask;
        while (grown[place] != 0) {
          place = (place + 1) & mask;
        }
        grown[place] = there;
      }
    }
    table = grown;
    starts = Arrays.copyOf(starts, room + 1);
    counts = Arrays.copyOf(counts, room);
    if (documents != null) {
      documents = Arrays.copyOf(documents, room);
      lastRows = Arrays.copyOf(lastRows, room);
    }
  }

  int size() {
    return size;
  }

  /** About how many bytes all this takes. */
  long held() {
    return (long) size * OVERHEAD + starts[size];
  }

  byte[] token(int token) {
    return Arrays.copyOfRange(bytes, starts[token], starts[token + 1]);
  }

  /** The number that a token of eight bytes is. */
  long number(int token) {
    return Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + starts[token]);
  }

  long count(int token) {
    return counts[token];
  }

  long documents(int token) {
    return documents == null ? counts[token] : documents[token];
  }
}
