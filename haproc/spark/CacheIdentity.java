package haproc.spark;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.MultiInstanceRelation;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoopRef;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.CachedData;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function1;
import scala.Option;
import scala.collection.Seq;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Vector$;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Puts the version of each Delta table that a plan reads into the plan's identity.
 *
 * <p>Spark has one cache of rows for all sessions, and finds an entry by comparing plans: the
 * entry's normalized plan with that of a query. This rule is the last step of normalizing. It puts
 * a condition that is always true above each relation; its text is the relation's tag. The
 * optimizer removes the condition, so results do not change. The tag of a Delta table is its id and
 * its newest version at this moment. An entry with that tag was planned later than its tag was
 * made, so it holds that version or a newer one: see docs/proofs/cache.md.
 *
 * <p>Only sessions with {@link #SETTING} find cached rows. In all others, and if a version is
 * unknown, the tag is one that never occurs again.
 */
final class CacheIdentity extends Rule<LogicalPlan> {
    private static final String SETTING = "spark.sql.haproc.cached";
    private static final String PREFIX = "haproc ";
    private static final String UNIQUE = PREFIX + "unique ";
    private static final Logger LOGGER = LoggerFactory.getLogger(CacheIdentity.class);
    private final SparkSession session;

    CacheIdentity(SparkSession session) {
        this.session = session;
    }

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        try {
            boolean shared = "true".equals(session.conf().get(SETTING, "false"));
            return tagged(plan, new Tags(shared));
        } catch (Exception | LinkageError error) {
            LOGGER.warn("what is cached is not used for this plan", error);
            return tagged(plan, new Tags(false));
        } finally {
            dropStale();
        }
    }

    private static LogicalPlan tagged(LogicalPlan plan, Tags tags) {
        return plan.transformUpWithSubqueries(new Step(tags));
    }

    /** Gives each relation its tag, in place of an earlier one: some plans are normalized twice. */
    private static final class Step extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
        private final Tags tags;

        Step(Tags tags) {
            this.tags = tags;
        }

        @Override
        public boolean isDefinedAt(LogicalPlan node) {
            return true;
        }

        @Override
        public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
            @SuppressWarnings("unchecked")
            B result = (B) (tagOf(node) != null ? ((Filter) node).child() : tags.put(node));
            return result;
        }
    }

    /** The tags of one plan: a table that it reads twice has one tag. */
    private static final class Tags {
        private final String unique = UNIQUE + UUID.randomUUID();
        private final Map<DeltaLog, String> versions = new HashMap<>();
        private final boolean shared;

        Tags(boolean shared) {
            this.shared = shared;
        }

        LogicalPlan put(LogicalPlan node) {
            String tag = tag(node);
            if (tag == null) {
                return node;
            }
            Expression text = Literal$.MODULE$.apply(tag);
            return new Filter(new EqualTo(text, text), node);
        }

        private String tag(LogicalPlan node) {
            if (!(node instanceof MultiInstanceRelation) || node.isStreaming()
                    || node instanceof LocalRelation || node instanceof Range
                    || node instanceof CTERelationRef || node instanceof UnionLoopRef) {
                return null;  // All its rows are in the plan, or elsewhere in the same plan.
            }
            if (!shared) {
                return unique;
            }
            if (logIndex(node) instanceof TahoeLogFileIndex index) {
                return version(index);
            }
            if (isDelta(node)) {
                return unique;
            }
            return node instanceof LogicalRelation other ? creation(other.catalogTable()) : null;
        }

        private String version(TahoeLogFileIndex index) {
            if (index.isTimeTravelQuery()) {
                return null;  // Its version is part of the relation already.
            }
            return versions.computeIfAbsent(index.deltaLog(), log -> {
                Snapshot newest = log.update(false, Option.empty(), index.catalogTableOpt());
                return deltaTag(newest);
            });
        }

        /** A table that is made anew under the same name gets another tag. */
        private static String creation(Option<CatalogTable> table) {
            return table.isEmpty() ? null : PREFIX + "made " + table.get().createTime();
        }
    }

    private static String deltaTag(Snapshot snapshot) {
        return PREFIX + snapshot.metadata().id() + " " + snapshot.version();
    }

    private static boolean isDelta(LogicalPlan node) {
        Object source = node instanceof LogicalRelation one ? one.relation()
                : node instanceof DataSourceV2Relation two ? two.table() : node;
        if (source instanceof HadoopFsRelation files) {
            source = files.location();
        }
        String name = source.getClass().getName();
        return name.startsWith("org.apache.spark.sql.delta.") || name.startsWith("io.delta.");
    }

    private static Object logIndex(LogicalPlan node) {
        return node instanceof LogicalRelation relation
                && relation.relation() instanceof HadoopFsRelation files ? files.location() : null;
    }

    /** Returns the tag that this rule put here, or null. */
    private static String tagOf(LogicalPlan node) {
        return node instanceof Filter filter && filter.condition() instanceof EqualTo equal
                && equal.left() instanceof Literal left && left.equals(equal.right())
                && left.value() != null && left.value().toString().startsWith(PREFIX)
                ? left.value().toString() : null;
    }

    /**
     * Frees entries that no plan can find any more: those of a version that is not the newest.
     * Spark itself looks entries up by the present plan, and does not find them either. If that
     * cannot be decided, everything is freed.
     */
    private void dropStale() {
        CacheManager cache =
                ((org.apache.spark.sql.classic.SparkSession) session).sharedState().cacheManager();
        if (cache.isEmpty()) {
            return;
        }
        try {
            Method get = CacheManager.class.getDeclaredMethod("cachedData");
            Method set = CacheManager.class.getDeclaredMethod("cachedData_$eq", IndexedSeq.class);
            get.setAccessible(true);
            set.setAccessible(true);
            List<CachedData> stale = entries(get.invoke(cache));
            stale.removeIf(entry -> !isStale(entry));
            if (stale.isEmpty()) {
                return;
            }
            synchronized (cache) {  // as for each change by Spark itself
                List<CachedData> kept = entries(get.invoke(cache));
                kept.removeAll(stale);
                set.invoke(cache, Vector$.MODULE$.from(CollectionConverters.asScala(kept)));
            }
            stale.forEach(entry -> entry.cachedRepresentation().cacheBuilder().clearCache(false));
        } catch (Exception | LinkageError error) {
            LOGGER.warn("what is cached is freed, as it can't be told whether it is stale", error);
            cache.clearCache();
        }
    }

    @SuppressWarnings("unchecked")
    private static List<CachedData> entries(Object found) {
        return new ArrayList<>(CollectionConverters.asJava((Seq<CachedData>) found));
    }

    private boolean isStale(CachedData entry) {
        Seq<LogicalPlan> outdated = entry.plan().collectWithSubqueries(new Outdated());
        return !CollectionConverters.asJava(outdated).isEmpty();
    }

    /** Finds the relations of a plan that would get another tag now. */
    private final class Outdated extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
        @Override
        public boolean isDefinedAt(LogicalPlan node) {
            String tag = tagOf(node);
            if (tag == null || tag.startsWith(UNIQUE)) {
                return tag != null;
            }
            if (!(logIndex(((Filter) node).child()) instanceof TahoeLogFileIndex in)) {
                return false;
            }
            // Delta drops its object of an unused table; its version then stays the same.
            DeltaLog log = DeltaLog.forTable(session, in.deltaLog().dataPath());
            return !tag.equals(deltaTag(log.unsafeVolatileSnapshot()));
        }

        @Override
        public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
            @SuppressWarnings("unchecked")
            B same = (B) node;
            return isDefinedAt(node) ? same : otherwise.apply(node);
        }
    }
}
