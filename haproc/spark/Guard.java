package haproc.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.command.CreateDataSourceTableAsSelectCommand;
import org.apache.spark.sql.execution.command.ExplainCommand;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Option;
import scala.Product;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Lets the sessions for users' queries and plan readings change nothing but themselves. Such
 * sessions have {@link #SETTING}.
 *
 * <p>Changes of the ring's data run in sessions of HAProc's own, by the log. So a node with another
 * effect in such a session was taken for a query by mistake: it is refused before it does anything.
 * This does not depend on the spelling or the place of a statement: each command is analyzed before
 * it runs, also one inside another statement.
 */
final class Guard extends AbstractFunction1<LogicalPlan, BoxedUnit> {
    private static final String SETTING = "spark.sql.haproc.guarded";
    /** The last value of the setting in each session: RESET does not remove the guard. */
    private static final Map<SparkSession, List<String>> PATHS =
            Collections.synchronizedMap(new WeakHashMap<>());
    private static final ObjectMapper MAPPER = new ObjectMapper();
    /** The beginning of an error which says that a text is no query; the kind of effect follows. */
    static final String NO_QUERY = "HAPROC_NO_QUERY: ";
    private static final String STAGING = "haproc_staging";
    /** Schemas of HAProc's own, which no client may read. */
    private static final Set<String> OWN = Set.of(STAGING, "haproc_warm_up");
    /** Commands that change only their session, or only show something. */
    private static final Set<String> OF_SESSION = Set.of(
            "SetCommand", "ResetCommand", "SetCatalogAndNamespace", "SetNamespaceCommand",
            "SetCatalogCommand", "CreateTempViewUsing", "DropTempViewCommand", "CreateVariable",
            "DropVariable", "SetVariable", "CacheTable", "CacheTableAsSelect", "UncacheTable",
            "ClearCacheCommand", "ExplainCommand", "NoopCommand", "ListJarsCommand",
            "ListFilesCommand", "ListArchivesCommand");
    /** The beginnings of the names of commands that only show something. */
    private static final Set<String> TELLING = Set.of("Show", "Describe");
    /** Fields that show if a command is about the session only. */
    private static final Set<String> FLAGS = Set.of("isTemp", "viewType");
    private static final String FILLING = CreateDataSourceTableAsSelectCommand.class.getName();
    private static final Set<String> AROUND = Set.of(ExplainCommand.class.getName(), FILLING);
    private static final ThreadLocal<Boolean> READING = ThreadLocal.withInitial(() -> false);
    private final SparkSession session;

    Guard(SparkSession session) {
        this.session = session;
    }

    /**
     * Returns the path prefixes of the files that a guarded session may name, which the setting
     * holds as JSON; null if the session is not guarded.
     */
    static List<String> paths(SparkSession session) {
        String said = session.conf().get(SETTING, "");
        if (said.isEmpty()) {
            return PATHS.get(session);
        }
        try {
            List<String> found = List.of(MAPPER.readValue(said, String[].class));
            PATHS.put(session, found);
            return found;
        } catch (IOException error) {
            throw new IllegalArgumentException(SETTING + " is no list: " + said);
        }
    }

    /** Returns the result of an analysis in which a statement is read and does not run. */
    static <T> T reading(Supplier<T> analysis) {
        boolean before = READING.get();
        READING.set(true);
        try {
            return analysis.get();
        } finally {
            READING.set(before);
        }
    }

    @Override
    public BoxedUnit apply(LogicalPlan plan) {
        if (!READING.get() && paths(session) != null) {
            TreeNode<?> found = effect(plan, node -> true);
            if (found != null && isInside(AROUND)) {
                // It is not run, but Spark may compute expressions when it plans.
                found = effect(plan, node -> node instanceof Expression || isOwnTable(node));
            }
            if (found != null) {
                throw new IllegalArgumentException(
                        NO_QUERY + found.getClass().getSimpleName());
            }
        }
        return BoxedUnit.UNIT;
    }

    private static TreeNode<?> effect(LogicalPlan root, Predicate<TreeNode<?>> counts) {
        Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        Deque<TreeNode<?>> waiting = new ArrayDeque<>(Set.of(root));
        while (!waiting.isEmpty()) {
            TreeNode<?> node = waiting.pop();
            if (!seen.add(node)) {
                continue;
            }
            boolean isFound = Effects.isEffect(node) && !isOfSession(node) && !isStaging(node)
                    || !Effects.isEffect(root) && isOwnTable(node);
            if (isFound && counts.test(node)) {
                return node;
            }
            if (node instanceof ExplainCommand) {
                continue;
            }
            CollectionConverters.asJava(node.children()).forEach(each -> push(waiting, each));
            CollectionConverters.asJava(node.innerChildren()).forEach(each -> push(waiting, each));
            if (node instanceof QueryPlan<?> plan) {
                CollectionConverters.asJava(plan.expressions()).forEach(waiting::push);
            } else if (node instanceof PlanExpression<?> subquery) {
                push(waiting, subquery.plan());
            }
        }
        return null;
    }

    private static void push(Deque<TreeNode<?>> waiting, Object node) {
        if (node instanceof TreeNode<?> tree) {
            waiting.push(tree);
        }
    }

    private static boolean isOfSession(TreeNode<?> node) {
        String name = node.getClass().getSimpleName().replace("$", "");  // of an object
        if (OF_SESSION.contains(name) || TELLING.stream().anyMatch(name::startsWith)) {
            return true;
        }
        for (int i = 0; i < node.productArity(); i++) {
            if (name.startsWith("Alter") && node.productElement(i) instanceof TableIdentifier of) {
                return of.database().isEmpty();  // all except temporary views have one
            }
            if (FLAGS.contains(node.productElementName(i))) {
                String flag = String.valueOf(node.productElement(i));
                return flag.equals("true") || flag.equals("LocalTempView");
            }
        }
        return false;
    }

    /** True for a table of HAProc's own; a command that fills one has it as a node, too. */
    private static boolean isOwnTable(TreeNode<?> node) {
        return node instanceof LogicalRelation relation && relation.catalogTable().isDefined()
                && OWN.stream().anyMatch(
                        relation.catalogTable().get().identifier().database()::contains);
    }

    /** True if it fills a table of HAProc's own, which no client can name. */
    private static boolean isStaging(Product node) {
        for (Object each : CollectionConverters.asJava(node.productIterator().toList())) {
            Object value = each instanceof Option<?> option && option.isDefined()
                    ? option.get() : each;
            if (value instanceof CatalogTable table) {
                value = table.identifier();
            }
            if (value instanceof TableIdentifier name && name.database().contains(STAGING)
                    || value instanceof Identifier other && other.namespace().length == 1
                            && other.namespace()[0].equals(STAGING)) {
                return true;
            }
            if (value instanceof LogicalPlan && value.getClass().getSimpleName()
                    .equals("ResolvedIdentifier") && isStaging((Product) value)) {
                return true;
            }
        }
        return false;
    }

    /** True if a table of HAProc's own is being filled: Spark chooses its folder. */
    static boolean isFilling() {
        return isInside(Set.of(FILLING));
    }

    /** True inside a command that was allowed before: the filling of a table, or EXPLAIN. */
    private static boolean isInside(Set<String> commands) {
        return StackWalker.getInstance().walk(frames -> frames.anyMatch(
                frame -> commands.contains(frame.getClassName())));
    }
}
