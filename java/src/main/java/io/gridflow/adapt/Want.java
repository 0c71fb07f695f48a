package io.gridflow.adapt;

import java.io.Serializable;

/** Something that is wanted of each partition. */
interface Want extends Serializable {
  /** What gathers it from one partition. */
  Gathering begin(int place);
}
