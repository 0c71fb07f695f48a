package io.gridflow.tfrecord.hadoop;

import io.gridflow.tfrecord.Compression;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Locale;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.CompressionCodecFactory;
import org.apache.hadoop.io.compress.DefaultCodec;
import org.apache.hadoop.io.compress.GzipCodec;

/**
 * The compression of a file: one that TensorFlow supports, implemented with the JDK, or any other
 * Hadoop codec.
 */
public final class Codec {
  private final Compression compression;
  private final CompressionCodec codec;

  private Codec(Compression compression, CompressionCodec codec) {
    this.compression = compression;
    this.codec = codec;
  }

  /** No compression. */
  public static Codec none() {
    return new Codec(Compression.NONE, null);
  }

  /** The codec that a file's suffix tells. */
  public static Codec ofFile(Path path, Configuration configuration) {
    Compression known = Compression.ofFile(path.getName());
    if (known != Compression.NONE) {
      return new Codec(known, null);
    }
    return of(new CompressionCodecFactory(configuration).getCodec(path));
  }

  /**
   * The codec of a name or class name, as users write it: none, gzip, deflate (zlib), or one that
   * Hadoop knows: bzip2, snappy, lz4, zstd, a class.
   *
   * @throws IllegalArgumentException if there is none of that name
   */
  public static Codec ofName(String name, Configuration configuration) {
    Compression known = Compression.ofName(name);
    if (known != null) {
      return new Codec(known, null);
    }
    String hadoopName = name.toLowerCase(Locale.ROOT).equals("zstd") ? "ZStandardCodec" : name;
    CompressionCodec codec = null;
    try {
      codec = new CompressionCodecFactory(configuration).getCodecByName(hadoopName);
    } catch (IllegalArgumentException noSuchClass) {
      throw unknown(name, noSuchClass);
    }
    if (codec == null) {
      throw unknown(name, null);
    }
    return of(codec);
  }

  /** The codec that a Hadoop codec stands for. */
  public static Codec of(CompressionCodec codec) {
    if (codec == null) {
      return none();
    }
    if (codec instanceof GzipCodec) {
      return new Codec(Compression.GZIP, null);
    }
    if (codec.getClass() == DefaultCodec.class
        || codec.getDefaultExtension().equals(Compression.DEFLATE.suffix())) {
      return new Codec(Compression.DEFLATE, null);
    }
    return new Codec(Compression.NONE, codec);
  }

  private static IllegalArgumentException unknown(String name, Throwable cause) {
    return new IllegalArgumentException(
        "compression must be none, gzip, deflate (which TensorFlow reads), or one of Hadoop's"
            + " codecs (bzip2, snappy, lz4, zstd, a class name), got '"
            + name
            + "'.",
        cause);
  }

  /** Whether files are stored as they are, so that they can be split. */
  public boolean isNone() {
    return compression == Compression.NONE && codec == null;
  }

  /** Whether TensorFlow can read such files. */
  public boolean isKnownToTensorFlow() {
    return codec == null;
  }

  /** What the names of such files end with, with the dot; empty for no compression. */
  public String suffix() {
    return codec == null ? compression.suffix() : codec.getDefaultExtension();
  }

  /** Wraps a stream that holds compressed bytes. */
  public InputStream decompress(InputStream in) throws IOException {
    return codec == null ? compression.decompress(in) : codec.createInputStream(in);
  }

  /** Wraps a stream that takes compressed bytes. */
  public OutputStream compress(OutputStream out) throws IOException {
    return codec == null ? compression.compress(out) : codec.createOutputStream(out);
  }
}
