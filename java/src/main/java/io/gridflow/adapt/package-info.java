/**
 * What Keras's preprocessing layers learn, counted where Spark has the rows: parts of partitions,
 * which {@code gridflow.ml.adapt} lets Spark add up.
 *
 * <p>The parts are those that {@code gridflow/ml/tokens.py} and {@code quantiles.py} make of
 * columns that this package doesn't take, or where this jar isn't: a change there is one here.
 */
package io.gridflow.adapt;
