package haproc.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.ExpressionWithUnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.UnresolvedExecuteImmediate;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.AtomicType;
import scala.Option;
import scala.Product;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Lets statements name only files that the operator allows, in the sessions that {@link Guard} is
 * for, and refuses everything that would reach files in another way.
 *
 * <p>Files lie outside the ring's tables: their content differs between clusters, and no rule for
 * tables applies. Spark applies this rule before it looks up any name of a plan, also for the
 * content of views, of IDENTIFIER(…), of expressions and of nested texts. Paths are compared in one
 * normal form; a path without one is below no prefix.
 *
 * <p>If a query gives a table's version, it is refused in a plan reading: the analyzer would run
 * that query before it can be judged.
 */
final class Files extends Rule<LogicalPlan> {
    /** Each error begins with its class for HAProc. */
    private static final String REFUSED = "HAPROC_PATH: the statement names files, at %s, that "
            + "belong to no table of the ring: name a table (catalog.schema.table if its schema is "
            + "called like a format), or have the operator allow the path's beginning in paths";
    private static final String OPTION_REFUSED = "HAPROC_OPTION: the option %s may change where "
            + "files are found, or which code reads them: leave it out";
    private static final String NAME_REFUSED = "HAPROC_TABLE_NAME: the name of a function in "
            + "IDENTIFIER(…) has to be computed, so that it may be any: write the name";
    private static final String MOMENT_REFUSED = "HAPROC_NONDETERMINISTIC: TIMESTAMP AS OF takes "
            + "its moment from a query, whose tables nothing shows: look it up first, and write it";
    /** A name of two parts with such a first part names files. */
    private static final Set<String> FORMATS = Set.of(
            "avro", "binaryfile", "csv", "delta", "iceberg", "image", "json", "libsvm", "orc",
            "parquet", "text", "xml");
    /** Functions with options, a map, that may name files: schemas, or a descriptor. */
    private static final Set<String> READING = Set.of(
            "from_xml", "schema_of_xml", "from_avro", "to_avro", "schema_of_avro",
            "from_protobuf", "to_protobuf");
    private static final Set<String> OF_FILES = Set.of(
            "cloud_files", "read_files", "read_statestore", "table_changes_by_path");
    /** A function that has its table's name as a text. */
    private static final String OF_TABLES = "table_changes";
    private static final Set<String> OPTIONS = Set.of("options", "serdeProperties");
    /** The allowed beginnings of options with a dot; others (fs.…) are Hadoop's settings. */
    private static final Pattern OF_FORMATS = Pattern.compile(
            "(?:avro|collection|colelction|delta|escape|field|input|line|mapkey|orc|parquet|quote"
            + "|serialization)\\.(?!crypto|encryption)", Pattern.CASE_INSENSITIVE);
    private static final Set<String> NAMES = Set.of("multipartIdentifier", "nameParts");
    private static final Set<String> PLACES = Set.of("path", "location");
    private static final Pattern LOCATING = Pattern.compile(
            "(?:path|paths|location|uri|url|dir|directory)$", Pattern.CASE_INSENSITIVE);
    /** File systems read these as patterns or escapes; * and ? are fine, they match names only. */
    private static final Pattern UNCLEAR = Pattern.compile("[\\x00-\\x1f\\\\%#\\[\\]{}^;]");
    private static final Pattern SCHEME =
            Pattern.compile("([A-Za-z][A-Za-z0-9+.-]*):(.*)", Pattern.DOTALL);
    private static final ThreadLocal<Boolean> ASKED = ThreadLocal.withInitial(() -> false);
    private final SparkSession session;

