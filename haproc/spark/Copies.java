package haproc.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.RandomAccessFile;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogDatabase;
import org.apache.spark.sql.catalyst.catalog.CatalogFunction;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.CatalogUtils;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.catalyst.catalog.FunctionResource;
import org.apache.spark.sql.catalyst.catalog.FunctionResourceType;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaLog$;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.storage.LogStore;
import org.apache.spark.sql.delta.storage.LogStore$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;
import scala.Option;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Vector$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Reads a cluster's content for another cluster, and writes copies. A table is its files and the
 * newest state of its Delta log, so a copy is equal in all columns and properties.
 *
 * <p>The request is JSON with {@code do}:
 *
 * <ul>
 *   <li>{@code inventory}: schemas, views, functions, Delta tables with their versions, and objects
 *       that cannot be copied, with the reason;
 *   <li>{@code state} ({@code location}, {@code version}): the actions of a table's state, without
 *       those of its files;
 *   <li>{@code files}: the same table's files, a row each, as Delta's {@code add} has them;
 *   <li>{@code read} ({@code location}, {@code path}, {@code offset}, {@code length}): the file's size
 *       and {@code length} of its bytes;
 *   <li>{@code list} ({@code location}): names and sizes of the files below; {@code flat}: only of
 *       those directly in the folder;
 *   <li>{@code table} ({@code location}): a table's version and size, by its folder; nothing if there
 *       is none;
 *   <li>{@code transfer} ({@code from}, {@code to}, {@code paths}): copies files of one folder to
 *       another, see {@link Transfer};
 *   <li>{@code define} ({@code schema}, {@code view} or {@code function}): makes it in the catalog;
 *   <li>{@code put} ({@code location}, {@code path}, {@code offset}, {@code last}): writes bytes of a
 *       file. They are behind the JSON; its length in four bytes is before it.
 * </ul>
 */
final class Copies {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final int ROW_BYTES = 1 << 20;
    /** The most files that the driver copies itself if they are small: a job would take longer. */
    private static final int TRANSFERRED_HERE = 3;
    private static final long TRANSFERRED_HERE_BYTES = 32 << 20;

    private final SparkSession session;
    private final ExternalCatalog catalog;

    private Copies(SparkSession session) {
        this.session = session;
        catalog = session.sessionState().catalog().externalCatalog();
    }

    static LogicalPlan of(SparkSession session, JsonNode asked) throws IOException {
        Copies copies = new Copies(session);
        return switch (asked.path("do").asText()) {
            case "inventory" -> copies.value(copies.inventory());
            case "state" -> copies.value(copies.state(asked));
            case "files" -> copies.snapshot(asked).allFiles().toDF().queryExecution().analyzed();
            case "read" -> copies.read(asked);
            case "list" -> copies.value(copies.list(asked));
            case "table" -> copies.value(copies.table(asked));
            case "transfer" -> copies.value(copies.transfer(asked));
            case "define" -> copies.value(copies.define(asked));
            default -> throw new IllegalArgumentException("not what HAProc sends: " + asked);
        };
    }

    /** Writes bytes of a file; returns a row with its size so far. */
    static LogicalPlan put(SparkSession session, byte[] sent) throws IOException {
        int length = java.nio.ByteBuffer.wrap(sent).getInt();
        JsonNode asked = MAPPER.readTree(sent, 4, length);
        Copies copies = new Copies(session);
        return copies.value(copies.put(asked, sent, 4 + length));
    }

    private LogicalPlan value(JsonNode value) {
        return session.createDataset(List.of(value.toString()), Encoders.STRING()).logicalPlan();
    }

    // -- the content ----------------------------------------------------------------------------

    private JsonNode inventory() {
        ObjectNode found = MAPPER.createObjectNode();
        for (String each : List.of("schemas", "views", "functions", "tables", "others")) {
            found.putArray(each);
        }
        for (String name : CollectionConverters.asJava(catalog.listDatabases())) {
            CatalogDatabase schema = catalog.getDatabase(name);
            ObjectNode said = ((ArrayNode) found.get("schemas")).addObject()
                    .put("name", name).put("comment", schema.description());
            put(said.putObject("properties"), schema.properties());
            if (!name.equals("default") && !schema.locationUri().equals(place(name))) {
                other(found, name, "", "the schema has a LOCATION");
            }
            for (String table : CollectionConverters.asJava(catalog.listTables(name))) {
                table(found, catalog.getTable(name, table));
            }
            for (String function : CollectionConverters.asJava(catalog.listFunctions(name, "*"))) {
                function(found, catalog.getFunction(name, function));
            }
        }
        return found;
    }

