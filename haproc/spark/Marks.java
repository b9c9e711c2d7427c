package haproc.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.sql.catalyst.analysis.ExpressionWithUnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.LiteralFunctionResolution;
import org.apache.spark.sql.catalyst.analysis.Parameter;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAlias;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.catalog.TempVariableManager;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.LambdaFunction;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.UnresolvedNamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.UnresolvedWindowExpression;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DatetimeType;
import scala.collection.immutable.Vector$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds the expressions that Spark's analyzer computes itself, so that the analyzed tree has only
 * their results: rows in a text, the schema of from_json(), the values of PIVOT, and others.
 *
 * <p>Spark applies this rule to each plan that it analyzes, before anything in it is resolved: to
 * that of a text or a DataFrame, and to the bodies of views and functions. During a plan reading,
 * each expression gets a mark. Spark passes a mark on to the replacement of the expression. So an
 * expression was computed or left out if its mark is not in the analyzed tree. A list of the
 * functions that compute their arguments during analysis is not needed.
 */
final class Marks extends Rule<LogicalPlan> {
    private static final TreeNodeTag<Long> MARK = new TreeNodeTag<>("haproc.mark");
    /** A literal with the other mark is the value of the expression that it replaced. */
    private static final TreeNodeTag<Long> OF_LITERAL = new TreeNodeTag<>("haproc.literal");
    /** For the whole server: some nodes outlive a reading, and are in the next one. */
    private static final AtomicLong LAST = new AtomicLong();
    private static final ThreadLocal<Marks> READING = new ThreadLocal<>();
    private final SparkSession session;
    private final Map<Long, Expression> marked = new LinkedHashMap<>();
    private final Set<Long> kept = new HashSet<>();
    private final Set<String> columns = new HashSet<>();
    private LogicalPlan last;

    Marks(SparkSession session) {
        this.session = session;
    }

    /** Marks the expressions that the analyzer receives in this thread from now on. */
    void begin() {
        READING.set(this);
    }

    static void end() {
        READING.remove();
    }

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        Marks reading = READING.get();
        if (reading != null && reading.last != plan) {  // Spark applies it until nothing changes
            reading.last = plan;
            reading.mark(Trees.all(
                    plan, node -> node instanceof LogicalPlan part && part.analyzed()));
        }
        return plan;
    }

    /** Marks nodes that have no mark; {@code nodes}: parents come before children. */
    private void mark(List<TreeNode<?>> nodes) {
        Set<Object> windowed = Collections.newSetFromMap(new IdentityHashMap<>());
        for (TreeNode<?> node : nodes) {
            if (node instanceof WindowExpression window) {
                windowed.add(window.windowFunction());  // needs its rows
            } else if (node instanceof UnresolvedWindowExpression window) {
                windowed.add(window.child());
            } else if (!windowed.contains(node)) {
                mark(node);
            }
        }
    }

    private void mark(TreeNode<?> node) {
        if (node instanceof Expression expression && mayBeComputed(expression)
                && markOf(expression) == null) {
            long mark = LAST.incrementAndGet();
            expression.setTagValue(tag(expression), mark);
            marked.put(mark, expression);
        }
    }

    private static TreeNodeTag<Long> tag(TreeNode<?> node) {
        return node instanceof Literal ? OF_LITERAL : MARK;
    }

    private static Long markOf(TreeNode<?> node) {
        return node.getTagValue(tag(node)).getOrElse(() -> null);
    }

    private boolean mayBeComputed(Expression node) {
        if (node instanceof Literal literal) {
            return literal.dataType() instanceof DatetimeType && !Trees.isShared(node);
        }
        if (node instanceof UnresolvedAttribute name) {
            return isFunction(name) || isVariable(name);
        }
        boolean isValue = !(node instanceof Unevaluable) || node instanceof UnresolvedFunction
                || node instanceof ExpressionWithUnresolvedIdentifier
                || node instanceof UnresolvedExtractValue || node instanceof Parameter;
        return isValue && !(node instanceof NamedExpression || node instanceof LambdaFunction
                || node instanceof PlanExpression || Trees.isShared(node));
    }

    /** True if a name may be a function without parentheses, if no column has it. */
    private static boolean isFunction(UnresolvedAttribute name) {
        return LiteralFunctionResolution.resolve(name.nameParts()).isDefined();
    }

    private boolean isVariable(UnresolvedAttribute name) {
        TempVariableManager variables =
                session.sessionState().catalogManager().tempVariableManager();
        return !variables.isEmpty() && parts(name).stream().anyMatch(part -> variables
                .get(Vector$.MODULE$.from(CollectionConverters.asScala(List.of(stored(part)))))
                .isDefined());
    }

    private String stored(String name) {
        boolean asGiven = session.sessionState().conf().caseSensitiveAnalysis();
        return asGiven ? name : name.toLowerCase(Locale.ROOT);
    }

    private static List<String> parts(UnresolvedAttribute name) {
        return CollectionConverters.asJava(name.nameParts());
    }

    private boolean isColumn(UnresolvedAttribute name) {
        return parts(name).stream().anyMatch(part -> columns.contains(part.toLowerCase(Locale.ROOT)));
    }

    /** Notes the marks and columns in an analyzed plan. */
    void keep(LogicalPlan analyzed) {
        for (TreeNode<?> node : Trees.all(analyzed)) {
            Long mark = markOf(node);
            if (mark != null) {
                kept.add(mark);
            }
            if (node instanceof Attribute column && !(node instanceof UnresolvedAttribute)) {
                columns.add(column.name().toLowerCase(Locale.ROOT));
            }
        }
    }

    /**
     * Returns the computed expressions, only the outermost ones, each once. An expression that
     * rests on rows was left out, not computed; a part of it may have been computed.
     */
    List<Expression> computed() {
        List<Expression> found = new ArrayList<>();
        Set<Object> within = Collections.newSetFromMap(new IdentityHashMap<>());
        Map<Object, Boolean> known = new IdentityHashMap<>();
        marked.forEach((mark, node) -> {
            if (!kept.contains(mark) && !within.contains(node) && !restsOnRows(node, known)) {
                found.add(node);
                within.addAll(Trees.all(node));
            }
        });
        found.forEach(each -> kept.add(markOf(each)));
        return found;
    }

    /** Drops the parts of an expression that cannot be read separately. */
    void leaveOut(Expression whole) {
        Trees.all(whole).forEach(each -> kept.add(markOf(each)));
    }

    /** Returns the variables that were computed, if they are not columns of the same name. */
    List<Expression> doubtful() {
        return marked.entrySet().stream()
                .filter(each -> !kept.contains(each.getKey())
                        && each.getValue() instanceof UnresolvedAttribute name && isVariable(name))
                .map(Map.Entry::getValue).toList();
    }

    private boolean restsOnRows(TreeNode<?> node, Map<Object, Boolean> known) {
        Boolean before = known.get(node);
        if (before == null) {
            before = node instanceof LambdaFunction
                    ? Trees.all(node).stream().anyMatch(
                            each -> isRow(each) && !(each instanceof UnresolvedNamedLambdaVariable))
                    : isRow(node) || Trees.below(node).stream()
                            .anyMatch(each -> restsOnRows(each, known));
            known.put(node, before);
        }
        return before;
    }

    private boolean isRow(TreeNode<?> node) {
        if (node instanceof UnresolvedAttribute name) {
            return isColumn(name) || !isFunction(name) && !isVariable(name);
        }
        return node instanceof LogicalPlan || node instanceof NamedExpression
                && !(node instanceof Alias || node instanceof UnresolvedAlias);
    }
}
