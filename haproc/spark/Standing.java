package haproc.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.analysis.NoSuchDatabaseException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchPermanentFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.delta.DeltaLog$;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import scala.Option;

/**
 * Returns fingerprints of the objects with given names, which change when the objects change.
 *
 * <p>It asks Spark's catalog and Delta's log, and runs nothing: a few milliseconds where statements
 * need a tenth of a second. Asked by {@code {"folder": …, "named": [{"sort": …, "parts": […],
 * "content": …}]}}, it returns {@code {"files": […], "standing": […]}}: the names of the folder's
 * files, and for each name {@code null} if it is of another catalog than Spark's own (or Delta's),
 * else {@code absent}, {@code present} (its content is not asked for), {@code unreadable}, a Delta
 * table's newest commit as {@code version@milliseconds}, or a description.
 */
final class Standing {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String ABSENT = "absent";
    private static final String PRESENT = "present";
    private static final String UNREADABLE = "unreadable";
    /** The exceptions of the catalog for a missing object, and for nothing else. */
    private static final Set<Class<?>> NOTHING = Set.of(
            NoSuchTableException.class, NoSuchDatabaseException.class,
            NoSuchNamespaceException.class, NoSuchFunctionException.class,
            NoSuchPermanentFunctionException.class);

    private final SparkSession session;
    private final ExternalCatalog catalog;

    private Standing(SparkSession session) {
        this.session = session;
        catalog = session.sessionState().catalog().externalCatalog();
    }

    static String of(SparkSession session, JsonNode asked) throws IOException {
        Standing standing = new Standing(session);
        ObjectNode answer = MAPPER.createObjectNode();
        ArrayNode found = answer.putArray("standing");
        asked.path("named").forEach(each -> found.add(standing.of(each)));
        ArrayNode files = answer.putArray("files");  // last: proof of the storage for all of them
        standing.files(asked.path("folder").asText()).forEach(files::add);
        return answer.toString();
    }

    private List<String> files(String folder) throws IOException {
        List<String> names = new ArrayList<>();
        Path path = new Path(folder);
        try {
            for (FileStatus each
                    : path.getFileSystem(session.sparkContext().hadoopConfiguration()).listStatus(path)) {
                names.add(each.getPath().getName());
            }
        } catch (FileNotFoundException error) {
            names.clear();
        }
        return names;
    }

    private String of(JsonNode named) {
        List<String> parts = new ArrayList<>();
        named.path("parts").forEach(each -> parts.add(stored(each.asText())));
        boolean isNamespace = named.path("sort").asText().equals("namespace");
        if (parts.size() != (isNamespace ? 2 : 3) || !isSparksOwn(parts.get(0))) {
            return null;
        }
        String database = parts.get(1);
        String name = parts.get(parts.size() - 1);
        try {  // one call each: a metastore takes ten milliseconds for one
            if (isNamespace) {
                return catalog.getDatabase(database).toString();
            }
            if (named.path("sort").asText().equals("function")) {
                return catalog.getFunction(database, name).toString();
            }
            CatalogTable table = catalog.getTable(database, name);
            return named.path("content").asBoolean() ? of(table) : PRESENT;
        } catch (Exception error) {  // Scala's are not declared
            if (NOTHING.contains(error.getClass())) {
                return ABSENT;
            }
            throw error;
        }
    }

    /** Returns a name as Spark's catalog stores it. */
    private String stored(String name) {
        boolean asGiven = session.sessionState().conf().caseSensitiveAnalysis();
        return asGiven ? name : name.toLowerCase(Locale.ROOT);
    }

    /** True if the name means Spark's external catalog, without another catalog around it. */
    private boolean isSparksOwn(String name) {
        if (!name.equals("spark_catalog")) {
            return false;
        }
        CatalogPlugin plugin = session.sessionState().catalogManager().catalog(name);
        return plugin.getClass() == DeltaCatalog.class
                || plugin == session.sessionState().catalogManager().v2SessionCatalog();
    }

    private String of(CatalogTable table) {
        boolean isView = table.tableType() == CatalogTableType.VIEW();
        if (isView || !table.provider().exists(each -> each.equalsIgnoreCase("delta"))) {
            return table.toLinkedHashMap() + table.schema().json();
        }
        try {
            Snapshot newest = DeltaLog$.MODULE$.forTable(session, table)
                    .update(false, Option.empty(), Option.apply(table));
            boolean isThere = newest.version() >= 0;
            return isThere ? newest.version() + "@" + newest.timestamp() : UNREADABLE;
        } catch (RuntimeException error) {  // a broken log, or missing files
            return UNREADABLE;
        }
    }
}