    private void table(ObjectNode found, CatalogTable table) {
        String schema = table.database();
        String name = table.identifier().table();
        if (table.tableType().equals(CatalogTableType.VIEW())) {
            ObjectNode said = ((ArrayNode) found.get("views")).addObject()
                    .put("schema", schema).put("name", name)
                    .put("columns", table.schema().json())
                    .put("text", or(table.viewText()))
                    .put("original", or(table.viewOriginalText()))
                    .put("comment", or(table.comment()))
                    .put("collation", or(table.collation()));
            put(said.putObject("properties"), table.properties());
        } else if (!or(table.provider()).equalsIgnoreCase("delta")) {
            other(found, schema, name, "its format is " + or(table.provider()) + ", not delta");
        } else if (!table.tableType().equals(CatalogTableType.MANAGED())) {
            other(found, schema, name, "it has a LOCATION");
        } else {
            try {
                Path place = new Path(table.location());
                Snapshot snapshot = newest(DeltaLog$.MODULE$.forTable(session, place));
                standing(
                        ((ArrayNode) found.get("tables")).addObject()
                                .put("schema", schema).put("name", name),
                        place, snapshot);
            } catch (RuntimeException error) {
                other(found, schema, name, "it cannot be read: " + error.getMessage());
            }
        }
    }

    private static void function(ObjectNode found, CatalogFunction function) {
        ObjectNode said = ((ArrayNode) found.get("functions")).addObject()
                .put("schema", or(function.identifier().database()))
                .put("name", function.identifier().funcName())
                .put("class", function.className());
        ArrayNode resources = said.putArray("resources");
        for (FunctionResource each : CollectionConverters.asJava(function.resources())) {
            resources.addArray().add(each.resourceType().resourceType()).add(each.uri());
        }
    }

    private static void other(ObjectNode found, String schema, String name, String why) {
        ((ArrayNode) found.get("others")).addObject()
                .put("schema", schema).put("name", name).put("why", why);
    }

    private static String or(Option<String> value) {
        return value.isEmpty() ? "" : value.get();
    }

    private static void put(ObjectNode said, scala.collection.immutable.Map<String, String> pairs) {
        CollectionConverters.asJava(pairs).forEach(said::put);
    }

    // -- a table's state and files ---------------------------------------------------------------

    private static Snapshot newest(DeltaLog log) {
        return log.update(false, Option.empty(), Option.empty());
    }

    private Snapshot snapshot(JsonNode asked) {
        Path place = new Path(asked.path("location").asText());
        DeltaLog log = DeltaLog$.MODULE$.forTable(session, place);
        newest(log);
        return log.getSnapshotAt(
                asked.path("version").asLong(), Option.empty(), Option.empty(), false);
    }

    private static void standing(ObjectNode said, Path place, Snapshot snapshot) {
        said.put("location", place.toString())
                .put("version", snapshot.version())
                .put("id", snapshot.metadata().id())
                .put("files", snapshot.numOfFiles())
                .put("bytes", snapshot.sizeInBytes());
    }

    private JsonNode table(JsonNode asked) {
        Path place = new Path(asked.path("location").asText());
        // The folder may have been emptied since it was read.
        DeltaLog$.MODULE$.invalidateCache(session, place);
        Snapshot snapshot = newest(DeltaLog$.MODULE$.forTable(session, place));
        ObjectNode said = MAPPER.createObjectNode();
        if (snapshot.version() >= 0) {
            standing(said, place, snapshot);
        }
        return said;
    }

    private JsonNode state(JsonNode asked) throws IOException {
        Snapshot snapshot = snapshot(asked);
        ObjectNode said = MAPPER.createObjectNode();
        ArrayNode actions = said.putArray("actions");
        actions.add(MAPPER.readTree(snapshot.protocol().json()));
        actions.add(MAPPER.readTree(snapshot.metadata().json()));
        for (var each : CollectionConverters.asJava(snapshot.domainMetadata())) {
            actions.add(MAPPER.readTree(each.json()));
        }
        return said;
    }

