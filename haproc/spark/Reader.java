package haproc.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.exc.StreamConstraintsException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.spark.connect.proto.Plan;
import org.apache.spark.connect.proto.Relation;
import org.apache.spark.connect.proto.SubqueryAlias;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAlias;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias$;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connect.planner.SparkConnectPlanner;
import org.apache.spark.sql.connect.plugin.RelationPlugin;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SQLExecutionThreadLocalCaptured;
import org.apache.spark.sql.internal.VariableSubstitution;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.CodedInputStream;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Vector$;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Gives Spark's reading of a statement or DataFrame, which does not run, and the server's content.
 * Spark Connect loads it by {@code spark.connect.extensions.relation.classes}.
 *
 * <p>The question is a relation of its own with JSON as its bytes: {@code plan} is a plan of Spark
 * Connect with a SQL text (perhaps with the DataFrames that it reads) or a DataFrame as root;
 * {@code analyze} is false if a text is only to be parsed; {@code columns} is true if a plan's are
 * wanted. The type URL names the question:
 *
 * <ul>
 *   <li>{@code haproc/version}: a row with the versions of the loaded {@link Extension}, of Spark,
 *       and of Delta (empty: there is none);
 *   <li>{@code haproc/read}: a row with the reading, see {@link Trees};
 *   <li>{@code haproc/standing}: a row with the fingerprints of names, see {@link Standing};
 *   <li>{@code haproc/copy}, {@code haproc/put}: reading and writing copies, see {@link Copies}.
 * </ul>
 *
 * <p>An error of the parser or analyzer is the one that the statement itself would have.
 */
public final class Reader implements RelationPlugin {
    /** The limits of Spark Connect for its clients: bytes, and nested messages. */
    private static final int PLAN_BYTES_MAX = 128 << 20;
    private static final int MESSAGES_DEEP = 1024;
    /** The depth of expressions that the analyzer computes inside computed ones. Chosen. */
    private static final int ROUNDS_MAX = 20;
    private static final String UNASKED = "unasked";
    private static final String TOO_DEEP = "the statement is nested too deeply to be read";
    private static final ObjectMapper MAPPER = mapper();
    /**
     * The threads that read. Spark Connect makes a thread for each request, and Hive's metastore in
     * the server initialises itself for each new thread: 30 ms of the 50 that a reading took.
     */
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(
            work -> {
                Thread thread = new Thread(work, "haproc-reader");
                thread.setDaemon(true);
                return thread;
            });

    @Override
    public Optional<LogicalPlan> transform(byte[] relation, SparkConnectPlanner planner) {
        try {
            Any any = Any.parseFrom(relation);
            return switch (any.getTypeUrl()) {
                case "haproc/version" -> Optional.of(version(planner.session()));
                case "haproc/read" ->
                        Optional.of(value(asked(any, planner).reading(), planner.session()));
                case "haproc/standing" -> Optional.of(value(
                        Standing.of(planner.session(), said(any)), planner.session()));
                case "haproc/copy" -> Optional.of(Copies.of(planner.session(), said(any)));
                case "haproc/put" -> Optional.of(
                        Copies.put(planner.session(), any.getValue().toByteArray()));
                default -> Optional.empty();
            };
        } catch (Exception error) {
            throw sneaky(error);  // the analyzer's is one that the statement itself would have
        }
    }

    private static Asked asked(Any any, SparkConnectPlanner planner) {
        try {
            return new Asked(any, planner);
        } catch (IOException error) {
            // Without its cause: an input or output error would seem to be the cluster's fault.
            throw new IllegalArgumentException("not what HAProc sends: " + error);
        }
    }

    private static JsonNode said(Any asked) throws IOException {
        return MAPPER.readTree(asked.getValue().toByteArray());
    }

    private static LogicalPlan value(String value, SparkSession session) {
        return session.createDataset(List.of(value), Encoders.STRING()).logicalPlan();
    }

