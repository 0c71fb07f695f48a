/**
 * Computes what Keras's preprocessing layers learn, where Spark has the rows: parts of partitions,
 * which {@code gridflow.ml.adapt} lets Spark combine.
 *
 * <p>The parts are the same as those of {@code gridflow/ml/tokens.py} and {@code quantiles.py},
 * which handle columns that this package doesn't support, and sessions without this jar: change
 * both together.
 */
package io.gridflow.adapt;
