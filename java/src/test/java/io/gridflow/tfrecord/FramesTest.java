package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class FramesTest {
  static List<byte[]> someRecords(int seed, int count, int longest) {
    Random random = new Random(seed);
    List<byte[]> records = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      byte[] record = new byte[i == 0 ? 0 : random.nextInt(longest)];
      random.nextBytes(record);
      records.add(record);
    }
    return records;
  }

  static byte[] fileOf(List<byte[]> records) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (TFRecordWriter writer = new TFRecordWriter(out)) {
      for (byte[] record : records) {
        writer.write(record);
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    return out.toByteArray();
  }

  static List<byte[]> recordsIn(InputStream in, int bufferBytes) throws IOException {
    List<byte[]> records = new ArrayList<>();
    try (TFRecordReader reader = new TFRecordReader(in, 0, bufferBytes, true)) {
      while (reader.next()) {
        records.add(reader.copy());
      }
    }
    return records;
  }

  static void assertSame(List<byte[]> expected, List<byte[]> actual) {
    assertArrayEquals(expected.toArray(), actual.toArray());
  }

  @Test
  void theChecksumIsThatOfThePublishedVectors() {
    // RFC 3720, B.4: 32 bytes of zeros have CRC32C 0x8a9136aa.
    int masked = new MaskedCrc32c().of(new byte[32], 0, 32);
    assertEquals(0x8a9136aa, MaskedCrc32c.unmask(masked));
    assertEquals(masked, MaskedCrc32c.mask(0x8a9136aa));
  }

  @Test
  void recordsComeBackWhateverTheBufferIs() throws IOException {
    List<byte[]> records = someRecords(1, 300, 5000);
    byte[] file = fileOf(records);
    for (int bufferBytes : new int[] {1, 13, 4096, 1 << 20}) {
      assertSame(records, recordsIn(new ByteArrayInputStream(file), bufferBytes));
    }
  }

  @Test
  void recordsLargerThanTheWritersBufferComeBack() throws IOException {
    List<byte[]> records = List.of(new byte[1 << 18], new byte[(1 << 18) - 12], new byte[1 << 20]);
    records.forEach(record -> Arrays.fill(record, (byte) record.length));
    assertSame(records, recordsIn(new ByteArrayInputStream(fileOf(records)), 4096));
  }

  @Test
  void anEmptyFileHasNoRecords() throws IOException {
    assertSame(List.of(), recordsIn(InputStream.nullInputStream(), 16));
  }

  @Test
  void aFileThatEndsInsideAFrameIsDamagedAtEveryByte() {
    List<byte[]> records = someRecords(2, 4, 40);
    byte[] file = fileOf(records);
    List<Integer> boundaries = new ArrayList<>(List.of(0));
    records.forEach(r -> boundaries.add(boundaries.get(boundaries.size() - 1) + 16 + r.length));
    for (int bytes = 0; bytes <= file.length; bytes++) {
      InputStream cut = new ByteArrayInputStream(file, 0, bytes);
      if (boundaries.contains(bytes)) {
        int whole = boundaries.indexOf(bytes);
        List<byte[]> read = assertDoesNotThrowReading(cut);
        assertSame(records.subList(0, whole), read);
      } else {
        CorruptRecordException e =
            assertThrows(CorruptRecordException.class, () -> recordsIn(cut, 16));
        assertTrue(boundaries.contains((int) e.position()), e.getMessage());
        assertFalse(e.skippable());
      }
    }
  }

  private static List<byte[]> assertDoesNotThrowReading(InputStream in) {
    try {
      return recordsIn(in, 16);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Test
  void everyFlippedBitIsFound() {
    byte[] file = fileOf(List.of(new byte[] {1, 2, 3}, new byte[] {4}));
    for (int bit = 0; bit < 8 * file.length; bit++) {
      byte[] damaged = file.clone();
      damaged[bit / 8] ^= (byte) (1 << (bit % 8));
      assertThrows(
          CorruptRecordException.class, () -> recordsIn(new ByteArrayInputStream(damaged), 64));
    }
  }

  @Test
  void behindDamagedBytesTheNextRecordIsRead() throws IOException {
    byte[] file = fileOf(List.of(new byte[] {1, 2, 3}, new byte[] {4}));
    file[13] ^= 1;
    try (TFRecordReader reader = new TFRecordReader(new ByteArrayInputStream(file))) {
      CorruptRecordException e = assertThrows(CorruptRecordException.class, reader::next);
      assertTrue(e.skippable());
      assertArrayEquals(new byte[] {1, 3, 3}, reader.copy());
      assertTrue(reader.next());
      assertArrayEquals(new byte[] {4}, reader.copy());
      assertFalse(reader.next());
    }
  }

  @Test
  void withoutChecksumsAWrongLengthNeitherPassesNorAllocates() {
    byte[] file = fileOf(List.of(new byte[] {1, 2, 3}));
    for (long length : new long[] {-1, Long.MIN_VALUE, Integer.MAX_VALUE, 1L << 31, 1L << 40, 4}) {
      Wire.LONG_LE.set(file, 0, length);
      assertThrows(
          CorruptRecordException.class,
          () -> {
            try (TFRecordReader reader =
                new TFRecordReader(new ByteArrayInputStream(file), 0, 16, false)) {
              reader.next();
              reader.next();
            }
          });
    }
  }

  @Test
  void aCompressedFileIsRecognisedInTheMessage() throws IOException {
    for (Compression compression : List.of(Compression.GZIP, Compression.DEFLATE)) {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      try (OutputStream out = compression.compress(bytes)) {
        out.write(fileOf(List.of(new byte[100])));
      }
      IOException e =
          assertThrows(
              CorruptRecordException.class,
              () -> recordsIn(new ByteArrayInputStream(bytes.toByteArray()), 64));
      assertTrue(e.getMessage().contains("compression '"), e.getMessage());
    }
  }

  @Test
  void aRecordOf512MebibytesIsWrittenAndRead(@TempDir Path folder) throws IOException {
    Path path = folder.resolve("big.tfrecord");
    byte[] record = new byte[512 << 20];
    record[record.length - 1] = 7;
    try (TFRecordWriter writer = new TFRecordWriter(Files.newOutputStream(path))) {
      writer.write(record);
      writer.write(new byte[] {1});
    }
    try (TFRecordReader reader = new TFRecordReader(Files.newInputStream(path))) {
      assertTrue(reader.next());
      assertEquals(record.length, reader.length());
      assertEquals(7, reader.buffer()[reader.offset() + record.length - 1]);
      assertTrue(reader.next());
      assertEquals(1, reader.length());
      assertFalse(reader.next());
    }
    try (SplitReader split =
        new SplitReader(new LocalBytes(path), "big", 100 << 20, 200 << 20, 1 << 20, true)) {
      assertFalse(split.next());
    }
  }
}
