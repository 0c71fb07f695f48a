package io.gridflow.tfrecord;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * Collects which types the features of many records have: for the inference of a schema.
 *
 * <p>Where records differ, the wider kind (Int64List, FloatList, BytesList) and the deeper nesting
 * win. Features that never have a kind are left out.
 */
public final class FeatureTypes implements Serializable {
  private static final long serialVersionUID = 1L;

  /**
   * The type of a feature.
   *
   * @param kind of its values
   * @param depth 0 if it never has more than one value, 1 for a list, 2 for a feature list
   */
  public record Type(Kind kind, int depth) implements Serializable {
    private Type join(Type other) {
      return new Type(Kind.wider(kind, other.kind), Math.max(depth, other.depth));
    }
  }

  private final TreeMap<String, Type> features = new TreeMap<>();
  private final TreeMap<String, Type> lists = new TreeMap<>();

  /** Collects from the records that one parser has parsed. Not safe for use by several threads. */
  public static final class Collector {
    private final ExampleParser parser;
    private Kind[] kinds = new Kind[16];
    private boolean[] many = new boolean[16];
    private Kind[] listKinds = new Kind[16];

    /**
     * Collects types.
     *
     * @param sequence whether records are SequenceExamples
     */
    public Collector(boolean sequence) {
      this.parser = ExampleParser.ofEverything(sequence);
    }

    /**
     * Parses a record and adds its types.
     *
     * @throws MalformedExampleException if it is no Example; nothing of it is added then
     */
    public void add(byte[] bytes, int offset, int length) throws MalformedExampleException {
      parser.parse(bytes, offset, length);
      ExampleParser.MapEntries entries = parser.features();
      int known = entries.names.size();
      if (known > kinds.length) {
        kinds = Arrays.copyOf(kinds, 2 * known);
        many = Arrays.copyOf(many, 2 * known);
      }
      for (int i = 0; i < known; i++) {
        if (entries.has(i)) {
          kinds[i] = kinds[i] == null ? entries.kind(i) : Kind.wider(kinds[i], entries.kind(i));
          many[i] |= entries.count(i) > 1;
        }
      }
      if (parser.lists() != null) {
        addLists(parser.lists());
      }
    }

    private void addLists(ExampleParser.MapEntries entries) {
      int known = entries.names.size();
      if (known > listKinds.length) {
        listKinds = Arrays.copyOf(listKinds, 2 * known);
      }
      for (int i = 0; i < known; i++) {
        if (entries.has(i)) {
          Kind kind = entries.kind(i);
          listKinds[i] = listKinds[i] == null ? kind : Kind.wider(listKinds[i], kind);
        }
      }
    }

    /** What was collected so far. */
    public FeatureTypes types() {
      FeatureTypes types = new FeatureTypes();
      for (int i = 0; i < parser.features().names.size(); i++) {
        if (kinds[i] != null && kinds[i] != Kind.NONE) {
          types.features.put(name(parser.features(), i), new Type(kinds[i], many[i] ? 1 : 0));
        }
      }
      if (parser.lists() != null) {
        for (int i = 0; i < parser.lists().names.size(); i++) {
          if (listKinds[i] != null && listKinds[i] != Kind.NONE) {
            types.lists.put(name(parser.lists(), i), new Type(listKinds[i], 2));
          }
        }
      }
      return types;
    }

    private static String name(ExampleParser.MapEntries entries, int number) {
      return new String(entries.names.name(number), StandardCharsets.UTF_8);
    }
  }

  /** Adds the types that others have collected. */
  public FeatureTypes merge(FeatureTypes other) {
    other.features.forEach((name, type) -> features.merge(name, type, Type::join));
    other.lists.forEach((name, type) -> lists.merge(name, type, Type::join));
    return this;
  }

  /** The types by name, sorted. A name of the context hides a feature list of that name. */
  public SortedMap<String, Type> byName() {
    TreeMap<String, Type> all = new TreeMap<>(lists);
    all.putAll(features);
    return Collections.unmodifiableSortedMap(all);
  }
}
