package io.gridflow.tfrecord;

import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Checks TFRecord files from the command line, if only a JVM is available.
 *
 * <pre>java -cp gridflow-tfrecord.jar io.gridflow.tfrecord.Verify [--record-type TYPE] FILE…</pre>
 *
 * <p>Prints one line for each bad record: file, the record's offset in bytes (in the uncompressed
 * file), its number from 0 on, what is wrong; and one line for each file with the number of
 * records. Ends with status 1 if there was a bad record, with 2 for wrong arguments.
 */
public final class Verify {
  private Verify() {}

  /** Runs the command. */
  public static void main(String[] args) throws IOException {
    RecordType type = RecordType.EXAMPLE;
    List<Path> files = new ArrayList<>();
    for (int i = 0; i < args.length; i++) {
      if (args[i].equals("--record-type") && i + 1 < args.length) {
        type = RecordType.of(args[++i]);
      } else if (args[i].startsWith("--")) {
        files.clear();
        break;
      } else {
        files.add(Path.of(args[i]));
      }
    }
    if (files.isEmpty()) {
      System.err.println("usage: Verify [--record-type Example|SequenceExample|ByteArray] FILE...");
      System.exit(2);
    }
    long bad = 0;
    for (Path file : files) {
      bad += verify(file, type, System.out);
    }
    System.out.flush();
    System.exit(bad == 0 ? 0 : 1);
  }

  /**
   * Checks one file.
   *
   * @return the number of bad records; reading stops at one behind which the next can't be found
   */
  public static long verify(Path file, RecordType type, PrintStream out) throws IOException {
    long records = 0;
    long bad = 0;
    ExampleParser parser = ExampleParser.ofEverything(type == RecordType.SEQUENCE_EXAMPLE);
    try (InputStream raw = Files.newInputStream(file);
        InputStream in = Compression.ofFile(file.toString()).decompress(raw);
        TFRecordReader reader = new TFRecordReader(in)) {
      boolean more = true;
      while (more) {
        String problem = null;
        try {
          more = reader.next();
          if (more && type != RecordType.BYTE_ARRAY) {
            parser.parse(reader.buffer(), reader.offset(), reader.length());
          }
        } catch (CorruptRecordException e) {
          problem = e.getMessage();
          more = e.skippable();
        } catch (MalformedExampleException e) {
          problem = e.getMessage();
        }
        if (problem != null) {
          bad++;
          out.printf("%s\t%d\t%d\t%s%n", file, reader.recordPosition(), records, problem);
        }
        if (more) {
          records++;
        }
      }
    }
    out.printf("%s\t%d records, %d bad%n", file, records, bad);
    return bad;
  }
}
