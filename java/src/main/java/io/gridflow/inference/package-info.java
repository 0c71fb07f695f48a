/**
 * Predictions of a model's own process: {@code gridflow.predict}.
 *
 * <p>{@link io.gridflow.inference.Predicted} is what a DataFrame's plan has, {@link
 * io.gridflow.inference.Predicting} makes {@link io.gridflow.inference.PredictExec} of it, whose
 * tasks ({@link io.gridflow.inference.Rows}) give batches of rows to a {@link
 * io.gridflow.inference.ModelProcess} beside the executor. Rows and values lie in memory that both
 * see; the process is {@code gridflow/ml/inference/process.py}, and says what is sent.
 */
package io.gridflow.inference;
