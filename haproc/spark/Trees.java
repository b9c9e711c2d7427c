package haproc.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.StreamWriteConstraints;
import java.io.IOException;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.delta.catalog.DeltaTableV2;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import scala.Option;
import scala.Product;
import scala.collection.Iterable;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans of Spark as JSON.
 *
 * <p>A node is {@code {"c": class, "n": true, "f": {field: value}}}; {@code n} is only in nodes of
 * Spark's trees, not in tables and the like. A value is a node, a list, a map or a simple value. An
 * expression has its type ({@code t}), and {@code "d": false} if Spark does not call it
 * deterministic. A node with an expression id has a number ({@code i}, from 0, in the order of
 * appearance). A node that is in the text has its first and last character ({@code at}). Children
 * that are in no field are in {@code more}. Fields that are empty or false are left out. A node
 * that occurs several times is written once, then as {@code {"same": number}}, the number of its
 * beginning, from 0. Classes of Spark and Delta are written without their packages.
 */
final class Trees {
    private static final int CHARACTERS_MAX = 64 << 20;
    /** Some levels for each node: Spark's own stack ends before. */
    private static final StreamWriteConstraints DEEP =
            StreamWriteConstraints.builder().maxNestingDepth(50_000).build();
    private static final int NODES_MAX = 1_000_000;
    private static final int PRODUCTS_DEEP = 4;
    private static final List<String> OWN = List.of("org.apache.spark.", "io.delta.", "scala.");

    private final StringWriter text = new StringWriter();
    private final JsonGenerator out;
    private final String statement;
    private final Map<Long, Integer> numbers = new HashMap<>();
    /** Nodes by identity, in the order in which they were begun. */
    private final Map<Object, Integer> written = new IdentityHashMap<>();

    Trees(String statement) throws IOException {
        this.statement = statement;
        out = JsonFactory.builder().streamWriteConstraints(DEEP).build().createGenerator(text);
        out.writeStartObject();
    }

    /** Writes a node, or several; nothing if there is none. */
    void put(String name, Object nodes) throws IOException {
        if (!isEmpty(nodes)) {
            out.writeFieldName(name);
            value(nodes, 0);
        }
    }

    /** Writes a plan's columns: names and types, and its schema, which has their metadata. */
    void columns(LogicalPlan frame) throws IOException {
        out.writeArrayFieldStart("columns");
        for (Attribute each : CollectionConverters.asJava(frame.output())) {
            list(List.of(each.name(), type(each.dataType())).iterator(), 0);
        }
        out.writeEndArray();
        say("schema", frame.schema().json());
    }

    void say(String name, String value) throws IOException {
        out.writeStringField(name, value);
    }

    String json() throws IOException {
        out.writeEndObject();
        out.close();
        return text.toString();
    }

    private void value(Object value, int deep) throws IOException {
        Object found = value instanceof Option<?> option
                ? option.isEmpty() ? null : option.get() : value;
        if (found == null) {
            out.writeNull();
        } else if (found instanceof TreeNode<?> node) {
            node(node);
        } else if (found instanceof Boolean each) {
            out.writeBoolean(each);
        } else if (found instanceof Integer || found instanceof Long || found instanceof Short) {
            out.writeNumber(((Number) found).longValue());
        } else if (found instanceof byte[] bytes) {
            out.writeString(HexFormat.of().formatHex(bytes));
        } else if (found instanceof DataType type) {
            out.writeString(type(type));
        } else if (found instanceof ExprId id) {
            out.writeNumber(number(id));
        } else if (found instanceof scala.collection.Map<?, ?> map) {
            map(CollectionConverters.asJava(map), deep);
        } else if (found instanceof Map<?, ?> map) {
            map(map, deep);
        } else if (found instanceof Iterable<?> many) {
            list(CollectionConverters.asJava(many).iterator(), deep);
        } else if (found instanceof List<?> many) {
            list(many.iterator(), deep);
        } else if (found instanceof Object[] many) {
            list(List.of(many).iterator(), deep);
        } else if (found instanceof Enum<?> || found instanceof scala.Enumeration.Value
                || isSimple(found)) {
            out.writeString(found.toString());
        } else if (found instanceof Class<?> type) {
            out.writeString(type.getName());
        } else if (found instanceof AtomicReference<?> reference) {
            value(reference.get(), deep);
        } else if (found.getClass().getName().startsWith("scala.Tuple")) {
            list(CollectionConverters.asJava(((Product) found).productIterator()), deep);
        } else if (found instanceof Product each && each.productArity() == 0) {
            out.writeString(name(found));
        } else {
            object(found, deep);
        }
    }

    private static boolean isSimple(Object found) {
        return found instanceof CharSequence || found instanceof Number
                || found instanceof Character || found instanceof Metadata || found instanceof java.net.URI
                || found instanceof org.apache.spark.unsafe.types.UTF8String
                || found instanceof org.apache.spark.sql.types.Decimal
                || found instanceof org.apache.hadoop.fs.Path;
    }

