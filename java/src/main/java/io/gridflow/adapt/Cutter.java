package io.gridflow.adapt;

import java.util.Arrays;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Standardises a text and cuts it into tokens, byte by byte: as TensorFlow does, of letters,
 * punctuation and spaces only those of ASCII count.
 *
 * <p>The tokens lie in {@link #bytes}, one after the other with a space between, so that those of
 * an n-gram are one piece of it.
 */
final class Cutter {
  /** That of {@code keras.layers.TextVectorization}. */
  private static final String PUNCTUATION = "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'";

  private static final short DROPPED = -1;
  private static final short SPACE = -2;

  private final Split split;

  /** What becomes of each byte: another one, or one of the above. */
  private final short[] codes = new short[256];

  private byte[] bytes = new byte[256];
  private int[] starts = new int[16];
  private int[] ends = new int[16];
  private int tokens;

  Cutter(boolean lower, boolean stripPunctuation, Split split) {
    this.split = split;
    for (short code = 0; code < codes.length; code++) {
      boolean isUpper = code >= 'A' && code <= 'Z';
      codes[code] = lower && isUpper ? (short) (code - 'A' + 'a') : code;
      if (stripPunctuation && PUNCTUATION.indexOf(code) >= 0) {
        codes[code] = DROPPED;
      } else if (split == Split.WHITESPACE && (code == ' ' || (code >= '\t' && code <= '\r'))) {
        codes[code] = SPACE;
      }
    }
  }

  /** Cuts a text, and returns how many tokens it has. */
  int cut(UTF8String text) {
    Object base = text.getBaseObject();
    long first = text.getBaseOffset();
    int length = text.numBytes();
    int most = split == Split.CHARACTER ? Math.multiplyExact(length, 2) : length;
    if (most >= bytes.length) {
      bytes = new byte[Math.addExact(most, most / 2 + 1)];
    }
    tokens = 0;
    int start = 0;
    int end = 0;
    for (int i = 0; i < length; i++) {
      short code = codes[Platform.getByte(base, first + i) & 0xff];
      if (code >= 0) {
        // A character begins at each byte but 10xxxxxx.
        if (split == Split.CHARACTER && end > start && (code & 0xc0) != 0x80) {
          start = keep(start, end);
          end = start;
        }
        bytes[end++] = (byte) code;
      } else if (code == SPACE && end > start) {
        start = keep(start, end);
        end = start;
      }
    }
    if (end > start || split == Split.NOTHING) {
      keep(start, end);
    }
    return tokens;
  }

  /** Keeps a token, and returns where the next one begins. */
  private int keep(int start, int end) {
    if (tokens == starts.length) {
      starts = Arrays.copyOf(starts, 2 * tokens);
      ends = Arrays.copyOf(ends, 2 * tokens);
    }
    starts[tokens] = start;
    ends[tokens++] = end;
    bytes[end] = ' ';
    return end + 1;
  }

  byte[] bytes() {
    return bytes;
  }

  int start(int token) {
    return starts[token];
  }

  int end(int token) {
    return ends[token];
  }
}
