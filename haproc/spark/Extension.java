package haproc.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.classic.SparkSession;
import scala.Function1;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * HAProc's part in each Spark cluster of a ring. Spark loads it by {@code spark.sql.extensions}.
 *
 * <p>The function {@code haproc_plugin()} returns its version, so that a query shows HAProc that
 * the cluster has it.
 */
public final class Extension extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    private static final String FUNCTION = "haproc_plugin";
    private final String version = version();

    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        extensions.injectPlanNormalizationRule(CacheIdentity::new);
        extensions.injectHintResolutionRule(Files::new);
        extensions.injectHintResolutionRule(session -> new Marks((SparkSession) session));
        extensions.injectResolutionRule(session -> new Bounds());
        extensions.injectOptimizerRule(session -> new Bounds());
        extensions.injectCheckRule(Guard::new);
        Function1<Seq<Expression>, Expression> tell = none -> Literal$.MODULE$.apply(version);
        ExpressionInfo info = new ExpressionInfo(Extension.class.getName(), FUNCTION);
        extensions.injectFunction(new Tuple3<>(FunctionIdentifier.apply(FUNCTION), info, tell));
        return BoxedUnit.UNIT;
    }

    private static String version() {
        try (InputStream file = Extension.class.getResourceAsStream("version")) {
            return new String(file.readAllBytes(), StandardCharsets.UTF_8).trim();
        } catch (IOException error) {
            throw new IllegalStateException("the jar lacks haproc/spark/version", error);
        }
    }
}