    private static ObjectMapper mapper() {
        StreamReadConstraints all = StreamReadConstraints.builder()
                .maxStringLength(PLAN_BYTES_MAX / 3 * 4 + 4).build();  // in base64
        return new ObjectMapper(JsonFactory.builder().streamReadConstraints(all).build());
    }

    private static LogicalPlan version(SparkSession session) {
        String asked = "SELECT haproc_plugin() AS version, '%s' AS spark, '%s' AS delta";
        return session.sql(asked.formatted(session.version(), delta())).queryExecution().analyzed();
    }

    private static String delta() {
        try {
            return io.delta.package$.MODULE$.VERSION();
        } catch (LinkageError error) {
            return "";
        }
    }

    /** One question about a text or a DataFrame. */
    private static final class Asked {
        private final SparkConnectPlanner planner;
        private final SparkSession session;
        private final Relation root;
        private final boolean isAnalyzed;
        private final boolean wantsColumns;
        private final Map<String, Relation> frames = new HashMap<>();

        Asked(Any asked, SparkConnectPlanner planner) throws IOException {
            JsonNode said = said(asked);
            this.planner = planner;
            session = planner.session();
            isAnalyzed = said.path("analyze").asBoolean(true);
            wantsColumns = said.path("columns").asBoolean();
            byte[] plan = said.path("plan").binaryValue();
            if (plan == null) {
                throw new IOException("there is no plan");
            }
            CodedInputStream messages = CodedInputStream.newInstance(plan);
            messages.setRecursionLimit(MESSAGES_DEEP);
            Relation given = Plan.parseFrom(messages).getRoot();
            if (given.hasWithRelations() && given.getWithRelations().getRoot().hasSql()) {
                for (Relation each : given.getWithRelations().getReferencesList()) {
                    SubqueryAlias frame = each.getSubqueryAlias();
                    frames.put(frame.getAlias().toLowerCase(Locale.ROOT), frame.getInput());
                }
                given = given.getWithRelations().getRoot();
            }
            root = given;
        }

        String reading() throws Exception {
            SQLExecutionThreadLocalCaptured caller = SQLExecution.captureThreadLocals(session);
            ClassLoader classes = Thread.currentThread().getContextClassLoader();
            Future<String> found = THREADS.submit(() -> {
                Thread.currentThread().setContextClassLoader(classes);
                try {
                    return caller.runWith(() -> {
                        try {
                            return Files.asked(this::read);
                        } catch (Exception error) {
                            throw sneaky(error);
                        }
                    });
                } finally {  // the thread outlives the session
                    SparkSession.clearActiveSession();
                    session.sparkContext().setLocalProperties(new Properties());
                    Thread.currentThread().setContextClassLoader(Reader.class.getClassLoader());
                }
            });
            try {
                return found.get();
            } catch (ExecutionException error) {
                throw sneaky(error.getCause());
            } finally {
                found.cancel(true);  // the client's cancel interrupts this thread, not that one
            }
        }

        private String read() throws IOException {
            String text = root.hasSql() ? root.getSql().getQuery() : "";
            // Places are those after ${…} was replaced: they are wrong in the original text.
            boolean replaced = !new VariableSubstitution().substitute(text).equals(text);
            Trees trees = new Trees(replaced ? "" : text);
            if (replaced) {
                trees.say("substituted", "true");
            }
            Marks marks = new Marks(session);
            marks.begin();
            try {
                LogicalPlan parsed = text.isEmpty() ? null : parsed();
                String unseen = parsed == null ? "" : unseen(parsed);
                trees.put("parsed", parsed);
                if (unseen.isEmpty() && isAnalyzed) {
                    LogicalPlan analyzed = parsed == null ? frame() : analyzed(parsed);
                    trees.put("analyzed", analyzed);
                    if (wantsColumns) {
                        trees.columns(analyzed);
                    }
                    marks.keep(analyzed);
                    computed(marks, trees);
                } else {
                    trees.say("unseen", unseen.isEmpty() ? UNASKED : unseen);
                }
            } catch (StackOverflowError | StreamConstraintsException error) {
                throw new IllegalArgumentException(TOO_DEEP);
            } finally {
                Marks.end();
            }
            return trees.json();
        }