    private void map(Map<?, ?> map, int deep) throws IOException {
        out.writeStartObject();
        for (Map.Entry<?, ?> each : map.entrySet()) {
            out.writeFieldName(String.valueOf(each.getKey()));
            value(each.getValue(), deep);
        }
        out.writeEndObject();
    }

    private void list(Iterator<?> many, int deep) throws IOException {
        out.writeStartArray();
        while (many.hasNext()) {
            value(many.next(), deep);
        }
        out.writeEndArray();
    }

    private void node(TreeNode<?> node) throws IOException {
        Integer before = written.putIfAbsent(node, written.size());
        if (before != null) {
            out.writeStartObject();
            out.writeNumberField("same", before);
            out.writeEndObject();
            return;
        }
        if (written.size() > NODES_MAX || text.getBuffer().length() > CHARACTERS_MAX) {
            throw new IllegalArgumentException("the statement is too large to be read");
        }
        out.writeStartObject();
        out.writeStringField("c", name(node));
        out.writeBooleanField("n", true);
        if (node instanceof Expression expression) {
            expression(expression);
        }
        if (!isShared(node)) {
            place(node.origin());
        }
        fields(node, 0);
        List<TreeNode<?>> more = beside(node);
        if (!more.isEmpty()) {
            out.writeFieldName("more");
            list(more.iterator(), 0);
        }
        out.writeEndObject();
    }

    private void expression(Expression expression) throws IOException {
        String type = typeOf(expression);
        if (type == null) {
            return;
        }
        out.writeStringField("t", type);
        if (!expression.deterministic()) {
            out.writeBooleanField("d", false);
        }
        if (expression instanceof NamedExpression named) {
            out.writeNumberField("i", number(named.exprId()));
        }
        if (expression instanceof Literal literal) {
            out.writeStringField("v", literal.sql());
        }
    }

    /** Returns the type, or null: nodes that are not resolved, or have no type, throw errors. */
    private static String typeOf(Expression expression) {
        try {
            DataType type = expression.resolved() ? expression.dataType() : null;
            return type == null ? null : type(type);
        } catch (Exception error) {
            return null;
        }
    }

    /** True if the server has only one such node: its place is that of its first use. */
    static boolean isShared(TreeNode<?> node) {
        return node.getClass().getName().endsWith("$") || node == Literal$.MODULE$.TrueLiteral()
                || node == Literal$.MODULE$.FalseLiteral();
    }

    private void place(Origin origin) throws IOException {
        if (origin.startIndex().isEmpty() || origin.stopIndex().isEmpty()
                || origin.objectName().isDefined() || !isOwn(origin.sqlText())) {
            return;
        }
        out.writeArrayFieldStart("at");
        out.writeNumber((Integer) origin.startIndex().get());
        out.writeNumber((Integer) origin.stopIndex().get());
        out.writeEndArray();
    }

    private boolean isOwn(Option<String> text) {
        return text.isDefined() && statement.equals(text.get());
    }

    private void fields(Product product, int deep) throws IOException {
        out.writeObjectFieldStart("f");
        Iterator<String> names = CollectionConverters.asJava(product.productElementNames());
        Iterator<Object> values = CollectionConverters.asJava(product.productIterator());
        while (names.hasNext() && values.hasNext()) {
            String name = names.next();
            Object each = values.next();
            if (product instanceof Literal && name.equals("value")) {
                continue;
            }
            if (product instanceof LocalRelation && name.equals("data")) {
                out.writeNumberField("rows", ((scala.collection.Seq<?>) each).size());
            } else if (!isEmpty(each)) {
                out.writeFieldName(name);
                value(each, deep);
            }
        }
        out.writeEndObject();
    }

    /** True if a field is empty: it is left out. */
    private static boolean isEmpty(Object value) {
        return value == null || Boolean.FALSE.equals(value)
                || value instanceof Option<?> option && option.isEmpty()
                || value instanceof Iterable<?> many && many.isEmpty()
                || value instanceof Metadata metadata && Metadata.empty().equals(metadata)
                || value instanceof Map<?, ?> map && map.isEmpty()
                || value instanceof List<?> list && list.isEmpty();
    }

    private void object(Object found, int deep) throws IOException {
        out.writeStartObject();
        out.writeStringField("c", name(found));
        if (found instanceof CatalogTable table) {
            names("name", table.identifier().nameParts());
            out.writeStringField("kind", table.tableType().name());
            out.writeStringField("provider", table.provider().getOrElse(() -> ""));
            if (table.viewText().isDefined()) {
                out.writeStringField("text", table.viewText().get());
            }
        } else if (found instanceof TableIdentifier table) {
            names("name", table.nameParts());
        } else if (found instanceof FunctionIdentifier function) {
            names("name", function.nameParts());
        } else if (found instanceof Identifier table) {
            out.writeFieldName("name");
            List<String> parts = new ArrayList<>(List.of(table.namespace()));
            parts.add(table.name());
            list(parts.iterator(), 0);
        } else if (found instanceof CatalogPlugin catalog) {
            out.writeStringField("name", catalog.name());
        } else if (found instanceof FileIndex files) {
            out.writeFieldName("paths");
            value(files.rootPaths(), 0);
            if (found instanceof TahoeFileIndex) {
                boolean moves = !(found instanceof TahoeLogFileIndex index)
                        || index.isTimeTravelQuery();
                out.writeBooleanField("timeTravel", moves);
            }
        } else if (!(found instanceof FileFormat)) {
            if (found instanceof Table table) {
                out.writeStringField("name", table.name());
            }
            if (found instanceof DeltaTableV2 table && table.timeTravelOpt().isDefined()) {
                out.writeBooleanField("timeTravel", true);
            }
            boolean known = OWN.stream().anyMatch(found.getClass().getName()::startsWith);
            if (found instanceof Product product && known && deep < PRODUCTS_DEEP) {
                fields(product, deep + 1);
            }
        }
        out.writeEndObject();
    }

