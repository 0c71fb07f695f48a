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
import java.util.Arrays;
import java.util.Random;
import java.util.zip.CRC32;
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
    assertArrayEquals(twice(bytes), readOf(compression, file.toByteArray()));
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

  /**
   * Two compressed streams, the second one damaged: all bytes are read, or none is without error.
   */
  @ParameterizedTest
  @EnumSource(
      value = Compression.class,
      names = {"GZIP", "DEFLATE"})
  void aDamagedSecondStreamIsNeverTheEnd(Compression compression) throws IOException {
    byte[] bytes = FramesTest.fileOf(FramesTest.someRecords(1, 5, 50));
    byte[] part = compressed(compression, bytes);
    byte[] file = twice(part);
    byte[] whole = twice(bytes);
    for (int at = part.length; at < file.length; at++) {
      for (int flipped : new int[] {1, 4, 8, 0x80, 0xff}) {
        byte[] damaged = file.clone();
        damaged[at] ^= (byte) flipped;
        try {
          // The time in a header, for example, has no checksum.
          assertArrayEquals(whole, readOf(compression, damaged), "byte " + at);
        } catch (IOException expected) {
          // found
        }
      }
      byte[] cut = Arrays.copyOf(file, at);
      if (at > part.length) {
        assertThrows(IOException.class, () -> readOf(compression, cut));
      }
    }
    file[part.length] = 0;
    assertThrows(IOException.class, () -> readOf(compression, file));
  }

  @Test
  void zerosMayPadAGzipFileBehindAMember() throws IOException {
    byte[] part = compressed(Compression.GZIP, new byte[] {1, 2});
    byte[] padded = Arrays.copyOf(part, part.length + 600);
    assertArrayEquals(new byte[] {1, 2}, readOf(Compression.GZIP, padded));
    assertArrayEquals(new byte[] {1, 2, 1, 2}, readOf(Compression.GZIP, twice(padded)));
    padded[padded.length - 1] = 1;
    assertThrows(IOException.class, () -> readOf(Compression.GZIP, padded));
    assertThrows(IOException.class, () -> readOf(Compression.GZIP, new byte[600]));
  }

  @Test
  void aHeaderMayHoldMoreThanItMust() throws IOException {
    byte[] part = compressed(Compression.GZIP, new byte[] {1, 2});
    ByteArrayOutputStream file = new ByteArrayOutputStream();
    file.write(part, 0, 3);
    file.write(2 + 4 + 8 + 16); // its checksum, extra bytes, a name, a comment
    file.write(part, 4, 6);
    file.writeBytes(new byte[] {3, 0, 7, 8, 9, 'n', 0, 'c', 'c', 0});
    CRC32 crc = new CRC32();
    crc.update(file.toByteArray());
    file.write((int) crc.getValue());
    file.write((int) crc.getValue() >> 8);
    file.write(part, 10, part.length - 10);
    byte[] header = file.toByteArray();
    assertArrayEquals(new byte[] {1, 2, 1, 2}, readOf(Compression.GZIP, twice(header)));
    header[4] ^= 1;
    assertThrows(IOException.class, () -> readOf(Compression.GZIP, header));
  }

  private static byte[] twice(byte[] bytes) {
    byte[] both = Arrays.copyOf(bytes, 2 * bytes.length);
    System.arraycopy(bytes, 0, both, bytes.length, bytes.length);
    return both;
  }

  private static byte[] readOf(Compression compression, byte[] file) throws IOException {
    return compression.decompress(reluctant(file)).readAllBytes();
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