        private LogicalPlan parsed() {
            LogicalPlan parsed = sqlParser(root.getSql().getQuery());
            new Files(session).check(parsed);  // also if nothing is analyzed
            return frames.isEmpty() ? parsed : parsed.transformDownWithSubqueries(new InPlace());
        }

        private LogicalPlan sqlParser(String text) {
            try {
                return session.sessionState().sqlParser().parsePlan(text);
            } catch (Exception error) {  // Scala's are not declared
                throw sneaky(error);
            }
        }

        /** Returns the kind of statement that the analyzer would run; empty if there is none. */
        private static String unseen(LogicalPlan parsed) {
            for (TreeNode<?> node : Trees.all(parsed)) {
                String kind = node.getClass().getSimpleName();
                if (Effects.RUN_BY_ANALYZER.contains(kind)) {
                    return kind;
                }
            }
            return "";
        }

        private LogicalPlan analyzed(LogicalPlan plan) {
            QueryPlanningTracker tracker = new QueryPlanningTracker(Option.empty());
            return Guard.reading(
                    () -> session.sessionState().analyzer().executeAndCheck(plan, tracker));
        }

        /**
         * Writes the expressions that the analyzer computed, read separately, and those that cannot
         * be read so. A computed one may contain others that the analyzer computes again.
         */
        private void computed(Marks marks, Trees trees) throws IOException {
            List<LogicalPlan> plans = new ArrayList<>();
            List<Expression> unread = new ArrayList<>();
            List<Expression> found = marks.computed();
            for (int round = 0; !found.isEmpty(); round++) {
                if (round == ROUNDS_MAX) {
                    throw new IllegalArgumentException(TOO_DEEP);
                }
                LogicalPlan together = alone(found);
                for (Expression each : together == null ? found : List.<Expression>of()) {
                    LogicalPlan plan = alone(List.of(each));
                    if (plan == null) {
                        marks.leaveOut(each);
                        unread.add(each);
                    } else {
                        plans.add(plan);
                    }
                }
                if (together != null) {
                    plans.add(together);
                }
                plans.forEach(marks::keep);
                found = marks.computed();
            }
            unread.addAll(marks.doubtful());
            trees.put("computed", plans);
            trees.put("unread", unread);
        }

        private LogicalPlan alone(List<Expression> expressions) {
            List<NamedExpression> items = new ArrayList<>();
            expressions.forEach(each -> items.add(new UnresolvedAlias(each, Option.empty())));
            try {
                return analyzed(new Project(
                        Vector$.MODULE$.from(CollectionConverters.asScala(items)),
                        new OneRowRelation()));
            } catch (Exception error) {
                return null;
            }
        }

        private LogicalPlan frame() {
            return analyzed(planner.transformRelation(root));
        }

        /** Replaces the names of DataFrames in a text by the DataFrames that came with it. */
        private final class InPlace extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
                return node instanceof UnresolvedRelation relation && name(relation).size() == 1
                        && frames.containsKey(key(relation));
            }

            @Override
            public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
                if (!isDefinedAt(node)) {
                    return otherwise.apply(node);
                }
                String key = key((UnresolvedRelation) node);
                LogicalPlan frame = planner.transformRelation(frames.get(key));
                @SuppressWarnings("unchecked")
                B result = (B) SubqueryAlias$.MODULE$.apply(key, frame);
                return result;
            }

            private static String key(UnresolvedRelation relation) {
                return name(relation).get(0).toLowerCase(Locale.ROOT);
            }
        }
    }

    // Scala's own methods of sequences are ambiguous for Eclipse's compiler.
    private static List<String> name(UnresolvedRelation relation) {
        return CollectionConverters.asJava(relation.multipartIdentifier());
    }

    @SuppressWarnings("unchecked")
    private static <T extends Throwable> RuntimeException sneaky(Throwable error) throws T {
        throw (T) error;
    }
}
