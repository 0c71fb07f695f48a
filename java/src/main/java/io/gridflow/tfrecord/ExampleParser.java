package io.gridflow.tfrecord;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;

/**
 * Finds the features of a serialized {@code Example} or {@code SequenceExample}, as ranges of
 * bytes.
 *
 * <p>What is accepted and which value wins is as in protobuf: the last of equal keys, merged
 * messages, unknown fields skipped, key and value in any order. Features that were not asked for
 * are skipped by their length and not checked inside. To values the ranges are made by {@link
 * FeatureDecoder}.
 *
 * <p>The records of a file mostly have the same features in the same order, so the parser compares
 * each key with the one that the previous record had in that place before it looks it up.
 *
 * <p>Not safe for use by several threads.
 */
public final class ExampleParser {
  /** Where a name was found. */
  public enum Place {
    /** The record does not have it. */
    ABSENT,
    /** In the features of an Example, or the context of a SequenceExample. */
    FEATURES,
    /** In the feature lists of a SequenceExample. */
    FEATURE_LISTS
  }

  private final Wire wire = new Wire();
  private final boolean sequence;
  private final boolean everything;
  private final MapEntries features;
  private final MapEntries lists;
  private final FeatureDecoder checker = new FeatureDecoder();
  private int record;

  private ExampleParser(Collection<String> names, boolean sequence, boolean everything) {
    this.sequence = sequence;
    this.everything = everything;
    this.features = new MapEntries(names, Place.FEATURES);
    this.lists = sequence ? new MapEntries(names, Place.FEATURE_LISTS) : null;
  }

  /**
   * A parser that finds the features of some names.
   *
   * @param names the names; their numbers are their places in this list
   * @param sequence whether records are SequenceExamples
   */
  public static ExampleParser of(List<String> names, boolean sequence) {
    return new ExampleParser(names, sequence, false);
  }

  /**
   * A parser that finds all features, checks all of them inside, and numbers names as they come.
   */
  public static ExampleParser ofEverything(boolean sequence) {
    return new ExampleParser(List.of(), sequence, true);
  }

  /**
   * Parses a record. The ranges that it finds are valid as long as the array isn't changed.
   *
   * @throws MalformedExampleException if the bytes are no Example (SequenceExample)
   */
  public void parse(byte[] b, int offset, int length) throws MalformedExampleException {
    record++;
    features.begin();
    if (sequence) {
      lists.begin();
    }
    int end = offset + length;
    int p = offset;
    while (p < end) {
      p = wire.tag(b, p, end);
      if (wire.tag == Wire.FIELD_1_BYTES) {
        p = wire.length(b, p, end);
        int messageEnd = p + wire.length;
        features.parse(b, p, messageEnd);
        p = messageEnd;
      } else if (wire.tag == Wire.FIELD_2_BYTES && sequence) {
        p = wire.length(b, p, end);
        int messageEnd = p + wire.length;
        lists.parse(b, p, messageEnd);
        p = messageEnd;
      } else {
        p = wire.skip(b, p, end, wire.tag);
      }
    }
  }

  /** Where the name of a number was found: in the context first, then in the feature lists. */
  public Place place(int number) {
    if (features.has(number)) {
      return Place.FEATURES;
    }
    return sequence && lists.has(number) ? Place.FEATURE_LISTS : Place.ABSENT;
  }

  /** The features, or the context: by number, whatever {@link #place} says. */
  MapEntries features() {
    return features;
  }

  /** The feature lists, null for a parser of Examples. */
  MapEntries lists() {
    return lists;
  }

  /** The array that holds the range of a number that is not absent. */
  public byte[] buffer(int number) {
    return found(number).buffers[number];
  }

  /** Where the serialized Feature, or FeatureList, of a number begins. */
  public int start(int number) {
    return found(number).starts[number];
  }

  /** Where the serialized Feature, or FeatureList, of a number ends. */
  public int end(int number) {
    return found(number).ends[number];
  }

  private MapEntries found(int number) {
    return features.has(number) ? features : lists;
  }

  /** The entries of one map from names to messages, and the guess of their order. */
  final class MapEntries {
    private static final int MAX_GUESSES = 4096;

    final NameTable names = new NameTable();
    private final Place place;
    private byte[][] buffers;
    private int[] starts;
    private int[] ends;
    private int[] seenIn;

    /** What was checked: the kind, and for features the number of values. */
    private Kind[] kinds;

    private int[] counts;
    private Kind kind;
    private int count;

    /** By place in the record. */
    private KeyGuess[] guesses = new KeyGuess[16];

    private int entry;

    MapEntries(Collection<String> wanted, Place place) {
      this.place = place;
      for (String name : wanted) {
        names.add(name.getBytes(StandardCharsets.UTF_8));
      }
      int capacity = Math.max(names.size(), 16);
      buffers = new byte[capacity][];
      starts = new int[capacity];
      ends = new int[capacity];
      seenIn = new int[capacity];
      kinds = new Kind[capacity];
      counts = new int[capacity];
    }

