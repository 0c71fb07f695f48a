package io.gridflow.tfrecord.spark;

import io.gridflow.tfrecord.RecordType;
import io.gridflow.tfrecord.TFRecordReader;
import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** The data source's options, checked. Their names are the same in any case. */
final class Options implements Serializable {
  private static final long serialVersionUID = 1L;

  /** What becomes of a record that can't be read. */
  enum Mode {
    PERMISSIVE,
    DROPMALFORMED,
    FAILFAST
  }

  private static final List<String> OWN =
      List.of(
          "recordType",
          "compression",
          "codec",
          "mode",
          "columnNameOfCorruptRecord",
          "multiValueScalar",
          "binaryAs",
          "samplingRatio",
          "splittable",
          "crcCheck",
          "bufferSize",
          "writeLocality");

  /** Options that Spark itself acts upon, for every file format. */
  private static final Set<String> OF_SPARK =
      Set.of(
          "path",
          "paths",
          "basepath",
          "pathglobfilter",
          "modifiedbefore",
          "modifiedafter",
          "timezone",
          "recursivefilelookup",
          "ignorecorruptfiles",
          "ignoremissingfiles",
          "maxrecordsperfile",
          "partitionoverwritemode",
          "mergeschema",
          "maxfilespertrigger",
          "maxbytespertrigger",
          "maxcachedfiles",
          "discardcachedinputratio",
          "latestfirst",
          "maxfileage",
          "filenameonly",
          "cleansource",
          "sourcearchivedir",
          "checkpointlocation",
          "queryname",
          "retention",
          "provider",
          "locationprovider",
          "returning_batch");

  final RecordType recordType;

  /** As given; null if the file's name decides (reading) or none is wanted (writing). */
  final String compression;

  final Mode mode;
  final String corruptColumn;
  final boolean firstOfMany;
  final boolean binaryAsBinary;
  final double samplingRatio;

  /** Whether what follows damage in a file is left out without an error. */
  final boolean ignoreCorruptFiles;

  final boolean splittable;
  final boolean checkCrc;
  final int bufferBytes;
  final boolean writeLocally;

  /**
   * Checks options.
   *
   * @param given as the user wrote them
   * @param defaultCorruptColumn the session's name for the column
   * @param defaultIgnoreCorruptFiles the session's setting
   */
  Options(
      Map<String, String> given, String defaultCorruptColumn, boolean defaultIgnoreCorruptFiles) {
    Map<String, String> options = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    options.putAll(given);
    options.keySet().forEach(Options::checkName);
    recordType = RecordType.of(options.getOrDefault("recordType", RecordType.EXAMPLE.label()));
    String codec = options.get("codec");
    String named = options.getOrDefault("compression", codec);
    if (codec != null && !codec.equalsIgnoreCase(named)) {
      throw new IllegalArgumentException(
          "compression and codec are two names of one option, got '"
              + named
              + "' and '"
              + codec
              + "'.");
    }
    compression = named == null || named.isEmpty() ? null : named;
    mode =
        Mode.valueOf(
            choice(options, "mode", "FAILFAST", "PERMISSIVE", "DROPMALFORMED")
                .toUpperCase(Locale.ROOT));
    corruptColumn = options.getOrDefault("columnNameOfCorruptRecord", defaultCorruptColumn);
    firstOfMany = choice(options, "multiValueScalar", "error", "first").equalsIgnoreCase("first");
    binaryAsBinary = choice(options, "binaryAs", "string", "binary").equalsIgnoreCase("binary");
    samplingRatio = number(options, "samplingRatio", 1.0);
    if (!(samplingRatio > 0 && samplingRatio <= 1)) {
      throw new IllegalArgumentException(
          "samplingRatio must be above 0 and at most 1, got " + samplingRatio + ".");
    }
    String ignore = options.get("ignoreCorruptFiles");
    ignoreCorruptFiles = ignore == null ? defaultIgnoreCorruptFiles : Boolean.parseBoolean(ignore);
    // A reader that took TFRecord bytes inside a record for records must fail, and Spark would not
    // let it: it would keep the rows.
    splittable =
        choice(options, "splittable", "true", "false").equalsIgnoreCase("true")
            && !ignoreCorruptFiles;
    checkCrc = choice(options, "crcCheck", "true", "false").equalsIgnoreCase("true");
    bufferBytes = (int) number(options, "bufferSize", TFRecordReader.DEFAULT_BUFFER_BYTES);
    if (bufferBytes < 16) {
      throw new IllegalArgumentException(
          "bufferSize must be at least 16 bytes, got " + options.get("bufferSize") + ".");
    }
    writeLocally =
        choice(options, "writeLocality", "distributed", "local").equalsIgnoreCase("local");
  }

  private static void checkName(String name) {
    // A name with a dot is a key of Hadoop's configuration, one with underscores is Spark's own.
    if (name.contains(".")
        || name.startsWith("__")
        || OF_SPARK.contains(name.toLowerCase(Locale.ROOT))
        || OWN.stream().anyMatch(name::equalsIgnoreCase)) {
      return;
    }
    String hint =
        OWN.stream()
            .filter(
                own -> distance(own.toLowerCase(Locale.ROOT), name.toLowerCase(Locale.ROOT)) < 4)
            .findFirst()
            .map(own -> " Did you mean '" + own + "'?")
            .orElse("");
    throw new IllegalArgumentException(
        "tfrecord has no option '"
            + name
            + "'."
            + hint
            + " Its options are "
            + String.join(", ", OWN)
            + ", and those of all of Spark's file formats.");
  }

  /** The number of letters to insert, leave out or change between two words. */
  private static int distance(String a, String b) {
    int[] row = new int[b.length() + 1];
    Arrays.setAll(row, i -> i);
    for (int i = 1; i <= a.length(); i++) {
      int diagonal = row[0];
      row[0] = i;
      for (int k = 1; k <= b.length(); k++) {
        int change = diagonal + (a.charAt(i - 1) == b.charAt(k - 1) ? 0 : 1);
        diagonal = row[k];
        row[k] = Math.min(change, 1 + Math.min(row[k], row[k - 1]));
      }
    }
    return row[b.length()];
  }

  private static String choice(Map<String, String> options, String name, String... allowed) {
    String value = options.getOrDefault(name, allowed[0]);
    if (Arrays.stream(allowed).noneMatch(value::equalsIgnoreCase)) {
      throw new IllegalArgumentException(
          name + " must be one of " + String.join(", ", allowed) + ", got '" + value + "'.");
    }
    return value;
  }

  private static double number(Map<String, String> options, String name, double otherwise) {
    String value = options.get(name);
    try {
      return value == null ? otherwise : Double.parseDouble(value);
    } catch (NumberFormatException e) {
      throw new IllegalArgumentException(name + " must be a number, got '" + value + "'.", e);
    }
  }
}
