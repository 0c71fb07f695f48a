package io.gridflow.inference;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** Some columns of the rows below, and the model's predictions for them. */
public final class Predict extends LogicalPlan {
  private final Question question;
  private final Seq<Attribute> inputs;
  private final Seq<Attribute> kept;
  private final Attribute prediction;
  private final LogicalPlan child;

  /** Public, as Spark copies plans by their constructors. */
  public Predict(
      Question question,
      Seq<Attribute> inputs,
      Seq<Attribute> kept,
      Attribute prediction,
      LogicalPlan child) {
    this.question = question;
    this.inputs = inputs;
    this.kept = kept;
    this.prediction = prediction;
    this.child = child;
  }

  Question question() {
    return question;
  }

  Seq<Attribute> inputs() {
    return inputs;
  }

  Seq<Attribute> kept() {
    return kept;
  }

  Attribute prediction() {
    return prediction;
  }

  @Override
  public Seq<Attribute> output() {
    return Scala.with(kept, prediction);
  }

  @Override
  public AttributeSet producedAttributes() {
    return AttributeSet.apply(prediction);
  }

  @Override
  public Seq<LogicalPlan> children() {
    return Scala.seq(List.of(child));
  }

  @Override
  public LogicalPlan withNewChildrenInternal(IndexedSeq<LogicalPlan> children) {
    return new Predict(question, inputs, kept, prediction, children.apply(0));
  }

  @Override
  public int productArity() {
    return 5;
  }

  @Override
  public Object productElement(int place) {
    return switch (place) {
      case 0 -> question;
      case 1 -> inputs;
      case 2 -> kept;
      case 3 -> prediction;
      default -> child;
    };
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof Predict;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Predict that && Scala.areEqual(this, that);
  }

  @Override
  public int hashCode() {
    return Scala.hash(this);
  }
}