    void begin() {
      entry = 0;
    }

    boolean has(int number) {
      return number < seenIn.length && seenIn[number] == record;
    }

    byte[] buffer(int number) {
      return buffers[number];
    }

    int start(int number) {
      return starts[number];
    }

    int end(int number) {
      return ends[number];
    }

    /** The kind of a feature, or the widest of a feature list; only if everything is checked. */
    Kind kind(int number) {
      return kinds[number];
    }

    /** The number of a feature's values; only if everything is checked. */
    int count(int number) {
      return counts[number];
    }

    private void check(byte[] b, int start, int end) throws MalformedExampleException {
      if (place == Place.FEATURE_LISTS) {
        kind = StepReader.check(checker, b, start, end);
      } else {
        kind = checker.open(b, start, end);
        count = checker.values();
      }
    }

    void parse(byte[] b, int p, int end) throws MalformedExampleException {
      while (p < end) {
        if (b[p] == Wire.FIELD_1_BYTES) {
          p++;
        } else {
          p = wire.tag(b, p, end);
          if (wire.tag != Wire.FIELD_1_BYTES) {
            p = wire.skip(b, p, end, wire.tag);
            continue;
          }
        }
        p = wire.length(b, p, end);
        int entryEnd = p + wire.length;
        if (!takeGuess(b, p, entryEnd)) {
          parseEntry(b, p, entryEnd);
        }
        entry++;
        p = entryEnd;
      }
    }

    /** The fast way: the key that was expected here, then one value that fills the entry. */
    private boolean takeGuess(byte[] b, int p, int end) throws MalformedExampleException {
      if (entry >= guesses.length) {
        return false;
      }
      KeyGuess guess = guesses[entry];
      if (guess == null || guess.length >= end - p || !guess.matches(b, p)) {
        return false;
      }
      int value = wire.length(b, p + guess.length, end);
      if (value + wire.length != end) {
        return false;
      }
      if (guess.number >= 0) {
        put(guess.number, b, value, end);
      }
      return true;
    }

    private void parseEntry(byte[] b, int p, int end) throws MalformedExampleException {
      int keyStart = p;
      int keyLength = 0;
      int values = 0;
      int valueStart = p;
      int valueEnd = p;
      byte[] value = b;
      GrowingBytes merged = null;
      while (p < end) {
        p = wire.tag(b, p, end);
        int tag = wire.tag;
        if (tag == Wire.FIELD_1_BYTES) {
          p = wire.length(b, p, end);
          keyStart = p;
          keyLength = wire.length;
          NameTable.checkUtf8(b, keyStart, keyLength);
          p += keyLength;
        } else if (tag == Wire.FIELD_2_BYTES) {
          p = wire.length(b, p, end);
          if (values++ == 0) {
            valueStart = p;
            valueEnd = p + wire.length;
          } else {
            // To merge two messages is to parse the one behind the other, once both are sound.
            if (merged == null) {
              check(b, valueStart, valueEnd);
              merged = new GrowingBytes();
              merged.append(b, valueStart, valueEnd - valueStart);
            }
            check(b, p, p + wire.length);
            merged.append(b, p, wire.length);
          }
          p += wire.length;
        } else {
          p = wire.skip(b, p, end, tag);
        }
      }
      if (merged != null) {
        value = merged.array();
        valueStart = 0;
        valueEnd = merged.size();
      }
      int number = names.find(b, keyStart, keyLength);
      if (number < 0 && everything) {
        number = names.add(Arrays.copyOfRange(b, keyStart, keyStart + keyLength));
      }
      remember(b, keyStart, keyLength, number);
      if (number >= 0) {
        put(number, value, valueStart, valueEnd);
      }
    }

    private void put(int number, byte[] b, int start, int end) throws MalformedExampleException {
      if (number >= seenIn.length) {
        int capacity = 2 * Math.max(number, seenIn.length);
        buffers = Arrays.copyOf(buffers, capacity);
        starts = Arrays.copyOf(starts, capacity);
        ends = Arrays.copyOf(ends, capacity);
        seenIn = Arrays.copyOf(seenIn, capacity);
        kinds = Arrays.copyOf(kinds, capacity);
        counts = Arrays.copyOf(counts, capacity);
      }
      if (everything) {
        check(b, start, end);
        kinds[number] = kind;
        counts[number] = count;
      } else if (seenIn[number] == record) {
        // What is replaced is never decoded, but must be sound all the same.
        check(buffers[number], starts[number], ends[number]);
      }
      seenIn[number] = record;
      buffers[number] = b;
      starts[number] = start;
      ends[number] = end;
    }

    private void remember(byte[] b, int keyStart, int keyLength, int number) {
      if (entry >= MAX_GUESSES || keyLength > KeyGuess.MAX_KEY_BYTES) {
        return;
      }
      if (entry >= guesses.length) {
        guesses = Arrays.copyOf(guesses, Math.max(entry + 1, 2 * guesses.length));
      }
      guesses[entry] = new KeyGuess(b, keyStart, keyLength, number);
    }
  }
}
