package io.gridflow.adapt;

/** What parts the tokens of a text. */
enum Split {
  WHITESPACE,
  CHARACTER,
  NOTHING;

  static Split of(String name) {
    if (name == null) {
      return NOTHING;
    }
    return switch (name) {
      case "whitespace" -> WHITESPACE;
      case "character" -> CHARACTER;
      default -> throw new IllegalArgumentException("split is " + name);
    };
  }
}
