package io.gridflow.adapt;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.Platform;

/** How often each token occurs in texts. */
final class Texts extends Strings {
  private final Cutter cutter;
  private final int[] ngrams;

  Texts(int place, int column, boolean needsDocuments, Cutter cutter, int[] ngrams) {
    super(place, column, needsDocuments);
    this.cutter = cutter;
    this.ngrams = ngrams;
  }

  @Override
  void take(InternalRow row) {
    int tokens = cutter.cut(row.getUTF8String(column));
    byte[] bytes = cutter.bytes();
    for (int width : ngrams) {
      for (int first = 0; first <= tokens - width; first++) {
        int start = cutter.start(first);
        int length = cutter.end(first + width - 1) - start;
        count(bytes, Platform.BYTE_ARRAY_OFFSET + (long) start, length);
      }
    }
  }
}
