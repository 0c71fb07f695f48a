package io.gridflow.tfrecord;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Locale;
import java.util.zip.Deflater;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.GZIPOutputStream;

/** The compressions that TensorFlow reads and writes. */
public enum Compression {
  /** No compression: such a file can be split. */
  NONE(""),
  /** {@code GZIP} in TensorFlow. */
  GZIP(".gz"),
  /** {@code ZLIB} in TensorFlow. */
  DEFLATE(".deflate");

  private static final int BUFFER_BYTES = 1 << 16;

  private final String suffix;

  Compression(String suffix) {
    this.suffix = suffix;
  }

  /** The suffix of such files. */
  public String suffix() {
    return suffix;
  }

  /** The compression by a file's suffix: .gz, .gzip, .deflate, .zlib. */
  public static Compression ofFile(String name) {
    String lower = name.toLowerCase(Locale.ROOT);
    if (lower.endsWith(".gz") || lower.endsWith(".gzip")) {
      return GZIP;
    }
    return lower.endsWith(".deflate") || lower.endsWith(".zlib") ? DEFLATE : NONE;
  }

  /** The compression of a name as users write it, in any case; null if it is none of these. */
  public static Compression ofName(String name) {
    return switch (name.toLowerCase(Locale.ROOT)) {
      case "", "none", "uncompressed" -> NONE;
      case "gzip", "gz" -> GZIP;
      case "deflate", "zlib" -> DEFLATE;
      default -> null;
    };
  }

  /** Wraps a stream that holds compressed bytes. */
  public InputStream decompress(InputStream in) throws IOException {
    return switch (this) {
      case NONE -> in;
      case GZIP, DEFLATE -> new MembersInputStream(in, this == GZIP, BUFFER_BYTES);
    };
  }

  /** Wraps a stream that takes compressed bytes. */
  public OutputStream compress(OutputStream out) throws IOException {
    return switch (this) {
      case NONE -> out;
      case GZIP -> new GZIPOutputStream(out, BUFFER_BYTES);
      case DEFLATE ->
          new DeflaterOutputStream(out, new Deflater(), BUFFER_BYTES) {
            @Override
            public void close() throws IOException {
              try {
                super.close();
              } finally {
                def.end();
              }
            }
          };
    };
  }
}