    private LogicalPlan read(JsonNode asked) throws IOException {
        Path path = path(asked);
        FileSystem files = files(path);
        long size = files.getFileStatus(path).getLen();
        long offset = asked.path("offset").asLong();
        int left = (int) Math.max(0, Math.min(asked.path("length").asInt(), size - offset));
        List<byte[]> rows = new ArrayList<>();
        rows.add(Long.toString(size).getBytes(StandardCharsets.US_ASCII));
        try (FSDataInputStream input = files.open(path)) {
            input.seek(offset);
            while (left > 0) {
                byte[] row = new byte[Math.min(left, ROW_BYTES)];
                input.readFully(row);
                rows.add(row);
                left -= row.length;
            }
        }
        return session.createDataset(rows, Encoders.BINARY()).logicalPlan();
    }

    private JsonNode list(JsonNode asked) throws IOException {
        ObjectNode said = MAPPER.createObjectNode();
        Path place = new Path(asked.path("location").asText());
        FileSystem files = files(place);
        if (!files.exists(place)) {
            return said;
        }
        String root = files.makeQualified(place).toUri().getPath();
        boolean below = !asked.path("flat").asBoolean();
        RemoteIterator<LocatedFileStatus> found = files.listFiles(place, below);
        while (found.hasNext()) {
            FileStatus each = found.next();
            String name = each.getPath().toUri().getPath().substring(root.length() + 1);
            said.put(name, each.getLen());
        }
        return said;
    }

    private JsonNode transfer(JsonNode asked) throws IOException {
        Path from = new Path(asked.path("from").asText());
        List<String> paths = new ArrayList<>();
        for (JsonNode each : asked.path("paths")) {
            path(from, each.asText());
            paths.add(each.asText());
        }
        Transfer work = new Transfer(
                from.toString(), asked.path("to").asText(),
                new SerializableConfiguration(session.sessionState().newHadoopConf()));
        List<Long> found = new ArrayList<>();
        if (isLittle(from, paths)) {
            for (String path : paths) {
                found.add(work.call(path));
            }
        } else {
            found = JavaSparkContext.fromSparkContext(session.sparkContext())
                    .parallelize(paths, paths.size()).map(work).collect();
        }
        return MAPPER.createObjectNode()
                .put("files", found.stream().filter(size -> size >= 0).count())
                .put("bytes", found.stream().mapToLong(size -> Math.max(0, size)).sum());
    }

    private boolean isLittle(Path from, List<String> paths) throws IOException {
        long bytes = 0;
        for (String each : paths.subList(0, Math.min(paths.size(), TRANSFERRED_HERE))) {
            Path path = path(from, each);
            bytes += files(path).getFileStatus(path).getLen();
        }
        return paths.size() <= TRANSFERRED_HERE && bytes <= TRANSFERRED_HERE_BYTES;
    }

    private static Path path(JsonNode asked) {
        return path(new Path(asked.path("location").asText()), asked.path("path").asText());
    }

    /** Returns a file of a table, by its path as in Delta's log. */
    static Path path(Path location, String name) {
        URI uri = URI.create(name);
        if (uri.isAbsolute() || name.startsWith("/") || List.of(name.split("/")).contains("..")) {
            throw new IllegalArgumentException("not a file of a table: " + name);
        }
        return new Path(location, new Path(uri));
    }

    private FileSystem files(Path path) throws IOException {
        return path.getFileSystem(session.sessionState().newHadoopConf());
    }

    // -- writing -------------------------------------------------------------------------------

    private JsonNode put(JsonNode asked, byte[] sent, int begin) throws IOException {
        Path path = path(asked);
        long offset = asked.path("offset").asLong();
        boolean isLast = asked.path("last").asBoolean();
        long size = offset + sent.length - begin;
        if (offset == 0 && isLast) {
            write(path, () -> new ByteArrayInputStream(sent, begin, sent.length - begin));
            return MAPPER.createObjectNode().put("size", size);
        }
        // Some storages cannot append to a file: a large one is built beside the driver.
        File parts = new File(
                System.getProperty("java.io.tmpdir"),
                "haproc-copy-" + Integer.toHexString(path.toString().hashCode()) + "-"
                        + path.getName());
        parts.deleteOnExit();
        try (RandomAccessFile output = new RandomAccessFile(parts, "rw")) {
            if (output.length() < offset) {
                return MAPPER.createObjectNode().put("size", output.length());
            }
            output.setLength(offset);  // bytes of an attempt that failed or was not answered
            output.seek(offset);
            output.write(sent, begin, sent.length - begin);
        }
        if (isLast) {
            write(path, () -> new FileInputStream(parts));
            parts.delete();
        }
        return MAPPER.createObjectNode().put("size", size);
    }