    Files(SparkSession session) {
        this.session = session;
    }

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        check(plan);
        return plan;
    }

    /** Throws if a plan that is not analyzed yet names files that the session must not name. */
    void check(LogicalPlan plan) {
        List<String> allowed = Guard.paths(session);
        if (allowed == null) {
            return;
        }
        for (String path : named(plan)) {
            boolean isAllowed = allowed.stream()
                    .anyMatch(prefix -> Place.of(path).isBelow(Place.of(prefix)));
            if (!isAllowed && !Guard.isFilling()) {
                throw new IllegalArgumentException(REFUSED.formatted(path));
            }
        }
    }

    private List<String> named(LogicalPlan plan) {
        List<String> found = new ArrayList<>();
        // Analyzed parts were checked before, and contain the folders of tables.
        List<TreeNode<?>> nodes = Trees.all(
                plan, node -> node instanceof LogicalPlan part && part.analyzed());
        Set<Object> written = Collections.newSetFromMap(new IdentityHashMap<>());
        for (TreeNode<?> node : nodes) {
            if ((node instanceof Command || node instanceof ParsedStatement)
                    && node.productArity() > 0) {
                written.add(node.productElement(0));
            }
        }
        for (TreeNode<?> node : nodes) {
            if (node instanceof UnresolvedExecuteImmediate) {
                // The analyzer would run its text, also under EXPLAIN.
                throw new IllegalArgumentException(Guard.NO_QUERY + "EXECUTE IMMEDIATE");
            } else if (node instanceof UnresolvedTableValuedFunction function) {
                byFunction(function, found);
            } else if (node instanceof UnresolvedFunction function) {
                inOptions(last(texts(function.nameParts())),
                        CollectionConverters.asJava(function.arguments()), found);
            } else if (node instanceof ExpressionWithUnresolvedIdentifier named) {
                byIdentifier(named, found);
            } else if (node instanceof RelationTimeTravel travel && ASKED.get()
                    && travel.timestamp().exists(each -> holdsQuery((Expression) each))) {
                throw new IllegalArgumentException(MOMENT_REFUSED);
            }
            boolean isRead = node instanceof UnresolvedRelation && !written.contains(node);
            for (int i = 0; i < node.productArity(); i++) {
                String field = node.productElementName(i);
                if (node instanceof LogicalPlan && NAMES.contains(field)
                        && node.productElement(i) instanceof scala.collection.Seq<?> name) {
                    String path = path(texts(name), isRead);
                    found.addAll(path.isEmpty() ? List.of() : List.of(path));
                }
                inField(field, plain(node.productElement(i)), found);
            }
        }
        return found;
    }

    /** Returns the result of a work in which statements are only read. */
    static <T> T asked(Callable<T> work) throws Exception {
        boolean before = ASKED.get();
        ASKED.set(true);
        try {
            return work.call();
        } finally {
            ASKED.set(before);
        }
    }

    private static boolean holdsQuery(Expression moment) {
        return Trees.all(moment).stream().anyMatch(each -> each instanceof LogicalPlan);
    }

    private static Object plain(Object value) {
        return value instanceof Option<?> option ? option.isDefined() ? option.get() : "" : value;
    }

    private static String path(List<String> parts, boolean mayBeFormat) {
        if (parts.size() < 2) {
            return "";
        }
        if (parts.stream().anyMatch(each -> each.contains("/") || each.contains("\\"))) {
            String last = parts.get(parts.size() - 1);
            return last.contains("/") ? last : String.join(".", parts);
        }
        boolean isFormat = mayBeFormat && parts.size() == 2
                && (FORMATS.stream().anyMatch(parts.get(0)::equalsIgnoreCase)  // as Spark does
                        || parts.get(0).contains("."));
        return isFormat ? parts.get(1) : "";
    }

    private static List<String> texts(scala.collection.Seq<?> given) {
        return CollectionConverters.asJava(given).stream().map(String::valueOf).toList();
    }

    private void byFunction(UnresolvedTableValuedFunction function, List<String> found) {
        String name = last(texts(function.name()));
        List<Expression> given = CollectionConverters.asJava(function.functionArgs());
        if (!OF_FILES.contains(name) && !name.equals(OF_TABLES)) {
            return;
        }
        String said = given.isEmpty() || !(given.get(0) instanceof Literal literal)
                || literal.value() == null ? "" : literal.value().toString();
        if (said.isEmpty()) {
            found.add(name + "(…)");
        } else if (OF_FILES.contains(name)) {
            found.add(said);
        } else {
            String path = path(parts(said), true);
            found.addAll(path.isEmpty() ? List.of() : List.of(path));
        }
    }

    private List<String> parts(String name) {
        try {
            return texts(((org.apache.spark.sql.classic.SparkSession) session).sessionState()
                    .sqlParser().parseMultipartIdentifier(name));
        } catch (Exception error) {  // Scala's are not declared
            return List.of(name);
        }
    }

    private static String last(List<String> parts) {
        return parts.get(parts.size() - 1).toLowerCase(Locale.ROOT);
    }

    private static List<String> literals(List<Expression> among) {
        List<String> found = new ArrayList<>();
        for (Expression argument : among) {
            for (TreeNode<?> node : inOrder(argument, new ArrayList<>())) {
                if (node instanceof Literal literal
                        && literal.dataType().typeName().startsWith("string")
                        && literal.value() != null) {
                    found.add(literal.value().toString());
                }
            }
        }
        return found;
    }

    private static List<TreeNode<?>> inOrder(TreeNode<?> node, List<TreeNode<?>> found) {
        found.add(node);
        for (Object each : CollectionConverters.asJava(node.children())) {
            inOrder((TreeNode<?>) each, found);
        }
        return found;
    }

    /** Checks a function's call by IDENTIFIER(…); the resolved call does not come here again. */
    private void byIdentifier(ExpressionWithUnresolvedIdentifier named, List<String> found) {
        List<Expression> arguments = CollectionConverters.asJava(named.otherExprs());
        if (arguments.isEmpty()) {
            return;  // a column
        }
        if (!(named.identifierExpr() instanceof Literal name) || name.value() == null) {
            throw new IllegalArgumentException(NAME_REFUSED);
        }
        inOptions(last(parts(name.value().toString())), arguments, found);
    }

    private static void inOptions(String name, List<Expression> arguments, List<String> found) {
        if (!READING.contains(name)) {
            return;
        }
        List<String> given = literals(arguments);
        for (int i = 0; i < given.size(); i++) {
            String text = given.get(i);
            if (LOCATING.matcher(text).find()) {
                found.add(i + 1 < given.size() ? given.get(i + 1) : text);
            }
        }
        if (name.endsWith("protobuf") && arguments.size() > 2) {  // a descriptor's file
            found.addAll(literals(List.of(arguments.get(2))));
        }
        for (int i = name.startsWith("schema_of") ? 1 : 2; i < arguments.size(); i++) {
            if (!inOrder(arguments.get(i), new ArrayList<>()).stream().allMatch(Files::isPlain)) {
                found.add("options that are put together");
            }
        }
    }

    /** True if an option's value is written out, so that all of its texts were seen. */
    private static boolean isPlain(TreeNode<?> node) {
        if (node instanceof Literal literal) {
            return literal.dataType() instanceof AtomicType;
        }
        return node instanceof UnresolvedFunction map && last(texts(map.nameParts())).equals("map")
                || node instanceof NamedArgumentExpression;
    }

    private static void inField(String name, Object value, List<String> found) {
        if (value instanceof String path && PLACES.contains(name) && !path.isEmpty()) {
            found.add(path);
        } else if (OPTIONS.contains(name) || name.equals("properties")) {
            for (Map.Entry<?, ?> each : entries(value)) {
                String key = String.valueOf(each.getKey());
                if (OPTIONS.contains(name) && key.contains(".")
                        && !OF_FORMATS.matcher(key).lookingAt() && !Guard.isFilling()) {
                    throw new IllegalArgumentException(OPTION_REFUSED.formatted(key));
                }
                boolean locates = name.equals("properties") ? key.equals("location")
                        : LOCATING.matcher(key).find();
                if (locates) {
                    found.add(each.getValue() instanceof Literal literal
                            ? String.valueOf(literal.value()) : String.valueOf(each.getValue()));
                }
            }
        } else if (value instanceof Product product && !(value instanceof TreeNode<?>)
                && !(value instanceof scala.collection.Iterable<?>)) {
            for (int i = 0; i < product.productArity(); i++) {
                inField(product.productElementName(i), plain(product.productElement(i)), found);
            }
        }
    }

    private static List<Map.Entry<?, ?>> entries(Object value) {
        List<Map.Entry<?, ?>> found = new ArrayList<>();
        if (value instanceof Map<?, ?> map) {
            found.addAll(map.entrySet());
        } else if (value instanceof scala.collection.Map<?, ?> map) {
            found.addAll(CollectionConverters.asJava(map).entrySet());
        } else if (value instanceof scala.collection.Seq<?> pairs) {
            for (Object each : CollectionConverters.asJava(pairs)) {
                if (each instanceof Tuple2<?, ?> pair) {
                    found.add(Map.entry(pair._1(), pair._2()));
                }
            }
        }
        return found;
    }

    /** A path in its normal form; names is null if there is none. */
    private record Place(String scheme, String authority, List<String> names) {
        private static final Place NONE = new Place("", "", null);

        /** {@code /x} is on the default file system, and another place than {@code file:/x}. */
        static Place of(String path) {
            if (UNCLEAR.matcher(path).find() || !path.equals(path.strip())) {
                return NONE;
            }
            Matcher match = SCHEME.matcher(path);
            boolean named = match.matches();
            String scheme = named ? match.group(1).toLowerCase(Locale.ROOT) : "";
            String rest = named ? match.group(2) : path;
            String authority = "";
            if (named && rest.startsWith("//")) {
                int slash = rest.indexOf('/', 2);
                authority = slash < 0 ? rest.substring(2) : rest.substring(2, slash);
                rest = slash < 0 ? "" : rest.substring(slash);
            }
            return rest.startsWith("/") ? of(scheme, authority, rest) : NONE;
        }

        private static Place of(String scheme, String authority, String rest) {
            List<String> names = new ArrayList<>();
            boolean steps = false;
            for (String name : rest.split("/")) {
                if (name.equals("..")) {
                    steps = true;
                    if (names.isEmpty()) {
                        return NONE;
                    }
                    names.remove(names.size() - 1);
                } else if (!name.isEmpty() && !name.equals(".")) {
                    names.add(name);
                }
            }
            boolean matches = rest.contains("*") || rest.contains("?");
            return steps && matches ? NONE : new Place(scheme, authority, names);
        }

        boolean isBelow(Place prefix) {
            return names != null && prefix.names != null && scheme.equals(prefix.scheme)
                    && authority.equals(prefix.authority)
                    && names.size() >= prefix.names.size()
                    && names.subList(0, prefix.names.size()).equals(prefix.names);
        }
    }
}
