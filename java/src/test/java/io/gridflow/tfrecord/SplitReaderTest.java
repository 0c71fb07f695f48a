package io.gridflow.tfrecord;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class SplitReaderTest {
  /** A file in memory. */
  private static final class Memory implements SeekableBytes {
    private final byte[] bytes;

    Memory(byte[] bytes) {
      this.bytes = bytes;
    }

    @Override
    public long length() {
      return bytes.length;
    }

    @Override
    public void readFully(long position, byte[] into, int offset, int count) throws EOFException {
      if (position + count > bytes.length) {
        throw new EOFException();
      }
      System.arraycopy(bytes, (int) position, into, offset, count);
    }

    @Override
    public InputStream streamFrom(long position) {
      int from = (int) position;
      return new ByteArrayInputStream(bytes, from, bytes.length - from);
    }

    @Override
    public void close() {}
  }

  private static List<byte[]> readInRanges(byte[] file, int rangeBytes) throws IOException {
    List<byte[]> records = new ArrayList<>();
    for (long start = 0; start < file.length; start += rangeBytes) {
      try (SplitReader split =
          new SplitReader(new Memory(file), "file", start, start + rangeBytes, 64, true)) {
        while (split.next()) {
          records.add(split.record().copy());
        }
      }
    }
    return records;
  }

  @Test
  void everySplitSizeReadsEveryRecordOnce() throws IOException {
    List<byte[]> records = FramesTest.someRecords(3, 12, 60);
    byte[] file = FramesTest.fileOf(records);
    for (int rangeBytes = 1; rangeBytes <= file.length; rangeBytes++) {
      FramesTest.assertSame(records, readInRanges(file, rangeBytes));
    }
  }

  @Test
  void recordsLongerThanTheSearchWindowAreSplitToo() throws IOException {
    List<byte[]> records = FramesTest.someRecords(4, 20, 300_000);
    byte[] file = FramesTest.fileOf(records);
    for (int rangeBytes : new int[] {10_000, 65_536, 65_537, 1_000_000}) {
      FramesTest.assertSame(records, readInRanges(file, rangeBytes));
    }
  }

  @Test
  void bytesFullOfZerosHoldNoBoundary() throws IOException {
    List<byte[]> records = List.of(new byte[200_000], new byte[3], new byte[100_000]);
    FramesTest.assertSame(records, readInRanges(FramesTest.fileOf(records), 30_000));
  }

  @Test
  void recordsInsideARecordAreNeverTakenForRecords() throws IOException {
    byte[] inner = FramesTest.fileOf(FramesTest.someRecords(5, 10, 30));
    List<byte[]> records = List.of(new byte[20], inner, new byte[5], inner, new byte[40]);
    byte[] file = FramesTest.fileOf(records);
    int refused = 0;
    for (int rangeBytes = 1; rangeBytes <= file.length; rangeBytes++) {
      List<byte[]> read;
      try {
        read = readInRanges(file, rangeBytes);
      } catch (IOException e) {
        assertTrue(e.getMessage().contains("splittable"), e::getMessage);
        refused++;
        continue;
      }
      FramesTest.assertSame(records, read);
    }
    assertTrue(refused > 0 && refused < file.length);
  }

  @Test
  void everyFlippedBitIsFoundInEverySplitSize() {
    byte[] file = FramesTest.fileOf(FramesTest.someRecords(6, 5, 8));
    for (int bit = 0; bit < 8 * file.length; bit += 3) {
      byte[] damaged = file.clone();
      damaged[bit / 8] ^= (byte) (1 << (bit % 8));
      for (int rangeBytes = 1; rangeBytes <= file.length; rangeBytes += 2) {
        int bytes = rangeBytes;
        assertThrows(IOException.class, () -> readInRanges(damaged, bytes));
      }
    }
  }

  @Test
  void aDamagedRecordKeepsItsPlaceForAllReaders() throws IOException {
    byte[] file = FramesTest.fileOf(List.of(new byte[30], new byte[30], new byte[30]));
    file[46 + 20] ^= 1;
    assertEquals(46, new RecordBoundaries(new Memory(file)).atOrAfter(10));
    try (SplitReader split = new SplitReader(new Memory(file), "file", 10, 60, 64, true)) {
      CorruptRecordException e = assertThrows(CorruptRecordException.class, split::next);
      assertEquals(46, e.position());
      assertTrue(e.skippable());
    }
  }
}
