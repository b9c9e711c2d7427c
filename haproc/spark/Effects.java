package haproc.spark;

import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection;
import org.apache.spark.sql.catalyst.expressions.TryReflect;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.CompoundPlanStatement;
import org.apache.spark.sql.catalyst.plans.logical.InsertIntoDir;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.plans.logical.ScriptTransformation;
import org.apache.spark.sql.catalyst.trees.TreeNode;

/** What in a plan does more than give rows. */
final class Effects {
    /** What runs while it is analyzed, by its class in the parsed tree, and what holds such. */
    static final Set<String> RUN_BY_ANALYZER =
            Set.of("UnresolvedExecuteImmediate", "CompoundBody");

    private Effects() {}

    static boolean isEffect(TreeNode<?> node) {
        return node instanceof Command || node instanceof ParsedStatement
                || node instanceof CompoundPlanStatement || node instanceof InsertIntoDir
                || node instanceof ScriptTransformation || node instanceof CallMethodViaReflection
                || node instanceof TryReflect
                || RUN_BY_ANALYZER.contains(node.getClass().getSimpleName());
    }
}
