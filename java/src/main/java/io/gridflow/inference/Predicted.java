package io.gridflow.inference;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.types.DataType;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * A column of predictions, until {@link Predicting} makes a node of the plan of it.
 *
 * <p>Spark is told that it isn't deterministic: it would compute it twice where a filter needs it.
 */
public final class Predicted extends Expression implements Unevaluable {
  private final Question question;
  private final Seq<Expression> inputs;

  /** Public, as Spark copies expressions by their constructors. */
  public Predicted(Question question, Seq<Expression> inputs) {
    this.question = question;
    this.inputs = inputs;
  }

  Question question() {
    return question;
  }

  @Override
  public Seq<Expression> children() {
    return inputs;
  }

  @Override
  public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
    return new Predicted(question, children);
  }

  @Override
  public DataType dataType() {
    return question.type();
  }

  @Override
  public boolean nullable() {
    return true;
  }

  @Override
  public boolean deterministic() {
    return false;
  }

  @Override
  public boolean foldable() {
    return false;
  }

  @Override
  public Object eval(InternalRow row) {
    throw new UnsupportedOperationException(
        "this session doesn't know gridflow.predict: use the DataFrame in the session that made it");
  }

  @Override
  public ExprCode doGenCode(CodegenContext context, ExprCode code) {
    throw new UnsupportedOperationException(
        "this session doesn't know gridflow.predict: use the DataFrame in the session that made it");
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public Object productElement(int place) {
    return place == 0 ? question : inputs;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof Predicted;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Predicted that
        && question.equals(that.question)
        && inputs.equals(that.inputs);
  }

  @Override
  public int hashCode() {
    return 31 * question.hashCode() + inputs.hashCode();
  }

  @Override
  public String toString() {
    return "predict(" + question + ", " + inputs.mkString(", ") + ")";
  }
}
