package io.gridflow.inference;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.Option;
import scala.collection.immutable.Seq;

/** How Spark plans predictions: an optimizer's rule and a strategy of the session. */
final class Predicting {
  private Predicting() {}

  /** Lets a session plan predictions. */
  static synchronized void teach(SparkSession session) {
    var methods = session.experimental();
    if (Scala.list(methods.extraOptimizations()).stream().noneMatch(Apart.class::isInstance)) {
      methods.extraOptimizations_$eq(
          Scala.<Rule<LogicalPlan>>with(methods.extraOptimizations(), new Apart()));
    }
    if (Scala.list(methods.extraStrategies()).stream().noneMatch(Strategy.class::isInstance)) {
      methods.extraStrategies_$eq(
          Scala.<SparkStrategy>with(methods.extraStrategies(), new Strategy()));
    }
  }

  /** Makes nodes of their own of predictions in projections, once Spark has moved all others. */
  private static final class Apart extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.transformDown(Scala.replacing(Filter.class, Apart::lowered))
          .transformUp(Scala.replacing(Project.class, Apart::apart));
    }

    /** Rows that a later filter drops by other columns aren't predicted. */
    private static LogicalPlan lowered(Filter filter) {
      if (!(filter.child() instanceof Project project) || predictions(project).isEmpty()) {
        return filter;
      }
      LogicalPlan source = project.child();
      List<Expression> below = new ArrayList<>();
      List<Expression> above = new ArrayList<>();
      for (Expression each : parts(filter.condition())) {
        boolean isEarlier = each.deterministic() && each.references().subsetOf(source.outputSet());
        (isEarlier ? below : above).add(each);
      }
      if (below.isEmpty()) {
        return filter;
      }
      LogicalPlan lowered = new Project(project.projectList(), filtered(below, source));
      return above.isEmpty() ? lowered : filtered(above, lowered);
    }

    private static List<Expression> parts(Expression condition) {
      List<Expression> parts = new ArrayList<>();
      if (condition instanceof And and) {
        parts.addAll(parts(and.left()));
        parts.addAll(parts(and.right()));
      } else {
        parts.add(condition);
      }
      return parts;
    }

    private static Filter filtered(List<Expression> conditions, LogicalPlan plan) {
      return new Filter(conditions.stream().reduce(And::new).orElseThrow(), plan);
    }

    private static Map<Predicted, Attribute> predictions(Project project) {
      Map<Predicted, Attribute> found = new LinkedHashMap<>();
      for (NamedExpression each : Scala.list(project.projectList())) {
        find((Expression) each, found);
      }
      return found;
    }

    private static LogicalPlan apart(Project project) {
      Map<Predicted, Attribute> found = predictions(project);
      if (found.isEmpty()) {
        return project;
      }
      List<NamedExpression> shown = new ArrayList<>();
      List<Attribute> needed = new ArrayList<>();
      for (NamedExpression each : Scala.list(project.projectList())) {
        NamedExpression other = without((Expression) each, found);
        shown.add(other);
        needed.addAll(Scala.list(((Expression) other).references().toSeq()));
      }
      LogicalPlan plan = below(project.child(), found, needed);
      List<Predicted> left = new ArrayList<>(found.keySet());
      while (!left.isEmpty()) {
        Predicted next = left.remove(0);
        List<Attribute> wanted = new ArrayList<>(needed);
        left.forEach(each -> wanted.addAll(inputs(each)));
        List<Attribute> kept = Scala.list(plan.output());
        AttributeSet set = set(wanted);
        kept = kept.stream().filter(set::contains).toList();
        plan =
            new Predict(
                next.question(), Scala.seq(inputs(next)), Scala.seq(kept), found.get(next), plan);
      }
      boolean isAll = Scala.list(plan.output()).equals(shown);
      return isAll ? plan : new Project(Scala.seq(shown), plan);
    }

    private static void find(Expression expression, Map<Predicted, Attribute> found) {
      if (expression instanceof Alias alias && alias.child() instanceof Predicted predicted) {
        found.putIfAbsent(predicted, alias.toAttribute());
      } else if (expression instanceof Predicted predicted) {
        Alias alias = named(predicted, "prediction");
        found.putIfAbsent(predicted, alias.toAttribute());
      } else {
        Scala.list(expression.children()).forEach(child -> find(child, found));
      }
    }

    private static Alias named(Expression expression, String name) {
      return new Alias(
          expression,
          name,
          NamedExpression.newExprId(),
          Scala.seq(List.of()),
          Option.empty(),
          Scala.seq(List.of()));
    }

    /** What is shown, with columns where predictions were. */
    private static NamedExpression without(Expression shown, Map<Predicted, Attribute> found) {
      if (shown instanceof Alias alias
          && alias.child() instanceof Predicted predicted
          && found.get(predicted).exprId().equals(alias.exprId())) {
        return found.get(predicted);
      }
      return (NamedExpression)
          shown.transformUp(Scala.<Expression, Predicted>replacing(Predicted.class, found::get));
    }

    /** The rows below, with the needed columns alone, and those that predictions are made of. */
    private static LogicalPlan below(
        LogicalPlan child, Map<Predicted, Attribute> found, List<Attribute> needed) {
      Map<Predicted, Attribute> predictions = new LinkedHashMap<>();
      List<Attribute> wanted = new ArrayList<>(needed);
      List<NamedExpression> columns = new ArrayList<>();
      List<NamedExpression> made = new ArrayList<>();
      found.forEach(
          (predicted, prediction) -> {
            List<Expression> inputs = new ArrayList<>();
            for (Expression input : Scala.list(predicted.children())) {
              if (input instanceof Attribute attribute) {
                wanted.add(attribute);
                inputs.add(attribute);
              } else {
                Alias alias = named(input, "input");
                made.add(alias);
                inputs.add(alias.toAttribute());
              }
            }
            predictions.put(new Predicted(predicted.question(), Scala.seq(inputs)), prediction);
          });
      found.clear();
      found.putAll(predictions);
      AttributeSet set = set(wanted);
      Scala.list(child.output()).stream().filter(set::contains).forEach(columns::add);
      boolean isAll = made.isEmpty() && columns.size() == child.output().size();
      columns.addAll(made);
      return isAll ? child : new Project(Scala.seq(columns), child);
    }

    private static List<Attribute> inputs(Predicted predicted) {
      List<Attribute> inputs = new ArrayList<>();
      Scala.list(predicted.children()).forEach(each -> inputs.add((Attribute) each));
      return inputs;
    }

    private static AttributeSet set(List<Attribute> attributes) {
      return AttributeSet.apply(Scala.<Expression>seq(attributes));
    }
  }

  private static final class Strategy extends SparkStrategy {
    @Override
    public Seq<SparkPlan> apply(LogicalPlan plan) {
      if (plan instanceof Predict predict) {
        return Scala.seq(
            List.of(
                new PredictExec(
                    predict.question(),
                    predict.inputs(),
                    predict.kept(),
                    predict.prediction(),
                    planLater(predict.children().apply(0)))));
      }
      return Scala.seq(List.of());
    }
  }
}
