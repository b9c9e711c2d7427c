package haproc.spark;

import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.CancellationException;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Ends the analysis and the optimisation of a statement that grows too large, or is cancelled.
 *
 * <p>A short text can stand for a huge plan: each of a few common table expressions, views or
 * DataFrames takes the one before it twice. Spark checks neither the size of a plan nor a
 * cancellation while it works on one, so one such query took a cluster out of service. Spark
 * applies this rule in each round of its work.
 */
final class Bounds extends Rule<LogicalPlan> {
    /**
     * The largest size: the columns of all nodes, where each use of a common table expression has
     * the nodes of its definition. Chosen: a table of 5,000 columns in a query of 100 nodes has so
     * many. A chain of 10 common table expressions that each take all columns of the one before
     * twice has over 200,000; with 14 a Spark with 1 GiB of heap ran out of memory.
     */
    private static final long SIZE_MAX = 500_000;
    private static final String REFUSED = "HAPROC_STATEMENT_TOO_COMPLEX: with all that it uses "
            + "several times, the statement has over " + SIZE_MAX + " columns of parts of a plan: "
            + "use less of its views, common table expressions or DataFrames twice, or name "
            + "columns instead of *";

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        if (Thread.currentThread().isInterrupted()) {
            throw new CancellationException("the statement is cancelled");
        }
        if (new Sizes().of(plan) > SIZE_MAX) {
            throw new IllegalArgumentException(REFUSED);
        }
        return plan;
    }

    /** The sizes of one plan's parts; each part is looked at once. */
    private static final class Sizes {
        private final Map<LogicalPlan, Long> known = new IdentityHashMap<>();
        /** By the id of the definition. */
        private final Map<Long, Long> definitions = new HashMap<>();

        long of(LogicalPlan plan) {
            Long before = known.get(plan);
            if (before != null) {
                return before;
            }
            int columns =
                    plan.resolved() ? CollectionConverters.asJava(plan.output()).size() : 0;
            long size = Math.max(1, columns);
            // The definitions that a WITH has stand before the query that uses them.
            for (LogicalPlan each : CollectionConverters.asJava(plan.children())) {
                size += of(each);
            }
            for (LogicalPlan each : CollectionConverters.asJava(plan.subqueries())) {
                size += of(each);
            }
            if (plan instanceof CTERelationRef used) {
                size += definitions.getOrDefault(used.cteId(), 0L);
            } else if (plan instanceof CTERelationDef defined) {
                definitions.put(defined.id(), size);
            }
            size = Math.min(size, SIZE_MAX + 1);
            known.put(plan, size);
            return size;
        }
    }
}