    private interface Source {
        InputStream open() throws IOException;
    }

    /** Writes a file. Commits and manifests appear as a whole or not at all, and never change. */
    private void write(Path path, Source source) throws IOException {
        FileSystem files = files(path);
        if (!path.getName().endsWith(".json")) {
            try (InputStream bytes = source.open(); OutputStream output = files.create(path, true)) {
                bytes.transferTo(output);
            }
            return;
        }
        LogStore store = LogStore$.MODULE$.apply(session);
        Configuration conf = session.sessionState().newHadoopConf();
        files.mkdirs(path.getParent());
        try (BufferedReader lines = lines(source)) {
            store.write(path, CollectionConverters.asScala(lines.lines().iterator()), false, conf);
        } catch (FileAlreadyExistsException error) {
            try (BufferedReader lines = lines(source)) {
                // The same was written before, and the answer was lost.
                if (!lines.lines().toList().equals(
                        CollectionConverters.asJava(store.read(path, conf)))) {
                    throw new IllegalArgumentException("there is another commit already: " + path);
                }
            }
        }
    }

    private static BufferedReader lines(Source source) throws IOException {
        return new BufferedReader(new InputStreamReader(source.open(), StandardCharsets.UTF_8));
    }

    private JsonNode define(JsonNode asked) {
        JsonNode said;
        if ((said = asked.path("schema")).isObject()) {
            String name = said.path("name").asText();
            boolean isThere = catalog.databaseExists(name);
            URI place = isThere ? catalog.getDatabase(name).locationUri() : place(name);
            CatalogDatabase schema = new CatalogDatabase(
                    name, said.path("comment").asText(), place, pairs(said));
            if (isThere) {
                catalog.alterDatabase(schema);
            } else {
                catalog.createDatabase(schema, true);
            }
        } else if ((said = asked.path("view")).isObject()) {
            catalog.createTable(view(said), true);
        } else {
            said = asked.path("function");
            List<FunctionResource> resources = new ArrayList<>();
            for (JsonNode each : said.path("resources")) {
                resources.add(new FunctionResource(
                        FunctionResourceType.fromString(each.get(0).asText()),
                        each.get(1).asText()));
            }
            String schema = said.path("schema").asText();
            String name = said.path("name").asText();
            if (!catalog.functionExists(schema, name)) {  // made before, and not answered
                catalog.createFunction(schema, new CatalogFunction(
                        new FunctionIdentifier(name, Option.apply(schema)),
                        said.path("class").asText(),
                        Vector$.MODULE$.from(CollectionConverters.asScala(resources))));
            }
        }
        return MAPPER.createObjectNode();
    }

    /** Returns the folder of a schema of this name that has no LOCATION. */
    private URI place(String schema) {
        String name = session.sessionState().catalog().getDefaultDBPath(schema).toString();
        Path place = new Path(session.sessionState().conf().warehousePath(), name);
        return CatalogUtils.makeQualifiedPath(
                place.toUri(), session.sessionState().newHadoopConf());
    }

    private static CatalogTable view(JsonNode said) {
        Seq<String> none = Vector$.MODULE$.empty();
        long now = System.currentTimeMillis();
        return new CatalogTable(
                new TableIdentifier(
                        said.path("name").asText(), Option.apply(said.path("schema").asText())),
                CatalogTableType.VIEW(),
                CatalogStorageFormat.empty(),
                (StructType) DataType.fromJson(said.path("columns").asText()),
                Option.empty(),
                none,
                Option.empty(),
                System.getProperty("user.name"),
                now,
                -1,
                "",
                pairs(said),
                Option.empty(),
                option(said, "text"),
                option(said, "comment"),
                option(said, "collation"),
                none,
                false,
                true,
                Map$.MODULE$.empty(),
                option(said, "original"),
                Option.empty());
    }

    private static Option<String> option(JsonNode said, String name) {
        String value = said.path(name).asText();
        return value.isEmpty() ? Option.empty() : Option.apply(value);
    }

    private static scala.collection.immutable.Map<String, String> pairs(JsonNode said) {
        Map<String, String> found = new HashMap<>();
        said.path("properties").fields().forEachRemaining(each -> {
            if (!each.getKey().equals("owner") && !each.getKey().equals("transient_lastDdlTime")) {
                found.put(each.getKey(), each.getValue().asText());
            }
        });
        return Map$.MODULE$.from(CollectionConverters.asScala(found));
    }
}
