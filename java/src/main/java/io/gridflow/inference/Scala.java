package io.gridflow.inference;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import scala.Function1;
import scala.PartialFunction;
import scala.Product;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.ScalaRunTime;

/** What Scala's compiler would write. */
final class Scala {
  private Scala() {}

  static <T> Seq<T> seq(List<? extends T> values) {
    return CollectionConverters.<T>asScala(new ArrayList<T>(values)).toSeq();
  }

  static <T> List<T> list(Seq<T> values) {
    return CollectionConverters.asJava(values);
  }

  static <T> Seq<T> with(Seq<? extends T> values, T more) {
    List<T> all = new ArrayList<>(CollectionConverters.asJava(values));
    all.add(more);
    return seq(all);
  }

  static <K, V> Map<K, V> map(java.util.Map<K, V> values) {
    return Map.from(CollectionConverters.asScala(values));
  }

  /** For {@code transformUp}: the nodes of a class that are to be others. */
  static <T, N extends T> PartialFunction<T, T> replacing(Class<N> kind, Function<N, T> other) {
    return new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(T node) {
        return kind.isInstance(node);
      }

      @Override
      @SuppressWarnings("unchecked") // Scala's type says that what is found is a B
      public <A extends T, B> B applyOrElse(A node, Function1<A, B> otherwise) {
        return kind.isInstance(node) ? (B) other.apply(kind.cast(node)) : otherwise.apply(node);
      }
    };
  }

  /** Whether two objects of a case class, as which Spark treats plans, are equal. */
  static boolean areEqual(Product one, Product other) {
    for (int place = 0; place < one.productArity(); place++) {
      if (!one.productElement(place).equals(other.productElement(place))) {
        return false;
      }
    }
    return true;
  }

  static int hash(Product product) {
    return ScalaRunTime._hashCode(product);
  }
}