    private void names(String field, scala.collection.Seq<String> parts) throws IOException {
        out.writeFieldName(field);
        list(CollectionConverters.asJava(parts).iterator(), 0);
    }

    private int number(ExprId id) {
        return numbers.computeIfAbsent(id.id(), any -> numbers.size());
    }

    private static String type(DataType type) {
        return type.sql();
    }

    private static String name(Object found) {
        Class<?> type = found.getClass();
        while (type.isAnonymousClass() || type.getName().contains("$$anon$")) {
            type = type.getSuperclass();
        }
        String name = type.getName();
        boolean own = OWN.stream().anyMatch(name::startsWith);
        String shown = own ? name.substring(name.lastIndexOf('.') + 1) : name;
        int lambda = shown.indexOf("$$Lambda");  // what follows is of this run of the server
        shown = lambda < 0 ? shown : shown.substring(0, lambda + "$$Lambda".length());
        return shown.endsWith("$") ? shown.substring(0, shown.length() - 1) : shown;
    }

    /** Returns the children of a node that are in none of its fields. */
    private static List<TreeNode<?>> beside(TreeNode<?> node) {
        Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Object each : CollectionConverters.asJava(node.productIterator().toList())) {
            within(each, PRODUCTS_DEEP, seen::add);
        }
        List<TreeNode<?>> more = new ArrayList<>();
        Consumer<Object> add = child -> {
            if (child instanceof TreeNode<?> other && seen.add(other)) {
                more.add(other);
            }
        };
        CollectionConverters.asJava(node.children()).forEach(add);
        CollectionConverters.asJava(node.innerChildren()).forEach(add);
        return more;
    }

    /** Gives each node that a field's value holds directly, not those below them. */
    private static void within(Object value, int deep, Consumer<TreeNode<?>> consumer) {
        if (value instanceof TreeNode<?> node) {
            consumer.accept(node);
        } else if (value instanceof Option<?> option && option.isDefined()) {
            within(option.get(), deep, consumer);
        } else if (value instanceof scala.collection.Map<?, ?> map) {
            CollectionConverters.asJava(map).values().forEach(each -> within(each, deep, consumer));
        } else if (value instanceof Iterable<?> many) {
            CollectionConverters.asJava(many).forEach(each -> within(each, deep, consumer));
        } else if (value instanceof Product product && deep > 0
                && !(value instanceof LogicalPlan) && !(value instanceof DataType)
                && OWN.stream().anyMatch(value.getClass().getName()::startsWith)) {
            CollectionConverters.asJava(product.productIterator())
                    .forEachRemaining(each -> within(each, deep - 1, consumer));
        }
    }

    /** Returns all nodes of a plan: operators, expressions, and the plans that those hold. */
    static List<TreeNode<?>> all(TreeNode<?> root) {
        return all(root, node -> false);
    }

    /** Returns the same without the nodes that {@code leftOut} accepts, and those below them. */
    static List<TreeNode<?>> all(TreeNode<?> root, Predicate<TreeNode<?>> leftOut) {
        List<TreeNode<?>> found = new ArrayList<>();
        Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        List<TreeNode<?>> waiting = new ArrayList<>(List.of(root));
        while (!waiting.isEmpty()) {
            TreeNode<?> node = waiting.remove(waiting.size() - 1);
            if (!seen.add(node) || leftOut.test(node)) {
                continue;
            }
            found.add(node);
            if (found.size() > NODES_MAX) {
                throw new IllegalArgumentException("the statement is too large to be read");
            }
            waiting.addAll(below(node));
        }
        return found;
    }

    /** Returns the nodes that a node holds directly. */
    static List<TreeNode<?>> below(TreeNode<?> node) {
        List<TreeNode<?>> found = new ArrayList<>();
        Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        Consumer<Object> add = child -> {
            if (child instanceof TreeNode<?> other && seen.add(other)) {
                found.add(other);
            }
        };
        if (!(node instanceof LocalRelation)) {
            CollectionConverters.asJava(node.productIterator())
                    .forEachRemaining(each -> within(each, PRODUCTS_DEEP, add::accept));
        }
        CollectionConverters.asJava(node.children()).forEach(add);
        CollectionConverters.asJava(node.innerChildren()).forEach(add);
        return found;
    }
}
