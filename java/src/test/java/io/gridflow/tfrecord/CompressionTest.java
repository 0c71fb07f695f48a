package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class CompressionTest {
  private static byte[] compressed(Compression compression, byte[] bytes) throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (OutputStream stream = compression.compress(out)) {
      stream.write(bytes);
    }
    return out.toByteArray();
  }

  /** A stream as of a network: little at a time, and it never knows what is available. */
  private static InputStream reluctant(byte[] bytes) {
    return new FilterInputStream(new ByteArrayInputStream(bytes)) {
      @Override
      public int available() {
        return 0;
      }

      @Override
      public int read(byte[] into, int offset, int count) throws IOException {
        return super.read(into, offset, Math.min(count, 7));
      }
    };
  }

  @ParameterizedTest
  @EnumSource(Compression.class)
  void severalStreamsBehindOneAnotherAreReadAsOne(Compression compression) throws IOException {
    byte[] bytes = new byte[100_000];
    new Random(1).nextBytes(bytes);
    ByteArrayOutputStream file = new ByteArrayOutputStream();
    file.writeBytes(compressed(compression, bytes));
    file.writeBytes(compressed(compression, new byte[0]));
    file.writeBytes(compressed(compression, bytes));
    byte[] read = compression.decompress(reluctant(file.toByteArray())).readAllBytes();
    ByteArrayOutputStream twice = new ByteArrayOutputStream();
    twice.writeBytes(bytes);
    twice.writeBytes(bytes);
    assertArrayEquals(twice.toByteArray(), read);
  }

  @ParameterizedTest
  @EnumSource(
      value = Compression.class,
      names = {"GZIP", "DEFLATE"})
  void aStreamThatIsCutIsRefusedAtEveryByte(Compression compression) throws IOException {
    byte[] file = compressed(compression, FramesTest.fileOf(FramesTest.someRecords(1, 5, 50)));
    for (int bytes = 1; bytes < file.length; bytes++) {
      InputStream cut = new ByteArrayInputStream(file, 0, bytes);
      assertThrows(IOException.class, () -> compression.decompress(cut).readAllBytes());
    }
    assertEquals(0, compression.decompress(InputStream.nullInputStream()).readAllBytes().length);
  }

  @ParameterizedTest
  @EnumSource(
      value = Compression.class,
      names = {"GZIP", "DEFLATE"})
  void otherBytesAreRefused(Compression compression) {
    byte[] bytes = FramesTest.fileOf(FramesTest.someRecords(1, 5, 50));
    assertThrows(
        IOException.class,
        () -> compression.decompress(new ByteArrayInputStream(bytes)).readAllBytes());
  }

  @Test
  void namesAndSuffixesTellTheCompression() {
    assertEquals(Compression.GZIP, Compression.ofFile("part-0.tfrecord.GZ"));
    assertEquals(Compression.DEFLATE, Compression.ofFile("x.zlib"));
    assertEquals(Compression.NONE, Compression.ofFile("x.tfrecord"));
    assertEquals(Compression.DEFLATE, Compression.ofName("ZLIB"));
    assertNull(Compression.ofName("zstd"));
  }
}
